"""Kinds of components that can stand anywhere: layers, and merges of several sources."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from engram.agent.components.kind import Kind, Layer, Nonlinearity, Positive
from engram.agent.components.shapes import Form, MisfitError, Shape, Target, listed


class Linear(Layer):
    """A linear layer; the size `actions` is what the action space asks for."""

    reads = ("features",)
    same_for_all_inputs = True
    size: Positive | Literal["actions"]

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("features", (target.logits if self.size == "actions" else self.size,))


class Conv2d(Layer):
    """A convolution. In small boxes kernel and stride shrink until it leaves `leave` cells a side."""

    reads: ClassVar[tuple[Form, ...]] = ("box",)
    channels: Positive
    kernel: Positive
    stride: Positive = 1
    leave: Positive = 1

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        from engram.agent.encoders.box import fit_convolution  # here: it comes with torch

        size = (inputs[0].sizes[1], inputs[0].sizes[2])
        return Shape("box", (self.channels, *fit_convolution(size, self.kernel, self.stride, self.leave).output))


class TokenConv2d(Conv2d):
    """A convolution that reads tokens: tokens_to_box, normaliser and conv2d in one, and faster."""

    reads = ("tokens",)

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return super().shape([Shape("box", (len(target.spec.features), *target.spec.window))], target)


class Flatten(Kind):
    """All numbers of a box or a sequence in a row."""

    reads = ("box", "sequence")

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("features", (math.prod(inputs[0].sizes),))


class Dropout(Kind):
    """Numbers set to zero at random with chance `p`, while the policy is in training mode.

    A replayed rollout draws other zeros than it was played with, so what is learned from is not what acted. That must
    be asked for.
    """

    reads = ("box", "sequence", "features")
    p: Annotated[float, Field(ge=0, lt=1)]
    allow_noise: bool = False

    @model_validator(mode="after")
    def _noise_is_asked_for(self) -> "Dropout":
        if self.p > 0 and not self.allow_noise:
            raise ValueError(
                f"p={self.p:g} makes replayed log-probabilities differ from those of acting, and that ends a run: "
                "leave it out, or give allow_noise: true and raise trainer.replay_error_bound"
            )
        return self

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return inputs[0]


class Merge(Kind):
    """Several sources made one, number by number; they must be of one shape."""

    reads = ("box", "sequence", "features")
    sources: ClassVar[tuple[int, int | None]] = (1, None)
    nonlinearity: Nonlinearity = "linear"

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        if len({*inputs}) > 1:
            raise MisfitError(f"needs sources of one shape, got {listed(inputs)}: {_way_out(inputs)}")
        return inputs[0]


class Subtract(Merge):
    """The first source minus the second."""

    sources = (2, 2)


class Concat(Merge):
    """Sources one after the other: features, channels of a box, or members of a sequence."""

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        first = inputs[0]
        if len({(shape.form, shape.sizes[1:]) for shape in inputs}) > 1:
            raise MisfitError(
                f"needs sources of one shape but for the first size, got {listed(inputs)}: {_way_out(inputs)}"
            )
        return Shape(first.form, (sum(shape.sizes[0] for shape in inputs), *first.sizes[1:]))


def _way_out(inputs: Sequence[Shape]) -> str:
    if len({shape.form for shape in inputs}) > 1:
        return "put a flatten after what is not features"
    return "take parts of them with name[start:stop], or put a linear before the odd one"
