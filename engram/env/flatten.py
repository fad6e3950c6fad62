"""Flattens spaces: observations of any space are written into one Box, actions converted back to the environment's."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from engram.env.spec import ObservationKind, box
from engram.settings import UserError

Write = Callable[[Any], None]
WriteAll = Callable[[list[Any]], None]
Read = Callable[[np.ndarray], list[Any]]

CHANNELS = (1, 3, 4)  # grey, RGB, RGBA: usual sizes of the last dimension of an image


class RowSpace(NamedTuple):
    """The space and kind of one row of observations."""

    space: spaces.Box
    kind: ObservationKind


def row_space(space: spaces.Space, where: str) -> RowSpace:
    """A uint8 image stays one, `[H, W, C]`; all else becomes a float32 vector, in the order of `spaces.flatten`."""
    if isinstance(space, spaces.Box) and _is_image(space):
        shape = (*space.shape[1:], space.shape[0]) if _channels_first(space.shape) else space.shape
        return RowSpace(box(shape, np.dtype(np.uint8)), "image")
    return RowSpace(box((_size(space, where, "observation"),), np.dtype(np.float32)), "vector")


def writer(space: spaces.Space, row: np.ndarray) -> Write:
    """A function that writes an observation of this space directly into this row."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        if isinstance(space, spaces.Box) and row.ndim == 3:
            view = row.transpose(2, 0, 1) if _channels_first(space.shape) else row
        else:
            view = row.reshape(space.shape)
        return partial(view.__setitem__, ...)
    if isinstance(space, spaces.Discrete):
        return partial(_write_one_hot, row, int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        ends = np.cumsum(space.nvec.ravel())
        return partial(_write_one_hots, row, ends - space.nvec.ravel() - space.start.ravel())
    items = list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))
    return partial(_write_parts, _parts(items, row))


def batch_writer(space: spaces.Space, rows: np.ndarray) -> WriteAll:
    """A function that writes one observation per row. Plain vectors take one call, twice as fast as row by row."""
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return partial(_write_concatenated, rows.reshape(-1))
    return partial(_write_rows, [writer(space, row) for row in rows])


def check_observation(space: spaces.Space, where: str, observation: Any) -> None:
    """Raises if an observation does not have the shape of its space: NumPy might broadcast it silently."""
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        if np.shape(observation) != space.shape:
            raise UserError(f"{where}: an observation has shape {np.shape(observation)}, but its space is {space}")
    elif isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            check_observation(part, f"{where}[{name!r}]", observation[name])
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            check_observation(part, f"{where}[{i}]", observation[i])


def policy_action_space(space: spaces.Space, where: str) -> spaces.Discrete | spaces.MultiDiscrete | spaces.Box:
    """The action space of the policy: flat, with values from 0. `reader` converts its actions back."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.ravel())
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(int(np.prod(space.shape)), 2))
    if isinstance(space, spaces.Box):
        low, high = space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32)
        return spaces.Box(low, high, low.shape, np.float32)
    raise UserError(
        f"{where}: actions are {space}, expected Discrete, MultiDiscrete, MultiBinary or Box: "
        f"convert them with a wrapper"
    )


def reader(space: spaces.Space) -> Read:
    """A function that converts rows of policy actions to the environment's actions, clipped to the bounds of a Box."""
    if isinstance(space, spaces.Discrete):
        return partial(_read_discrete, int(space.start))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        start = space.start if isinstance(space, spaces.MultiDiscrete) else np.zeros(space.shape, space.dtype)
        return partial(_read_multi_discrete, start)
    return partial(_read_box, space)


def _is_image(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and len(space.shape) == 3


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image is [C, H, W]: the first dimension is the smallest, and the last is no usual channel count."""
    return shape[0] < min(shape[1:]) and shape[2] not in CHANNELS


def _size(space: spaces.Space, where: str, path: str) -> int:
    """The size of a flattened space."""
    if isinstance(space, spaces.Dict):
        return sum(_size(part, where, f"{path}[{name!r}]") for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return sum(_size(part, where, f"{path}[{i}]") for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.Discrete | spaces.MultiDiscrete):
        return spaces.flatdim(space)
    raise UserError(
        f"{where}: {path} is of type {type(space).__name__}, which has no fixed size: "
        f"remove it with a wrapper, e.g. minigrid.wrappers:ImgObsWrapper for MiniGrid's mission text"
    )


def _parts(items: list[tuple[Any, spaces.Space]], row: np.ndarray) -> list[tuple[Any, Write]]:
    parts, start = [], 0
    for name, space in items:
        stop = start + spaces.flatdim(space)
        parts.append((name, writer(space, row[start:stop])))
        start = stop
    return parts


def _write_concatenated(flat: np.ndarray, observations: list[Any]) -> None:
    np.concatenate(observations, out=flat, casting="same_kind")


def _write_rows(writers: list[Write], observations: list[Any]) -> None:
    for write, observation in zip(writers, observations, strict=True):
        write(observation)


def _write_parts(parts: list[tuple[Any, Write]], observation: Any) -> None:
    for name, write in parts:
        write(observation[name])


def _write_one_hot(row: np.ndarray, start: int, value: Any) -> None:
    row[:] = 0
    row[int(value) - start] = 1


def _write_one_hots(row: np.ndarray, offsets: np.ndarray, values: Any) -> None:
    row[:] = 0
    row[np.asarray(values).ravel() + offsets] = 1


def _read_discrete(start: int, actions: np.ndarray) -> list[Any]:
    return (actions + start if start else actions).tolist()


def _read_multi_discrete(start: np.ndarray, actions: np.ndarray) -> list[Any]:
    return list(actions.reshape(len(actions), *start.shape).astype(start.dtype) + start)


def _read_box(space: spaces.Box, actions: np.ndarray) -> list[Any]:
    values = actions.reshape(len(actions), *space.shape).astype(np.float64)
    if np.issubdtype(space.dtype, np.integer):
        np.rint(values, out=values)
    return list(np.clip(values, space.low, space.high).astype(space.dtype))
