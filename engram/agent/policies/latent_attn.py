"""Latent attention in three sizes: a few learned queries attend to the tokens."""

from typing import Any

from torch import Tensor, nn

from engram.agent.encoders import make_encoder
from engram.agent.heads import make_actor, make_critic
from engram.agent.observations import Observations
from engram.agent.policies.lstm_wrapper import LSTMWrapper


class LatentAttn(LSTMWrapper):
    """The base of the three sizes, which differ only in the encoder's `ATTENTION_SIZES`."""

    encoder_kind: str

    def __init__(
        self, env: object, input_size: int = 128, hidden_size: int = 128, num_layers: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(env, None, input_size, hidden_size, num_layers, **kwargs)
        self.encoder = make_encoder(self.actor_spec, self.encoder_kind, input_size)
        self.actor = make_actor(self.env_spec, self.action_space, hidden_size)
        self.critic = make_critic(self.env_spec, hidden_size)

    def encode_observations(self, observations: Observations) -> Tensor:
        return self.encoder(observations)

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(hidden), self.critic(hidden)

    def value_layer(self) -> nn.Linear:
        return self.critic.value


class LatentAttnTiny(LatentAttn):
    """One query, two layers of cross-attention.

    >>> from engram.env.registry import make_spec
    >>> from engram.env.settings import TMaze
    >>> policy = LatentAttnTiny(make_spec(TMaze()))
    """

    encoder_kind = "latent_attn_tiny"


class LatentAttnSmall(LatentAttn):
    """Ten queries, one layer of cross-attention and two of self-attention.

    >>> from engram.env.registry import make_spec
    >>> from engram.env.settings import TMaze
    >>> policy = LatentAttnSmall(make_spec(TMaze()))
    """

    encoder_kind = "latent_attn_small"


class LatentAttnMed(LatentAttn):
    """Ten queries, three layers of cross-attention and three of self-attention.

    >>> from engram.env.registry import make_spec
    >>> from engram.env.settings import TMaze
    >>> policy = LatentAttnMed(make_spec(TMaze()))
    """

    encoder_kind = "latent_attn_med"
