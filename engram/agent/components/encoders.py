"""Components that read observations: tokens as a box or one by one, vectors and images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import model_validator

from engram.agent.components.component import BuildContext, Component, Positive, Shape, ShapeError, WeightedComponent
from engram.nearest import suggestion

if TYPE_CHECKING:
    from torch import nn


class TokensToBoxComponent(Component):
    """Scatters tokens into a box of raw values, one layer per feature. Put a normaliser after it."""

    reads = ("tokens",)

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("box", (len(context.spec.features), *context.spec.window))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.box import TokensToBox

        return TokensToBox(context.spec, normalise=False)


class NormaliserComponent(Component):
    """Divides each layer of a box by the normalisation of its feature."""

    reads = ("box",)

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        if inputs[0].sizes[0] != len(context.spec.features):
            raise ShapeError(
                f"divides a box of the environment's {len(context.spec.features)} features, got a {inputs[0]}: "
                "put it right after tokens_to_box"
            )
        return inputs[0]

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.box import BoxNormaliser

        return BoxNormaliser(context.spec)


class StripPaddingComponent(Component):
    """Drops token positions that are empty in every row: less work, the same result."""

    reads = ("tokens",)

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return inputs[0]

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.tokens import StripPadding

        return StripPadding()


class ValueNormComponent(Component):
    """Decodes tokens into a cell, a feature, and a value divided by the feature's normalisation."""

    reads = ("tokens",)

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("located tokens", inputs[0].sizes[:1])

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.tokens import TokenDecoder

        return TokenDecoder(context.spec)


class FourierEmbeddingComponent(Component):
    """A learned vector per feature, cos and sin of x and y at the frequencies 1, 2, 4, …, and the value."""

    reads = ("located tokens",)
    embed_dim: Positive
    num_freqs: Positive

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("embedded tokens", (inputs[0].sizes[0], self.embed_dim + 4 * self.num_freqs + 1))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.attention import FourierEmbedding

        return FourierEmbedding(context.spec, self.embed_dim, self.num_freqs)


class LatentAttentionComponent(WeightedComponent):
    """Learned queries attend to the tokens. One query gives features, several give a sequence."""

    reads = ("embedded tokens",)
    fixed_shape = True
    query_tokens: Positive
    query_dim: Positive
    layers: Positive
    heads: Positive
    size: Positive | None = None  # null: query_dim

    @model_validator(mode="after")
    def _heads_divide(self) -> LatentAttentionComponent:
        _check_heads(self.query_dim, self.heads, "query_dim")
        return self

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        size = self.size or self.query_dim
        return Shape("features", (size,)) if self.query_tokens == 1 else Shape("sequence", (self.query_tokens, size))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.attention import LatentCrossAttention

        feature_dim = inputs[0].sizes[1]
        return LatentCrossAttention(
            feature_dim, self.query_tokens, self.query_dim, self.layers, self.heads, out_dim=self.size
        )


class SelfAttentionComponent(WeightedComponent):
    """Self-attention over a sequence and a class token, which gives the features."""

    reads = ("sequence",)
    layers: Positive
    heads: Positive
    size: Positive

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        _check_heads(inputs[0].sizes[1], self.heads, "the sequence's size")
        return Shape("features", (self.size,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.attention import SelfAttention

        return SelfAttention(inputs[0].sizes[1], self.layers, self.heads, self.size)


class ReaderComponent(WeightedComponent):
    """The whole observation as one vector: vectors normalised, symbols as one-hots, images by convolutions."""

    reads = ("features", "parts", "symbols")

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        from engram.agent.encoders.parts import read_size

        return Shape("features", (sum(map(read_size, context.spec.all_parts)),))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.parts import PartsReader

        return PartsReader(context.spec)


class EventCountsComponent(Component):
    """How often each combination of symbols and previous action has occurred, and each current symbol. Has memory."""

    reads = ("parts", "symbols")

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        from engram.agent.event_counts import EventCounts

        return Shape("features", (EventCounts(context.spec).size,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.event_counts import EventCounts

        return EventCounts(context.spec)


class VectorEncoderComponent(WeightedComponent):
    """Two linear layers, ReLU after each."""

    reads = ("features",)
    fixed_shape = True
    size: Positive
    hidden_size: Positive = 128

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("features", (self.size,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.parts import VectorEncoder

        return VectorEncoder(inputs[0].sizes[0], self.size, self.hidden_size)


class ImageEncoderComponent(WeightedComponent):
    """Three convolutions and a linear layer, ReLU after each."""

    reads = ("image",)
    fixed_shape = True
    size: Positive

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("features", (self.size,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.parts import ImageEncoder

        height, width, channels = inputs[0].sizes
        return ImageEncoder((height, width, channels), self.size)


class PartsEncoderComponent(WeightedComponent):
    """Parts as one vector (vectors normalised, symbols as one-hots, images by convolutions), and two linear layers."""

    reads = ("parts", "symbols")
    fixed_shape = True
    parts: list[str] | None = None  # null: all parts of the observation
    size: Positive
    hidden_size: Positive = 128

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        names = [part.name for part in context.spec.parts]
        for name in self.parts or []:
            if inputs and name not in names:
                hint = suggestion(name, names, otherwise=f": it has {', '.join(names) or 'none'}")
                raise ShapeError(f"parts: {context.spec.name} has no part {name!r}{hint}")
        return Shape("features", (self.size,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.parts import PartsEncoder

        spec = context.spec if self.parts is None else context.spec.with_parts(self.parts)
        return PartsEncoder(spec, self.size, self.hidden_size)


def _check_heads(dim: int, heads: int, name: str) -> None:
    if dim % heads:
        divisors = [n for n in range(1, dim + 1) if dim % n == 0]
        near = [*[n for n in divisors if n < heads][-1:], *[n for n in divisors if n > heads][:1]]
        raise ShapeError(f"heads: {heads} do not divide {name} ({dim}): try {' or '.join(map(str, near))}")
