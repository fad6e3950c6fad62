"""Observation parts: how each leaf of an observation space is stored, and how the parts of a row are packed into bytes.

A Dict or Tuple observation has one part per leaf. A row of it is packed into bytes, so that buffers, shared memory,
snapshots and experience handle one array; `PackedRows` gives the parts as views. All other spaces have one part, which
is stored as it is.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from gymnasium import spaces

from engram.settings import UserError

PartKind = Literal["tokens", "image", "symbols", "vector"]

OBSERVATION = ""  # the only part of a space without names
ACTION_MASK = "action_mask"
OBSERVED = "observation"  # the environment's own observation, where the previous action stands beside it
PREVIOUS_ACTION = "previous_action"  # beside observations that are only symbols
SYMBOLS = 16  # values of a symbol grid whose space does not give their number
MAX_SYMBOLS = 32  # an integer grid with a larger range is an image or a vector
MAX_GRID = 32  # cells a side of a symbol grid that is recognised by its values
TEXT_SIZE = 64  # hashed words of a text
CHANNELS = (1, 3, 4)  # grey, RGB, RGBA: usual sizes of the last dimension of an image
ALIGNMENT = 8  # bytes
MAX_SIZE = 2**22  # of anything in a spec that is read from a file


@dataclass(frozen=True)
class Part:
    """One part of an observation, as a policy receives it."""

    name: str
    kind: PartKind
    space: spaces.Box  # shape and dtype of one row
    symbols: tuple[int, ...] = ()  # kind symbols: the number of values, for each entry of the last dimension

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.space.dtype)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "symbols": list(self.symbols),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Part":
        name, shape, dtype = (
            str(data.get("name", OBSERVATION)),
            stored_shape(data["shape"]),
            np.dtype(str(data["dtype"])),
        )
        if dtype.kind not in "biuf" or data["kind"] not in get_args(PartKind):
            raise ValueError(f"no observations of the kind {data['kind']} and dtype {dtype}")
        if data["kind"] == "symbols":
            return _symbol_part(name, shape, dtype, tuple(map(stored_size, data["symbols"])))
        return cls(name, data["kind"], box(shape, dtype))


def stored_shape(sizes: Any) -> tuple[int, ...]:
    """A shape from a file, which a stranger may have written: raises before much is allocated."""
    shape = tuple(map(stored_size, sizes))
    stored_size(math.prod(shape))
    return shape


def stored_size(size: Any) -> int:
    if not isinstance(size, int) or not 0 <= size <= MAX_SIZE:
        raise ValueError(f"a size of {str(size)[:50]}, expected a whole number up to {MAX_SIZE:,}")
    return size


class Leaf(NamedTuple):
    """A leaf of an observation space: the name of its part, and the keys that lead to it."""

    name: str
    keys: tuple[Any, ...]
    space: spaces.Space

    def of(self, observation: Any) -> Any:
        """The leaf's value in an observation."""
        for key in self.keys:
            observation = observation[key]
        return observation


def leaves(space: spaces.Space) -> list[Leaf]:
    """The leaves of a space in order. Names of nested leaves are joined by a slash; those of a Tuple are numbers."""
    return list(_leaves(space, ())) if _has_parts(space) else [Leaf(OBSERVATION, (), space)]


def _has_parts(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Dict | spaces.Tuple)


def _leaves(space: spaces.Space, keys: tuple[Any, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*keys, index))
    else:
        yield Leaf("/".join(map(str, keys)), keys, space)


def holds_text(space: spaces.Space) -> bool:
    """Whether values are strings: Text, and others, such as MiniGrid's missions."""
    return space.dtype is not None and space.dtype.kind == "U"


def part_of(leaf: Leaf, where: str, symbols: int | None = None) -> Part:
    """The part that stores a leaf. `symbols`: the number of values, if this grid of bytes is known to hold symbols."""
    space, nested = leaf.space, bool(leaf.keys)
    if isinstance(space, spaces.Box):
        return _box_part(leaf.name, space, symbols)
    if nested and isinstance(space, spaces.Discrete):
        return _symbol_part(leaf.name, (), np.dtype(np.int32), (int(space.n),))
    if nested and isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        return _symbol_part(leaf.name, (len(sizes),), np.dtype(np.int32), sizes)
    if holds_text(space):
        return Part(leaf.name, "vector", box((TEXT_SIZE,), np.dtype(np.float32)))
    if isinstance(space, spaces.MultiBinary | spaces.Discrete | spaces.MultiDiscrete):
        return Part(leaf.name, "vector", box((spaces.flatdim(space),), np.dtype(np.float32)))
    path = "observation" + "".join(f"[{key!r}]" for key in leaf.keys)
    raise UserError(
        f"{where}: {path} is of type {type(space).__name__}, which has no fixed size: remove or pad it with a wrapper"
    )


