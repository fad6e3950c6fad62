"""The adapter interface: blocks of environments that step together in one process, and the buffers they write."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from engram.env.parts import OBSERVATION
from engram.env.spec import EnvSpec

Column = np.ndarray | list[Any]


@dataclass(frozen=True)
class Buffers:
    """The rows of some environments, one per agent. NumPy arrays, C-contiguous, often views of shared memory. R rows.

    Each step brings the observation to act on next and the outcome of the previous action: its reward and whether it
    ended the episode (`terminals`, `truncations`). Where it did, `observations` already holds the FIRST observation of
    the next episode; after a truncation, `final_observations` holds the true last observation of the episode before.

    `starts` means: this observation does not continue the previous one, so clear the row's memory before reading it.
    It is true
    - in every row after a reset, when no episode has ended;
    - in every row with a terminal or truncation;
    - in all rows of an environment that begins an episode, also rows of agents that left before or are still absent;
    - at the first observation of an agent that joins late or comes back, without a terminal or truncation.
    Otherwise it is false, also while an agent is absent (not alive).
    """

    spec: EnvSpec  # the shapes and dtypes of a row
    observations: np.ndarray  # [R, *row shape]; several parts are packed into bytes (`EnvSpec.packing`)
    final_observations: np.ndarray  # [R, *row shape]; valid in rows with truncations
    rewards: np.ndarray  # [R] float32
    terminals: np.ndarray  # [R] bool
    truncations: np.ndarray  # [R] bool
    starts: np.ndarray  # [R] bool
    alive: np.ndarray  # [R] bool; false while an agent is absent: nothing to learn from
    actions: np.ndarray  # [R] or [R, n]; int32 for Discrete and MultiDiscrete, float32 for Box

    @staticmethod
    def layout(spec: EnvSpec, rows: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of every field, by name."""
        (shape, dtype), action = spec.row, spec.single_action_space
        action_dtype = np.float32 if np.issubdtype(action.dtype, np.floating) else np.int32
        flag = ((rows,), np.dtype(np.bool_))
        return {
            "observations": ((rows, *shape), dtype),
            "final_observations": ((rows, *shape), dtype),
            "rewards": ((rows,), np.dtype(np.float32)),
            "terminals": flag,
            "truncations": flag,
            "starts": flag,
            "alive": flag,
            "actions": ((rows, *action.shape), np.dtype(action_dtype)),
        }

    @classmethod
    def allocate(cls, spec: EnvSpec, rows: int) -> "Buffers":
        return cls(spec, **{name: np.zeros(shape, dtype) for name, (shape, dtype) in cls.layout(spec, rows).items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """All fields that have rows, by name."""
        return {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)}

    def parts(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Views of the parts of `observations` or `final_observations`, by name."""
        return {OBSERVATION: rows} if self.spec.packing is None else self.spec.packing.views(rows)

    def rows(self, start: int, stop: int) -> "Buffers":
        """A view of some rows."""
        return Buffers(self.spec, **{name: array[start:stop] for name, array in self.arrays().items()})


class Ended(NamedTuple):
    """The episodes that ended in one step of a block, one entry per agent and episode.

    Short columns are lists: arrays of one or two entries take longer to make and to send.
    """

    rows: Column  # within the block
    returns: Column
    lengths: Column
    stats: dict[str, Column]  # by name; None or NaN where an episode lacks one


@dataclass
class Episodes:
    """Finished episodes, one entry per agent and episode, in the order they ended."""

    rows: np.ndarray  # [N] int64
    returns: np.ndarray  # [N] float32
    lengths: np.ndarray  # [N] int32
    stats: dict[str, np.ndarray] = field(default_factory=dict)  # [N] float32 each; NaN where an episode lacks one

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index: np.ndarray) -> "Episodes":
        """The episodes at these positions, or where this mask is true."""
        stats = {name: values[index] for name, values in self.stats.items()}
        return Episodes(self.rows[index], self.returns[index], self.lengths[index], stats)

    @classmethod
    def concatenate(cls, ended: Iterable["Ended | Episodes | None"]) -> "Episodes":
        parts = [part for part in ended if part is not None]
        names = {name: None for part in parts for name in part.stats}
        missing = [[np.nan] * len(part.rows) for part in parts] if names else []
        return cls(
            rows=_concatenate([part.rows for part in parts], np.int64),
            returns=_concatenate([part.returns for part in parts], np.float32),
            lengths=_concatenate([part.lengths for part in parts], np.int32),
            stats={
                name: _concatenate(
                    [part.stats.get(name, nan) for part, nan in zip(parts, missing, strict=True)], np.float32
                )
                for name in names
            },
        )


def _concatenate(columns: Sequence[Column], dtype: type) -> np.ndarray:
    if columns and all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns).astype(dtype, copy=False)
    return np.array([*chain.from_iterable(columns)], dtype)


class GridObject(NamedTuple):
    """An object on the grid of a scene."""

    kind: str
    row: int
    column: int
    agent: int | None  # the index of the agent, if it is one
    inventory: dict[str, int]


class GridScene(NamedTuple):
    height: int
    width: int
    objects: list[GridObject]


Scene = GridScene | np.ndarray  # what an environment looks like to a person; a picture is uint8 [height, width, 3]


def picture(rendered: object) -> np.ndarray | None:
    """A copy of the result of an environment's `render` if it is a picture, else None."""
    if not isinstance(rendered, np.ndarray) or rendered.dtype != np.uint8 or rendered.shape[2:] != (3,):
        return None
    return rendered.copy()  # some environments draw into the same array again


class Block(Protocol):
    """Some environments in one process. Environment i of the block owns rows `[i * agents, (i + 1) * agents)`.

    What a row sees depends only on the seed, the environment's id and its actions, never on its block or process:
    episode number k of environment `id` is seeded with `episode_seed(seed, id, k)`.
    """

    def reset(self, first_episode: int | None = None) -> None:
        """Starts every environment's next episode, or the one with this number, and writes its first observation."""

    def step(self) -> Ended | None:
        """Takes `buffers.actions`, writes all other buffers, and begins a new episode where one ended.

        Returns the episodes that ended.
        """

    def state(self) -> dict[str, np.ndarray] | None:
        """The state from which `restore` resumes exactly; None if these environments do not support that.

        The first dimension of every array is the environment. The second may differ in length between blocks (the
        logged actions): joining pads it with zeros, so the state must also hold the true lengths. The caller saves
        and restores the buffers.
        """

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """Returns to a state and writes at least `observations` and `alive`; False if a replay differs from it."""

    def scene(self) -> Scene | None:
        """The scene of the block's first environment; None if it cannot be rendered."""

    def where(self) -> str | None:
        """The environment that is being stepped, and where in its episode; None if all step at once."""

    def close(self) -> None: ...


class Adapter(Protocol):
    """One kind of environment: describes it and makes blocks of it. Each adapter has its own settings."""

    def spec(self, settings: Any) -> EnvSpec: ...

    def block(self, settings: Any, env_ids: range, seed: int, buffers: Buffers) -> Block: ...
