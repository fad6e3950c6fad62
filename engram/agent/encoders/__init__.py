"""Encoders: from observations to the inputs of the recurrent core."""

import math
from collections.abc import Callable

from torch import nn

from engram.agent.encoders.attention import ATTENTION_SIZES, AttentionEncoder
from engram.agent.encoders.box import BoxEncoder
from engram.agent.encoders.parts import ImageEncoder, PartsEncoder, VectorEncoder
from engram.env.spec import EnvSpec
from engram.settings import UserError

TOKEN_ENCODERS: dict[str, Callable[[EnvSpec, int], nn.Module]] = {
    "fast": BoxEncoder,
    "latent_attn_tiny": lambda spec, size: AttentionEncoder(spec, ATTENTION_SIZES["latent_attn_tiny"], size),
    "latent_attn_small": lambda spec, size: AttentionEncoder(spec, ATTENTION_SIZES["latent_attn_small"], size),
    "latent_attn_med": lambda spec, size: AttentionEncoder(spec, ATTENTION_SIZES["latent_attn_med"], size),
}


def make_encoder(spec: EnvSpec, kind: str, output_size: int = 128) -> nn.Module:
    """An encoder from an environment's observations [N, …] to features [N, output_size].

    `kind` selects the encoder of tokens; other kinds of observations have one encoder each.
    """
    if kind not in TOKEN_ENCODERS:
        raise UserError(f"encoder: no kind '{kind}': choose one of {', '.join(TOKEN_ENCODERS)}")
    if spec.observation_kind == "tokens":
        return TOKEN_ENCODERS[kind](spec, output_size)
    if spec.observation_kind in ("parts", "symbols"):
        return PartsEncoder(spec, output_size)
    shape = spec.all_parts[0].shape
    if spec.observation_kind == "image":
        height, width, channels = shape
        return ImageEncoder((height, width, channels), output_size)
    return VectorEncoder(math.prod(shape), output_size)
