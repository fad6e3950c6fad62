"""Kinds of components that read observations: tokens in a box or one by one, vectors and images."""

# M tokens, F features of a token, Q queries, D their size

from collections.abc import Sequence

from pydantic import model_validator

from engram.agent.components.kind import Kind, Positive, Weighted
from engram.agent.components.shapes import MisfitError, Shape, Target


class TokensToBox(Kind):
    """Tokens drawn into a box of raw values, a layer per feature: a normaliser should follow."""

    reads = ("tokens",)

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("box", (len(target.spec.features), *target.spec.window))


class Normaliser(Kind):
    """Each layer of such a box divided by the largest value of its feature."""

    reads = ("box",)

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        if inputs[0].sizes[0] != len(target.spec.features):
            raise MisfitError(
                f"divides a box of the environment's {len(target.spec.features)} features, got a {inputs[0]}: "
                "put it right after tokens_to_box"
            )
        return inputs[0]


class StripPadding(Kind):
    """The same tokens without the places that are empty in every row: less work, the same result."""

    reads = ("tokens",)

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return inputs[0]


class ValueNorm(Kind):
    """Tokens in numbers: the cell, the feature, and the value divided by the feature's largest."""

    reads = ("tokens",)

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("located tokens", inputs[0].sizes[:1])


class FourierEmbedding(Kind):
    """A learned vector per feature, cos and sin of x and y at the frequencies 1, 2, 4, …, and the value."""

    reads = ("located tokens",)
    embed_dim: Positive
    num_freqs: Positive

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("embedded tokens", (inputs[0].sizes[0], self.embed_dim + 4 * self.num_freqs + 1))


class LatentAttention(Weighted):
    """Learned queries that look at the tokens. One query with a size gives features, several give a sequence."""

    reads = ("embedded tokens",)
    same_for_all_inputs = True
    query_tokens: Positive
    query_dim: Positive
    layers: Positive
    heads: Positive
    size: Positive | None = None  # null: as the queries are

    @model_validator(mode="after")
    def _heads_fit(self) -> "LatentAttention":
        _check_heads(self.query_dim, self.heads, "query_dim")
        return self

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        size = self.size or self.query_dim
        return Shape("features", (size,)) if self.query_tokens == 1 else Shape("sequence", (self.query_tokens, size))


class SelfAttention(Weighted):
    """A sequence whose members look at each other; a class token that looks too gives the features."""

    reads = ("sequence",)
    layers: Positive
    heads: Positive
    size: Positive

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        _check_heads(inputs[0].sizes[1], self.heads, "the sequence's size")
        return Shape("features", (self.size,))


class VectorEncoder(Weighted):
    """Two linear layers, ReLU after each."""

    reads = ("features",)
    same_for_all_inputs = True
    size: Positive
    hidden_size: Positive = 128

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("features", (self.size,))


class ImageEncoder(Weighted):
    """Three convolutions and a linear layer, ReLU after each."""

    reads = ("image",)
    same_for_all_inputs = True
    size: Positive

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("features", (self.size,))


def _check_heads(dim: int, heads: int, name: str) -> None:
    if dim % heads:
        fitting = [n for n in range(1, dim + 1) if dim % n == 0]
        near = [*[n for n in fitting if n < heads][-1:], *[n for n in fitting if n > heads][:1]]
        raise MisfitError(f"heads: {heads} do not divide {name} ({dim}): try {' or '.join(map(str, near))}")
