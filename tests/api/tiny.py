"""A tiny policy of a user's own, and settings that make runs tiny."""

from typing import Any

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

    def __init__(self, env: object, **kwargs: Any) -> None:
        super().__init__(env, input_size=8, hidden_size=8, **kwargs)
        size = self.env_spec.single_observation_space.shape[0]
        self.encoder, self.actor, self.critic = nn.Linear(size, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def encode_observations(self, observations: Tensor) -> Tensor:
        return self.encoder(observations)

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden), self.critic(hidden)
