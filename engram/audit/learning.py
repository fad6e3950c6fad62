"""A short training run on made-up rewards: enough to see gradients flow and weights move."""

from collections.abc import Callable

import torch

from engram.audit.context import Audit
from engram.audit.subject import Subject


def train_briefly(
    audit: Audit, subject: Subject, updates: int, learning_rate: float, after: Callable[[int], None]
) -> None:
    """Policy gradient, value and entropy losses on random segments; `after` is called with each update's number."""
    optimizer = torch.optim.Adam(subject.policy.parameters(), lr=learning_rate)
    for update in range(updates):
        segment = audit.segment(120 + 2 * update, end_chance=0.1)
        generator = audit.generator(140 + update)
        advantages, returns = (torch.randn(segment.shape, generator=generator) for _ in range(2))
        answer = subject.learn(segment, after_acting=True)
        loss = -(advantages * answer.log_prob).mean() + 0.5 * (answer.value - returns).square().mean()
        if answer.entropy is not None:
            loss = loss - 0.01 * answer.entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(update)
