"""What flows between components: its form and its sizes, without the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from engram.env.spec import EnvSpec

Form = Literal[
    "tokens",  # bytes [M, 3], as observed
    "located tokens",  # [M]: cells, features and values in numbers that can index
    "embedded tokens",  # [M, F]
    "image",  # [H, W, C], as observed
    "box",  # [C, H, W]
    "sequence",  # [Q, D]
    "features",  # [I]; a vector that is observed is this too
    "embeddings",  # [A, E], the same for all rows
]
OBSERVED = {"tokens": "tokens", "image": "image", "features": "vector"}  # form -> the observation of that form
SLICED = ("box", "sequence", "features")  # forms of which a part can be taken, along the first of their sizes

BRIDGES: dict[tuple[Form, Form], str] = {  # (what is there, what is read) -> what leads from one to the other
    ("tokens", "located tokens"): "put a value_norm between",
    ("tokens", "embedded tokens"): "put a value_norm and a fourier_embedding between",
    ("tokens", "box"): "put a tokens_to_box and a normaliser between, or use token_conv2d",
    (
        "tokens",
        "features",
    ): "put a token_conv2d and a flatten between",
    ("located tokens", "embedded tokens"): "put a fourier_embedding between",
    ("embedded tokens", "sequence"): "put a latent_attention between",
    ("embedded tokens", "features"): "put a latent_attention of one query between",
    ("image", "features"): "put an image_encoder between",
    ("box", "features"): "put a flatten between",
    ("sequence", "features"): "put a self_attention or a flatten between",
}


@dataclass(frozen=True)
class Shape:
    form: Form
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.form} [{', '.join(map(str, self.sizes))}]"


class Target(NamedTuple):
    """What a policy is built for."""

    spec: "EnvSpec"
    logits: int  # numbers per row that the action space asks for

    @property
    def continuous(self) -> bool:
        return action_form(self.spec) == "continuous"


class MisfitError(ValueError):
    """Inputs that a component cannot work with; the text says what was got, what was expected, and a way out."""


def listed(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, shapes))


def observed(spec: "EnvSpec") -> Shape:
    """The shape of `_obs_`."""
    sizes = tuple(spec.single_observation_space.shape)
    if spec.observation_kind == "vector":
        return Shape("features", sizes)
    return Shape(spec.observation_kind, sizes)


def action_form(spec: "EnvSpec") -> Literal["discrete", "continuous"]:
    from gymnasium import spaces  # here: settings are checked without it

    return "continuous" if isinstance(spec.single_action_space, spaces.Box) else "discrete"
