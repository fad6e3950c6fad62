"""Components that fit anywhere in a graph: layers, and merges of several sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from engram.agent.components.component import (
    BuildContext,
    Component,
    Form,
    LayerComponent,
    Nonlinearity,
    Positive,
    Shape,
    ShapeError,
    join,
)

if TYPE_CHECKING:
    from torch import nn

    from engram.agent.layers import Convolution


class LinearComponent(LayerComponent):
    """A linear layer. `size: actions` is the number of logits the action space needs."""

    reads = ("features",)
    fixed_shape = True
    size: Positive | Literal["actions"]

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("features", (context.logits if self.size == "actions" else self.size,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from torch import nn

        from engram.agent.layers import initialise

        (size,) = self.output_shape(inputs, context).sizes
        return initialise(nn.Linear(inputs[0].sizes[0], size), self.nonlinearity, self.initialisation)


class JointLinearComponent(LinearComponent):
    """A linear layer of several sources. It ignores all but the first until training finds them useful."""

    num_sources = (1, None)

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.heads import ignore_at_first
        from engram.agent.layers import JointLinear, initialise

        (size,) = self.output_shape(inputs, context).sizes
        input_sizes = [shape.sizes[0] for shape in inputs]
        layer = initialise(JointLinear(sum(input_sizes), size), self.nonlinearity, self.initialisation)
        ignore_at_first(layer, input_sizes[0])
        return layer


class Conv2dComponent(LayerComponent):
    """A convolution. In small boxes, kernel and stride shrink until `leave` cells a side remain."""

    reads: ClassVar[tuple[Form, ...]] = ("box",)
    channels: Positive
    kernel: Positive
    stride: Positive = 1
    leave: Positive = 1

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        _, height, width = inputs[0].sizes
        return Shape("box", (self.channels, *self._fit(height, width).output))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.layers import Conv2d, initialise

        channels, height, width = inputs[0].sizes
        sizes = self._fit(height, width)
        layer = Conv2d(channels, self.channels, sizes.kernel, sizes.stride)
        return initialise(layer, self.nonlinearity, self.initialisation)

    def _fit(self, height: int, width: int) -> Convolution:
        from engram.agent.layers import fit_convolution

        return fit_convolution((height, width), self.kernel, self.stride, self.leave)


class TokenConv2dComponent(Conv2dComponent):
    """A convolution that reads tokens: tokens_to_box, normaliser and conv2d in one, and faster."""

    reads = ("tokens",)

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("box", (self.channels, *self._fit(*context.spec.window).output))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.encoders.box import TokenConv2d
        from engram.agent.layers import initialise

        sizes = self._fit(*context.spec.window)
        layer = TokenConv2d(context.spec, self.channels, sizes.kernel, sizes.stride)
        initialise(layer.conv, self.nonlinearity, self.initialisation)
        return layer


class FlattenComponent(Component):
    """A box or a sequence as one vector."""

    reads = ("box", "sequence")

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("features", (math.prod(inputs[0].sizes),))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from torch import nn

        return nn.Flatten()


class DropoutComponent(Component):
    """Dropout with probability `p`, in training mode.

    Replaying a rollout samples a different mask, so replayed log-probabilities differ from the stored ones.
    Hence `allow_noise` must be set as well.
    """

    reads = ("box", "sequence", "features")
    p: Annotated[float, Field(ge=0, lt=1)]
    allow_noise: bool = False

    @model_validator(mode="after")
    def _noise_is_allowed(self) -> DropoutComponent:
        if self.p > 0 and not self.allow_noise:
            raise ValueError(
                f"p={self.p:g} makes replayed log-probabilities differ from those of acting, which stops a run: "
                "remove the dropout, or set allow_noise: true and raise trainer.replay_error_bound"
            )
        return self

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return inputs[0]

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from torch import nn

        return nn.Dropout(self.p)


class MergeComponent(Component):
    """Combines several sources of the same shape, elementwise."""

    reads = ("box", "sequence", "features")
    num_sources: ClassVar[tuple[int, int | None]] = (1, None)
    nonlinearity: Nonlinearity = "linear"

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        if len({*inputs}) > 1:
            raise ShapeError(f"needs sources of the same shape, got {join(inputs)}: {_fix(inputs)}")
        return inputs[0]


class AddComponent(MergeComponent):
    """The sum of its sources."""

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.layers import Add

        return Add()


class MeanComponent(MergeComponent):
    """The mean of its sources."""

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.layers import Mean

        return Mean()


class SubtractComponent(MergeComponent):
    """The first source minus the second."""

    num_sources = (2, 2)

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.layers import Subtract

        return Subtract()


class ConcatComponent(MergeComponent):
    """Concatenates along the first dimension: features, channels of a box, or elements of a sequence."""

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        first = inputs[0]
        if len({(shape.form, shape.sizes[1:]) for shape in inputs}) > 1:
            raise ShapeError(
                f"needs sources of the same shape except for the first size, got {join(inputs)}: {_fix(inputs)}"
            )
        return Shape(first.form, (sum(shape.sizes[0] for shape in inputs), *first.sizes[1:]))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.layers import Concat

        return Concat()


def _fix(inputs: Sequence[Shape]) -> str:
    if len({shape.form for shape in inputs}) > 1:
        return "put a flatten after each source that is not features"
    return "slice them with name[start:stop], or put a linear before the odd one"
