"""Fast, a small convolutional network over tokens, and latent attention in three sizes.

They differ in their encoders of tokens. Other observations have their own encoders, the same in all of them.
"""

from typing import Any

from torch import Tensor, nn

from engram.agent.actions import GaussianActions
from engram.agent.encoders import make_encoder
from engram.agent.encoders.parts import ReadingEncoder
from engram.agent.heads import Shortcut, ignore_at_first, make_actor, make_critic
from engram.agent.observations import Observations
from engram.agent.policies.lstm_wrapper import LSTMWrapper
from engram.env.spec import EnvSpec


class Fast(LSTMWrapper):
    """Convolutions over the token grid and an LSTM, or the encoder for vectors or images.

    Vectors, symbols and counts of symbols also reach the logits of discrete actions directly, by linear layers.

    >>> import gymnasium
    >>> policy = Fast(gymnasium.make_vec("CartPole-v1"), hidden_size=64)
    """

    encoder_kind = "fast"  # of tokens; other observations have their own encoders
    encoder: Any  # a ReadingEncoder where there is a shortcut
    actor: Any  # a BilinearActor, LinearActor or GaussianActor

    def __init__(
        self, env: object, input_size: int = 128, hidden_size: int = 128, num_layers: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(env, None, input_size, hidden_size, num_layers or EnvSpec.of(env).default_layers, **kwargs)
        self.encoder = make_encoder(self.actor_spec, self.encoder_kind, input_size)
        self.actor = make_actor(self.env_spec, self.action_space, self.output_size)
        self.critic = make_critic(self.env_spec, self.output_size)
        self.shortcut = self.count_shortcut = None
        discrete = not isinstance(self.action_space, GaussianActions)
        if discrete and isinstance(self.encoder, ReadingEncoder):
            self.shortcut = Shortcut(self.encoder.read_size, self.action_space.logits)
        if self.event_counts is not None:
            for head in (self.actor, self.critic):
                ignore_at_first(head.hidden, hidden_size)
            if discrete:
                self.count_shortcut = Shortcut(self.event_counts.size, self.action_space.logits)

    def encode_observations(self, observations: Observations) -> Tensor | tuple[Tensor, Tensor]:
        if self.shortcut is None:
            return self.encoder(observations)
        read = self.encoder.read(observations)
        return self.encoder.encode(read), self.shortcut(read)

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.actor(hidden)
        if self.count_shortcut is not None:
            logits = logits + self.count_shortcut(hidden[:, self.hidden_size :])
        return logits, self.critic(hidden)

    def value_layer(self) -> nn.Linear:
        return self.critic.value


class LatentAttn(Fast):
    """A few learned queries attend to the tokens. The base of three sizes. The core always has two layers."""

    def __init__(
        self, env: object, input_size: int = 128, hidden_size: int = 128, num_layers: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(env, input_size, hidden_size, num_layers, **kwargs)


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
