"""Observations as an environment gives them, one or a batch, in the form that a policy reads."""

# B rows

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from engram.env.flatten import batch_writer, check_observation
from engram.env.single import RowSpaces
from engram.env.spec import EnvSpec
from engram.settings import UserError


class Rows(NamedTuple):
    observations: np.ndarray  # [B, ...] as policies read them
    single: bool  # one observation was given, without a dimension for rows


def to_rows(observation: Any, own: RowSpaces, spec: EnvSpec) -> Rows:
    """Convert one observation or a batch: arrays with a first dimension for rows, or a list of observations."""
    singles, single = _split(observation, own.observation)
    for each in singles:
        check_observation(own.observation, "observation", each)
    box = spec.single_observation_space
    rows = np.zeros((len(singles), *box.shape), box.dtype)
    batch_writer(own.observation, rows)(singles)
    for transform in own.transforms:
        rows[...] = transform(rows)
    return Rows(rows, single)


def _split(observation: Any, space: spaces.Space) -> tuple[list[Any], bool]:
    if _fits(observation, space):
        return [_leaves(observation, space)], True
    if isinstance(observation, list) and observation and all(_fits(each, space) for each in observation):
        return [_leaves(each, space) for each in observation], False
    rows = _rows(observation, space)
    if rows is None:
        raise UserError(
            f"observation: {_describe(observation)} is neither one observation of {space} nor a batch of them, "
            "with a first dimension for rows"
        )
    return rows, False


def _fits(observation: Any, space: spaces.Space) -> bool:
    """Whether this is one observation of the space, by its structure and shapes."""
    if isinstance(space, spaces.Dict):
        return isinstance(observation, Mapping) and all(
            name in observation and _fits(observation[name], part) for name, part in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        return (
            isinstance(observation, tuple | list)
            and len(observation) == len(space.spaces)
            and all(map(_fits, observation, space.spaces))
        )
    return _shape(observation) == (space.shape or ())


def _rows(observation: Any, space: spaces.Space) -> list[Any] | None:
    """The observations of a batch; None if it is none."""
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping) or not all(name in observation for name in space.spaces):
            return None
        parts = [_rows(observation[name], part) for name, part in space.spaces.items()]
        names = list(space.spaces)
        return _joined(parts, lambda values: dict(zip(names, values, strict=True)))
    if isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            return None
        return _joined([_rows(part, each) for part, each in zip(observation, space.spaces, strict=True)], tuple)
    shape = _shape(observation)
    if shape is None or not shape or shape[1:] != (space.shape or ()):
        return None
    return list(np.asarray(observation))


def _joined(parts: list[list[Any] | None], join: Any) -> list[Any] | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({len(part) for part in known}) > 1:
        return None
    return [join(values) for values in zip(*known, strict=True)]


def _leaves(observation: Any, space: spaces.Space) -> Any:
    """The observation with arrays for its leaves."""
    if isinstance(space, spaces.Dict):
        return {name: _leaves(observation[name], part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_leaves, observation, space.spaces))
    return np.asarray(observation)


def _shape(observation: Any) -> tuple[int, ...] | None:
    """The shape of an array of numbers; None for anything else."""
    try:
        array = np.asarray(observation)
    except (ValueError, TypeError, RuntimeError):  # ragged lists, tensors on another device
        return None
    return None if array.dtype.kind not in "biuf" else array.shape


def _describe(observation: Any) -> str:
    if isinstance(observation, Mapping):
        return f"a mapping of {', '.join(f'{name}: {_describe(part)}' for name, part in observation.items())}"
    if (shape := _shape(observation)) is not None:
        return f"an array of shape {shape}" if shape else f"the number {observation}"
    return f"{type(observation).__name__} {str(observation)[:40]}"
