"""Gradients in a short training run: which parts of the network they reach, and how large they are."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from engram.agent.recurrent.core import Core
from engram.audit.adapters.base import PolicyAdapter
from engram.audit.context import AuditContext
from engram.audit.difference import EXACT
from engram.audit.result import Check, Verdict
from engram.audit.root_cause import NOT_FINITE
from engram.audit.scenario import play
from engram.audit.weights import perturb_weights

UPDATES = 6
EXPLODING = 1e4
RECURRENT = (Core, nn.RNNBase, nn.RNNCellBase)


def gradient_health(audit: AuditContext) -> Verdict:
    adapter = audit.adapter(original_weights=True)
    parts = {
        name or f"{type(adapter.policy).__name__} itself": [
            p for p in part.parameters(recurse=False) if p.requires_grad
        ]
        for name, part in adapter.policy.named_modules()
    }
    parts = {name: own for name, own in parts.items() if own}
    norms: dict[str, list[float]] = {name: [] for name in parts}

    def measure(_: int) -> None:
        for name, own in parts.items():
            norms[name].append(float(torch.stack([_gradient_norm(p) for p in own]).norm()))

    train_briefly(audit, adapter, UPDATES, 3e-4, measure)
    if broken := _first_not_finite(norms):
        return Verdict(False, torch.inf, EXPLODING, broken)
    exploding = {n: max(v) for n, v in norms.items() if max(v) >= EXPLODING}
    dead = [name for name, values in norms.items() if max(values) == 0]
    modules = dict(adapter.policy.named_modules())
    recurrent = [name for name in dead if isinstance(modules.get(name), RECURRENT)]
    tolerated = [name for name in recurrent if _replaced(audit, name)]  # the policy keeps its memory elsewhere
    if not audit.original.uses_td:
        tolerated += [name for name in dead if name not in recurrent]
    notes = [f"no gradient ever reaches {name}: no output depends on it" for name in tolerated]
    dead = [name for name in dead if name not in tolerated]
    largest = max((max(values) for values in norms.values()), default=0.0)
    finding = f"over {UPDATES} updates, gradients of {len(norms)} parts are between "
    finding += f"{min((min(v) for v in norms.values()), default=0.0):.1g} and {largest:.1g}"
    if exploding:
        finding = "exploding: " + ", ".join(f"{name} ({value:.2g})" for name, value in exploding.items())
    elif dead:
        finding = "no gradient ever reaches " + ", ".join(dead)
    passed = not exploding and not dead
    return Verdict(passed, largest, EXPLODING, finding, where=next(iter([*exploding, *dead]), ""), notes=tuple(notes))


def _first_not_finite(norms: dict[str, list[float]]) -> str:
    """The first update with gradients that are not finite, and the parts that have them. In later updates all have."""
    for update, values in enumerate(zip(*norms.values(), strict=True)):
        if bad := [f"{name} ({x})" for name, x in zip(norms, values, strict=True) if not math.isfinite(x)]:
            return f"{NOT_FINITE} at update {update + 1}: {', '.join(bad)}"
    return ""


@torch.no_grad()
def _replaced(audit: AuditContext, name: str) -> bool:
    """Whether the policy remembers without this recurrent layer, for example with its own instead of LSTMWrapper's."""
    if audit.memory_effect <= EXACT:
        return False
    outputs = []
    for changed in (False, True):
        adapter = audit.adapter()
        if changed:
            perturb_weights(adapter.policy.get_submodule(name), audit.generator(150))
        outputs += [play(adapter, audit.scenario(151, steps=3)).numbers, adapter.learn(audit.segment(152)).numbers()]
    return all(torch.equal(a, b) for a, b in zip(outputs[:2], outputs[2:], strict=True))


def _gradient_norm(parameter: Tensor) -> Tensor:
    return torch.zeros(()) if parameter.grad is None else parameter.grad.norm().float()


def train_briefly(
    audit: AuditContext, adapter: PolicyAdapter, updates: int, learning_rate: float, after: Callable[[int], None]
) -> None:
    """Policy gradient, value and entropy losses on random segments; `after` is called with each update's number."""
    optimizer = torch.optim.Adam(adapter.policy.parameters(), lr=learning_rate)
    for update in range(updates):
        segment = audit.segment(120 + 2 * update, end_chance=0.1)
        generator = audit.generator(140 + update)
        advantages, returns = (torch.randn(segment.shape, generator=generator) for _ in range(2))
        output = adapter.learn(segment, after_acting=True)
        loss = -(advantages * output.log_prob).mean() + 0.5 * (output.value - returns).square().mean()
        if output.entropy is not None:
            loss = loss - 0.01 * output.entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(update)


CHECKS = (
    Check(
        "gradient_health",
        "In a short training run, does every part of the network get a gradient, and is none too large?",
        "A part without a gradient keeps its random weights for ever; one that explodes ruins all others.",
        "A part without a gradient is unused, or cut off by detach(), no_grad() or .data. If gradients explode, check "
        "the part's inputs (scale observations to about 1) and its initialisation.",
        ("encode_observations", "decode_actions", "forward"),
        gradient_health,
    ),
)
