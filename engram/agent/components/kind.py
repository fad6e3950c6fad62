"""Kind: what a kind of component is: its options, how many sources it takes, and the shape it makes of theirs.

Light to import: a graph is checked before torch is loaded. How each kind is built is in `library.py`.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from engram.agent.components.shapes import Form, Shape, Target
from engram.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Scale = Annotated[float, Field(ge=0)]
Nonlinearity = Literal["linear", "relu", "gelu", "tanh"]
Initialisation = Literal["orthogonal", "xavier", "normal", "max_0_01"]


class Kind(Settings):
    """A component's options. A subclass is a kind, or what several kinds share."""

    reads: ClassVar[tuple[Form, ...]]
    sources: ClassVar[tuple[int, int | None]] = (1, 1)  # the least and the most it takes; None: any number
    same_for_all_inputs: ClassVar[bool] = False  # whether its shape depends on its options alone

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        """What it gives for these inputs, each of a form it reads; raises `MisfitError`."""
        raise NotImplementedError


class Weighted(Kind):
    """A kind with layers of weights. The scales are factors of the policy's clip range and of the L2-init loss."""

    clip_scale: Scale = 1.0
    l2_init_scale: Scale = 1.0
    analyze_weights: bool = True
    effective_rank: bool = True


class Layer(Weighted):
    """One layer, and the nonlinearity after it, which also sets the gain of the initialisation."""

    nonlinearity: Nonlinearity = "linear"
    initialisation: Initialisation = "orthogonal"
