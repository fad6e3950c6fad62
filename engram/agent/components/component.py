"""Component: the base class of YAML components. Each is one class: its options, its output shape, how it is built.

To add a component, write a subclass and register it in `COMPONENTS` (in this package's `__init__.py`):

    class ScaleComponent(Component):
        "Multiplies features by a constant."

        reads = ("features",)
        factor: float = 1.0

        def output_shape(self, inputs, context):
            return inputs[0]

        def build(self, inputs, context):
            from my_package import Scale

            return Scale(self.factor)

Graphs are checked before torch is loaded, so `build` imports what it needs itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from engram.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from engram.env.spec import EnvSpec

Form = Literal[
    "tokens",  # bytes [M, 3], as observed
    "located tokens",  # [M]: decoded cells, features and values
    "embedded tokens",  # [M, F]
    "image",  # [H, W, C], as observed
    "symbols",  # integers [H, W, C], [K] or one, as observed
    "parts",  # a Dict or Tuple observation
    "box",  # [C, H, W]
    "sequence",  # [Q, D]
    "features",  # [I]; vector observations have this form too
    "embeddings",  # [A, E], shared by all rows
]

Positive = Annotated[int, Field(ge=1)]
Scale = Annotated[float, Field(ge=0)]
Nonlinearity = Literal["linear", "relu", "gelu", "tanh"]
Initialisation = Literal["orthogonal", "xavier", "normal", "max_0_01"]


@dataclass(frozen=True)
class Shape:
    """The form and sizes of a component's output, without the batch dimension."""

    form: Form
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.form} [{', '.join(map(str, self.sizes))}]"


class BuildContext(NamedTuple):
    """The environment a policy is built for."""

    spec: EnvSpec
    logits: int  # numbers per row that the action space needs

    @property
    def continuous(self) -> bool:
        """Whether actions are continuous."""
        from gymnasium import spaces  # slow to import, and settings are checked without it

        return isinstance(self.spec.single_action_space, spaces.Box)


class ShapeError(ValueError):
    """Raised for inputs a component cannot read; names what it got, what it expected, and the fix."""


class Component(Settings):
    """A component's options (its fields), and how it is checked and built."""

    reads: ClassVar[tuple[Form, ...]]  # the forms of input it accepts
    num_sources: ClassVar[tuple[int, int | None]] = (1, 1)  # minimum and maximum; None: no maximum
    fixed_shape: ClassVar[bool] = False  # whether the output shape depends on the options alone, not on the inputs

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        """The output shape for these inputs, each of a form in `reads`. Raises `ShapeError` if they do not fit."""
        raise NotImplementedError

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        """The module. It is called with its inputs in order; a module that is a `Core` gets memory."""
        raise NotImplementedError


class WeightedComponent(Component):
    """A component with weights. The scales multiply the policy's clip range and the L2-init loss."""

    clip_scale: Scale = 1.0
    l2_init_scale: Scale = 1.0
    analyze_weights: bool = True
    effective_rank: bool = True


class LayerComponent(WeightedComponent):
    """One layer and the nonlinearity after it, which also sets the gain of the initialisation."""

    nonlinearity: Nonlinearity = "linear"
    initialisation: Initialisation = "orthogonal"


def join(shapes: Sequence[Shape]) -> str:
    """Shapes as text, for error messages."""
    return " and ".join(map(str, shapes))
