"""Converts an environment's observations, one or a batch, into the rows that a policy reads."""

# B rows

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from engram.api.make_env import RowSpaces
from engram.env.actions import encode_action
from engram.env.block import Buffers
from engram.env.parts import ACTION_MASK, OBSERVED, PREVIOUS_ACTION, holds_text
from engram.env.row_writer import MisfitError, RowWriter
from engram.env.spec import EnvSpec
from engram.settings import UserError


class Rows(NamedTuple):
    observations: np.ndarray  # [B, ...] as policies read them
    single: bool  # one observation was given, without a dimension for rows


class ObservationRows:
    """Converts one observation or a batch: arrays with a first dimension for rows, or a list of observations."""

    def __init__(self, env_spaces: RowSpaces, spec: EnvSpec) -> None:
        self._env, self._spec = env_spaces, spec
        self._has_previous_action = any(part.name == PREVIOUS_ACTION for part in spec.parts)
        space = env_spaces.observation
        names = space.spaces if isinstance(space, spaces.Dict) else ()
        self._masks_in_infos = spec.action_mask and ACTION_MASK not in names
        self._space = spaces.Dict({OBSERVED: space}) if self._has_previous_action else space
        self._rows, self._writer = np.zeros(0), RowWriter(self._space, spec, Buffers.allocate(spec, 0).observations)

    def convert(self, observation: Any, action_masks: Any = None) -> Rows:
        """The rows are valid until the next call."""
        if action_masks is not None and not self._spec.action_mask:
            raise UserError(f"action_masks: {self._spec.name} had no action masks in training: leave them out")
        if action_masks is None and self._masks_in_infos:
            raise UserError(
                f"action_masks: {self._spec.name} gives masks in its infos: call act(observation, "
                "action_masks=info['action_mask']), or train with env.action_masks=false"
            )
        singles, single = _split(observation, self._env.observation)
        if len(self._rows) != len(singles):
            self._rows = Buffers.allocate(self._spec, len(singles)).observations
            self._writer = RowWriter(self._space, self._spec, self._rows)
        shown = [{OBSERVED: each} for each in singles] if self._has_previous_action else singles
        try:
            self._writer.write_all(shown, _infos(action_masks, len(singles), single))
        except MisfitError as error:
            raise UserError(f"observation: {error}") from None
        for transform in self._env.transforms:
            self._rows[...] = transform(self._rows)
        self._refuse_nan()
        return Rows(self._rows, single)

    def _refuse_nan(self) -> None:
        """NaN and infinity would stay in the agent's memory."""
        packing = self._spec.packing
        for name, part in ({"": self._rows} if packing is None else packing.views(self._rows)).items():
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                raise UserError(f"observation{f'[{name!r}]' if name else ''}: has NaN or infinity")

    def write_previous_actions(self, actions: Iterable[Any], starts: np.ndarray) -> None:
        """Write the previous actions, in the environment's form, into the rows if they are a part of observations."""
        if not self._has_previous_action:
            return
        assert self._spec.packing is not None
        part = self._spec.packing.views(self._rows)[PREVIOUS_ACTION]
        for row, action in enumerate(actions):
            part[row] = 0 if starts[row] else encode_action(self._env.action, action, part.shape[-1])


def _infos(action_masks: Any, rows: int, single: bool) -> list[dict[str, Any]]:
    """The infos with which an environment would give these masks."""
    if action_masks is None:
        return [{}] * rows
    masks = [action_masks] if single else action_masks
    if len(masks) != rows:
        raise UserError(f"action_masks: expected one for each of {rows} rows, got {len(masks)}")
    return [{ACTION_MASK: mask} for mask in masks]


def _split(observation: Any, space: spaces.Space) -> tuple[list[Any], bool]:
    """The observations one by one, and whether a single one was given, without a dimension for rows."""
    if _fits(observation, space):
        return [_leaves(observation, space)], True
    if isinstance(observation, list) and observation and all(_fits(each, space) for each in observation):
        return [_leaves(each, space) for each in observation], False
    rows = _rows(observation, space)
    if not rows:
        raise UserError(
            f"observation: {_describe(observation)} is neither one observation ({_expected(space)}) nor a batch of "
            f"them, with a first dimension for rows{_hint(observation)}"
        )
    return rows, False


def _expected(space: spaces.Space) -> str:
    if isinstance(space, spaces.Dict):
        return f"a mapping of {', '.join(f'{name}: {_expected(part)}' for name, part in space.spaces.items())}"
    return f"shape {space.shape} of {space.dtype}" if isinstance(space, spaces.Box) and space.shape else str(space)


def _hint(observation: Any) -> str:
    is_reset = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], Mapping)
    return ". env.reset() returns (observation, info): give the first" if is_reset else ""


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
    if holds_text(space):
        return isinstance(observation, str)
    return _shape(observation) == (space.shape or ())


def _rows(observation: Any, space: spaces.Space) -> list[Any] | None:
    """The single observations of a batch; None if this is not a batch."""
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
    if holds_text(space):
        texts = isinstance(observation, list | tuple | np.ndarray) and all(
            isinstance(each, str) for each in observation
        )
        return list(observation) if texts else None
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
    return observation if holds_text(space) else np.asarray(observation)


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
