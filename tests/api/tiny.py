"""A tiny policy of a user's own, and settings that make runs tiny."""

from typing import Any

import torch
from torch import Tensor, nn

import engram

SMALL: dict[str, Any] = {
    "trainer": {
        "num_envs": 4,
        "bptt_horizon": 8,
        "batch_size": 64,
        "minibatch_size": 32,
        "num_workers": 0,
        "update_epochs": 1,
        "checkpoint": {"interval": 1},
    },
    "progress": False,
}


class Small(engram.LSTMWrapper):
    """A policy of a user's own."""

    def __init__(self, env: object, hidden_size: int = 8, **kwargs: Any) -> None:
        super().__init__(env, input_size=8, hidden_size=hidden_size, **kwargs)
        self.encoder = nn.Linear(3, 8)
        self.actor, self.critic = nn.Linear(hidden_size, 2), nn.Linear(hidden_size, 1)

    def encode_observations(self, observations: Any) -> Tensor:
        bit, clock = nn.functional.one_hot(observations["bit"].flatten().long(), 2), observations["clock"]
        return self.encoder(torch.cat([bit, clock], dim=1))

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden), self.critic(hidden)