def _box_part(name: str, space: spaces.Box, symbols: int | None) -> Part:
    shape, dtype = image_shape(space), np.dtype(space.dtype)
    if symbols is None:
        symbols = _declared_symbols(space)
    if symbols is not None and len(space.shape) >= 2:
        grid = shape or (space.shape if len(space.shape) > 2 else (*space.shape, 1))  # [H, W] gets one channel
        stored = dtype if dtype == np.uint8 else np.dtype(np.int32)
        return _symbol_part(name, grid, stored, (symbols,) * grid[-1])
    if shape is not None:
        stored = dtype if dtype in (np.uint8, np.bool_) else np.dtype(np.float32)
        return Part(name, "image", box(shape, stored))
    return Part(name, "vector", box((math.prod(space.shape),), np.dtype(np.float32)))


def _symbol_part(name: str, shape: tuple[int, ...], dtype: np.dtype, symbols: tuple[int, ...]) -> Part:
    return Part(name, "symbols", spaces.Box(0, max(symbols) - 1, shape, dtype.type), symbols)


def may_be_symbols(space: spaces.Space) -> bool:
    """Whether a space is a small grid of bytes, whose values decide whether they are pixels or symbols."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return False
    shape = image_shape(space)
    return shape is not None and max(shape[:2]) <= MAX_GRID and _declared_symbols(space) is None


def _declared_symbols(space: spaces.Box) -> int | None:
    """The number of values of an integer grid, if its bounds allow only a few."""
    if not np.issubdtype(space.dtype, np.integer) or len(space.shape) < 2 or math.prod(space.shape) == 0:
        return None
    largest = int(space.high.max())
    return largest + 1 if int(space.low.min()) == 0 and 1 < largest < MAX_SYMBOLS else None


def image_shape(space: spaces.Box) -> tuple[int, int, int] | None:
    """`[H, W, C]` if a Box is an image, else None.

    Images are bytes, numbers or flags in three dimensions, bytes in two dimensions with 8 or more cells a side, or a
    stack of images, whose frames become channels.
    """
    shape, dtype = space.shape, np.dtype(space.dtype)
    if len(shape) == 2 and dtype == np.uint8 and min(shape) >= 8:
        return (*shape, 1)
    if not (dtype in (np.uint8, np.bool_) or dtype.kind in "iuf"):
        return None
    if len(shape) == 4 and shape[3] in CHANNELS:
        return (shape[1], shape[2], shape[0] * shape[3])
    if len(shape) != 3:
        return None
    return (shape[1], shape[2], shape[0]) if channels_first(shape) else (shape[0], shape[1], shape[2])


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image is [C, H, W]: the first dimension is the smallest, and the last is not a usual channel count."""
    return shape[0] < min(shape[1:]) and shape[2] not in CHANNELS


def box(shape: tuple[int, ...], dtype: np.dtype) -> spaces.Box:
    """A Box of this shape, bounded by the range of the dtype."""
    if dtype == np.bool_:
        return spaces.Box(0, 1, shape, np.bool_)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, shape, dtype.type)
    return spaces.Box(-np.inf, np.inf, shape, dtype.type)


class Slot(NamedTuple):
    """The place of a part in a packed row."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: np.dtype


class PackedRows:
    """The layout of rows of bytes that hold several parts."""

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        self.slots: dict[str, Slot] = {}
        end = 0
        for name, (shape, dtype) in fields.items():
            size = math.prod(shape) * dtype.itemsize
            self.slots[name] = Slot(end, end + size, shape, dtype)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self.size = end

    def views(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The parts [..., *shape] of rows [..., size]; what is written to them is written to the rows."""
        return {
            name: rows[..., slot.start : slot.stop].view(slot.dtype).reshape(*rows.shape[:-1], *slot.shape)
            for name, slot in self.slots.items()
        }


def describe_parts(
    space: spaces.Space, where: str, symbols: int | bool | None, play: Callable[[], Iterable[Any]]
) -> list[Part]:
    """The parts of a space.

    A grid of bytes with at most MAX_GRID cells a side holds symbols if `symbols` gives their number, or if it is None
    and no value of SYMBOLS or more is in the observations that `play` gives; False: bytes are pixels.
    """
    found = leaves(space)
    unclear = [leaf for leaf in found if may_be_symbols(leaf.space)]
    if symbols is None and unclear:
        largest = dict.fromkeys((leaf.name for leaf in unclear), 0)
        for observation in play():
            for leaf in unclear:
                largest[leaf.name] = max(largest[leaf.name], _largest(leaf, observation))
        numbers = {leaf.name: SYMBOLS for leaf in unclear if largest[leaf.name] < SYMBOLS}
    else:
        numbers = {leaf.name: int(symbols) for leaf in unclear} if symbols else {}
    return [part_of(leaf, where, numbers.get(leaf.name)) for leaf in found]


def _largest(leaf: Leaf, observation: Any) -> int:
    """The largest value of a grid of bytes; 0 if the value is not a grid, which the run reports later with its step."""
    try:
        grid = np.asarray(leaf.of(observation))
    except (KeyError, IndexError, TypeError):
        return 0
    return int(grid.max()) if grid.size and grid.dtype.kind in "iub" else 0
