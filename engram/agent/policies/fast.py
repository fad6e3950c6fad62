"""Fast: a small convolutional network over the tokens; vectors and images have their own encoders."""

from typing import Any

from torch import Tensor, nn

from engram.agent.encoders import make_encoder
from engram.agent.heads import make_actor, make_critic
from engram.agent.observations import Observations
from engram.agent.policies.lstm_wrapper import LSTMWrapper
from engram.env.spec import EnvSpec


class Fast(LSTMWrapper):
    """Convolutions over the token grid and an LSTM, or the encoder for vectors or images.

    >>> import gymnasium
    >>> policy = Fast(gymnasium.make_vec("CartPole-v1"), hidden_size=64)
    """

    encoder_kind = "fast"  # of tokens; other observations have their own encoders

    def __init__(
        self, env: object, input_size: int = 128, hidden_size: int = 128, num_layers: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(env, None, input_size, hidden_size, num_layers or EnvSpec.of(env).default_layers, **kwargs)
        self.encoder = make_encoder(self.actor_spec, self.encoder_kind, input_size)
        self.actor = make_actor(self.env_spec, self.action_space, hidden_size)
        self.critic = make_critic(self.env_spec, hidden_size)

    def encode_observations(self, observations: Observations) -> Tensor:
        return self.encoder(observations)

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden), self.critic(hidden)

    def value_layer(self) -> nn.Linear:
        return self.critic.value
