"""Writes observations of any space into rows, part by part. Raises for values that do not fit their space."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from engram.env.parts import (
    ACTION_MASK,
    OBSERVATION,
    OBSERVED,
    PREVIOUS_ACTION,
    TEXT_SIZE,
    Leaf,
    Part,
    channels_first,
    leaves,
)
from engram.env.spec import EnvSpec

Write = Callable[[Any], None]

_shape_of = attrgetter("shape")


class MisfitError(ValueError):
    """An observation that does not fit its space. The message names the part, what was got and what was expected."""

    row = 0  # the index of the observation, if several were written together


class RowWriter:
    """Writes observations of a space into rows of buffers."""

    def __init__(self, space: spaces.Space, spec: EnvSpec, rows: np.ndarray) -> None:
        views = spec.packing.views(rows) if spec.packing is not None else {OBSERVATION: rows}
        parts = {part.name: part for part in spec.all_parts}
        stored = [leaf for leaf in leaves(space) if leaf.name in parts]
        self._masks = views.get(ACTION_MASK)
        extended = PREVIOUS_ACTION in parts and {leaf.keys[0] for leaf in stored} <= {OBSERVED, PREVIOUS_ACTION}
        self._hidden_keys = 1 if extended else 0  # messages name the keys of the environment's own observation
        titles = {leaf.name: _title(leaf.keys[self._hidden_keys :]) for leaf in stored}
        self._writers = [
            [(leaf, _writer(titles[leaf.name], leaf, parts[leaf.name], views[leaf.name][row, ...])) for leaf in stored]
            for row in range(len(rows))
        ]
        plain = isinstance(space, spaces.Box) and len(space.shape) == 1 and spec.packing is None
        self._vectors, self._shape = rows.reshape(-1) if plain else None, space.shape

    def write_all(self, observations: Sequence[Any], infos: Sequence[Any]) -> None:
        """Writes one observation per row. Plain vectors take one call, twice as fast as row by row."""
        if self._vectors is not None and _write_vectors(self._vectors, self._shape, observations):
            return
        for row, (observation, info) in enumerate(zip(observations, infos, strict=True)):
            try:
                self.write(row, observation)
                if self._masks is not None:
                    self.write_mask(row, mask_of(observation, info))
            except MisfitError as error:
                error.row = row
                raise

    def write(self, row: int, observation: Any) -> None:
        """Writes an observation, without a mask."""
        for leaf, write in self._writers[row]:
            write(_value(leaf, observation, self._hidden_keys))

    def write_mask(self, row: int, mask: Any) -> None:
        """Writes the action mask of a row: an array, or one array for each action, of 0 and 1."""
        assert self._masks is not None
        if mask is None:
            raise MisfitError(f"the action mask is missing: neither the info nor the observation has {ACTION_MASK!r}")
        flat = flat_mask(mask)
        expected = self._masks.shape[1]
        if flat.shape != (expected,):
            raise MisfitError(f"the action mask has {flat.size} entries, expected {expected}, one for each action")
        if not flat.any():
            raise MisfitError("the action mask allows no action: at least one entry must be 1")
        self._masks[row] = flat


def _value(leaf: Leaf, observation: Any, hidden_keys: int) -> Any:
    try:
        return leaf.of(observation)
    except (KeyError, IndexError, TypeError):
        found = observation
        for depth, key in enumerate(leaf.keys):  # up to the first missing key
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                got = f"the keys {', '.join(map(str, found))}" if isinstance(found, dict) else repr(found)
                raise MisfitError(f"{_title(leaf.keys[hidden_keys : depth + 1])} is missing: got {got[:200]}") from None
        raise


def _writer(title: str, leaf: Leaf, part: Part, out: np.ndarray) -> Write:
    """A function that writes a value of this leaf directly into its place in one row."""
    space = leaf.space
    if isinstance(space, spaces.Box):
        return partial(_write_array, title, _in_shape_of_space(space, part, out), _symbol_limit(part))
    if isinstance(space, spaces.MultiBinary):
        return partial(_write_array, title, out.reshape(space.shape), None)
    if isinstance(space, spaces.Discrete):
        start, number = int(space.start), int(space.n)
        if part.kind == "symbols":
            return partial(_write_symbol, title, out, start, number)
        return partial(_write_one_hot, title, out, start, number)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel(), space.start.ravel()
        if part.kind == "symbols":
            return partial(_write_symbols, title, out, starts, sizes, space.shape)
        return partial(_write_one_hots, title, out, starts, sizes, space.shape)
    return partial(_write_text, title, out)


def _in_shape_of_space(space: spaces.Box, part: Part, out: np.ndarray) -> np.ndarray:
    """A view of a stored part in the shape of its space: stacked frames and leading channels are stored last."""
    shape = space.shape
    if len(part.shape) == 3 and len(shape) == 4:
        return out.reshape(*part.shape[:2], shape[0], shape[3]).transpose(2, 0, 1, 3)
    if len(part.shape) == 3 and len(shape) == 3 and channels_first(shape):
        return out.transpose(2, 0, 1)
    return out.reshape(shape)


def _symbol_limit(part: Part) -> int | None:
    return part.symbols[0] if part.kind == "symbols" else None


def _write_array(title: str, out: np.ndarray, symbols: int | None, value: Any) -> None:
    array = np.asarray(value)
    if array.shape != out.shape:
        wrong = "is None, expected an array of shape" if value is None else f"has shape {array.shape}, expected"
        raise MisfitError(f"{title} {wrong} {out.shape}")
    if array.dtype != out.dtype and not np.can_cast(array.dtype, out.dtype, "same_kind"):
        array = _converted(title, array, out.dtype)
    if symbols is not None and array.size and not 0 <= array.min() <= array.max() < symbols:
        raise MisfitError(
            f"{title} has the symbol {_outside(array, symbols)}, expected 0 to {symbols - 1} (set env.symbols to the "
            f"number of symbols, or to false if these are pixels)"
        )
    out[...] = array


def _converted(title: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The values in a different dtype, if it can represent each of them."""
    if array.dtype.kind not in "biuf":
        raise MisfitError(f"{title} has dtype {array.dtype}, expected {dtype}")
    if dtype.kind in "iub":
        limits = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if array.dtype.kind == "f":
            raise MisfitError(f"{title} has dtype {array.dtype}, expected {dtype}: floats would lose their fractions")
        if array.size and not limits[0] <= array.min() <= array.max() <= limits[1]:
            raise MisfitError(f"{title} has values from {array.min()} to {array.max()}, and {dtype} cannot hold them")
    return array.astype(dtype)


