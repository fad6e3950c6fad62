"""Latent attention in three sizes: a few learned queries attend to the tokens."""

from typing import Any

from engram.agent.policies.fast import Fast


class LatentAttn(Fast):
    """The base of the three sizes: `fast` with a different encoder of tokens, and two layers everywhere."""

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
