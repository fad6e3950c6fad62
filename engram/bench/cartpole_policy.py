"""The network that all systems train on CartPole: two linear layers, an LSTM, and one linear layer per head."""

from typing import Any

from torch import Tensor, nn

from engram.agent.encoders.parts import VectorEncoder
from engram.agent.layers import initialise
from engram.agent.policies.lstm_wrapper import LSTMWrapper


class CartPolePolicy(LSTMWrapper):
    def __init__(self, env: object, hidden_size: int = 128, num_layers: int = 1, **kwargs: Any) -> None:
        super().__init__(env, None, hidden_size, hidden_size, num_layers, **kwargs)
        self.encoder = VectorEncoder(self.env_spec.single_observation_space.shape[0], hidden_size, hidden_size)
        self.actor = initialise(nn.Linear(hidden_size, self.action_space.logits), initialisation="max_0_01")
        self.critic = initialise(nn.Linear(hidden_size, 1))

    def encode_observations(self, observations: Tensor) -> Tensor:
        return self.encoder(observations)

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden), self.critic(hidden)