def _outside(array: np.ndarray, number: int) -> int:
    return int(array.max()) if array.max() >= number else int(array.min())


def _index(title: str, start: int, number: int, value: Any) -> int:
    """A value of a Discrete space, from 0."""
    try:
        index = int(value) - start
        whole = index + start == value
    except (TypeError, ValueError):
        raise MisfitError(f"{title} is {value!r}, expected one integer") from None
    if not whole or not 0 <= index < number:
        raise MisfitError(f"{title} is {value!r}, expected an integer from {start} to {start + number - 1}")
    return index


def _indices(title: str, starts: np.ndarray, sizes: np.ndarray, shape: tuple[int, ...], values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind not in "iub":
        raise MisfitError(
            f"{title} has shape {array.shape} and dtype {array.dtype}, expected integers of shape {shape}"
        )
    index = array.ravel().astype(np.int64) - starts
    if ((index < 0) | (index >= sizes)).any():
        bad = int(np.argmax((index < 0) | (index >= sizes)))
        last = starts[bad] + sizes[bad] - 1
        raise MisfitError(f"{title} has the value {array.ravel()[bad]} at {bad}, expected {starts[bad]} to {last}")
    return index


def _write_symbol(title: str, out: np.ndarray, start: int, number: int, value: Any) -> None:
    out[...] = _index(title, start, number, value)


def _write_one_hot(title: str, out: np.ndarray, start: int, number: int, value: Any) -> None:
    index = _index(title, start, number, value)
    out[:] = 0
    out[index] = 1


def _write_symbols(
    title: str, out: np.ndarray, starts: np.ndarray, sizes: np.ndarray, shape: tuple[int, ...], values: Any
) -> None:
    out[:] = _indices(title, starts, sizes, shape, values)


def _write_one_hots(
    title: str, out: np.ndarray, starts: np.ndarray, sizes: np.ndarray, shape: tuple[int, ...], values: Any
) -> None:
    index = _indices(title, starts, sizes, shape, values)
    out[:] = 0
    out[np.cumsum(sizes) - sizes + index] = 1


def _write_text(title: str, out: np.ndarray, value: Any) -> None:
    if not isinstance(value, str):
        raise MisfitError(f"{title} is {value!r}, expected a text")
    out[:] = _word_counts(value)


@lru_cache(maxsize=4096)
def _word_counts(text: str) -> np.ndarray:
    """The number of occurrences of each word; words share TEXT_SIZE entries by their hash."""
    counts = np.zeros(TEXT_SIZE, np.float32)
    for word in text.lower().replace(",", " ").split():
        counts[zlib.crc32(word.encode()) % TEXT_SIZE] += 1
    return counts


def flat_mask(mask: Any) -> np.ndarray:
    """A mask as one array of flags; a sequence has one mask for each action."""
    masks = mask if isinstance(mask, tuple | list) else [mask]
    flat = np.concatenate([np.asarray(each).ravel() for each in masks] or [np.zeros(0, np.bool_)])
    if flat.dtype.kind not in "biuf" or ((flat != 0) & (flat != 1)).any():
        raise MisfitError(f"the action mask has the values {flat[:16].tolist()}, expected 0 and 1")
    return flat.astype(np.bool_)


def _write_vectors(flat: np.ndarray, shape: tuple[int, ...] | None, observations: Sequence[Any]) -> bool:
    """Writes vectors one after the other into a flat array; False if they do not fit, so that each is checked."""
    try:
        if [*map(_shape_of, observations)].count(shape) != len(observations):
            return False
        np.concatenate(observations, out=flat, casting="same_kind")
    except (AttributeError, TypeError):  # lists, for example
        return False
    return True


def mask_of(observation: Any, info: Any) -> Any:
    """The action mask in an info or in a part of an observation; None without a mask."""
    if isinstance(info, Mapping) and ACTION_MASK in info:
        return info[ACTION_MASK]
    if isinstance(observation, Mapping) and ACTION_MASK in observation:
        return observation[ACTION_MASK]
    return None


def _title(keys: Iterable[str | int]) -> str:
    return "the observation" + "".join(f"[{key!r}]" for key in keys)
