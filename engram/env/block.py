"""What an adapter provides: a block of environments that step together in one process and write into given rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from engram.env.spec import EnvSpec

Column = np.ndarray | list[Any]


@dataclass(frozen=True)
class Buffers:
    """The rows of some environments: NumPy views, C-contiguous, often of shared memory. R rows, one per agent.

    What arrives together at step t: `observations` the agent acts on next, the `rewards` of the action before, and
    whether that action ended the episode (`terminals`, `truncations`). Where it did, `observations` already holds the
    FIRST observation of the next episode, and `starts` is true; after a truncation `final_observations` holds the
    true last one of the episode before. `starts` is also true right after a reset, when no episode ended.
    """

    observations: np.ndarray  # [R, *observation shape]
    final_observations: np.ndarray  # [R, *observation shape]; valid in rows with truncations
    rewards: np.ndarray  # [R] float32
    terminals: np.ndarray  # [R] bool
    truncations: np.ndarray  # [R] bool
    starts: np.ndarray  # [R] bool
    alive: np.ndarray  # [R] bool; false while an agent waits for the others' episode to end: nothing to learn from
    actions: np.ndarray  # [R] or [R, n]; int32 for Discrete and MultiDiscrete, float32 for Box

    @staticmethod
    def layout(spec: EnvSpec, rows: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of every field, by name."""
        observation, action = spec.single_observation_space, spec.single_action_space
        action_dtype = np.float32 if np.issubdtype(action.dtype, np.floating) else np.int32
        flag = ((rows,), np.dtype(np.bool_))
        return {
            "observations": ((rows, *observation.shape), np.dtype(observation.dtype)),
            "final_observations": ((rows, *observation.shape), np.dtype(observation.dtype)),
            "rewards": ((rows,), np.dtype(np.float32)),
            "terminals": flag,
            "truncations": flag,
            "starts": flag,
            "alive": flag,
            "actions": ((rows, *action.shape), np.dtype(action_dtype)),
        }

    @classmethod
    def allocate(cls, spec: EnvSpec, rows: int) -> "Buffers":
        return cls(**{name: np.zeros(shape, dtype) for name, (shape, dtype) in cls.layout(spec, rows).items()})

    def rows(self, start: int, stop: int) -> "Buffers":
        """A view of some rows."""
        return Buffers(**{name: getattr(self, name)[start:stop] for name in self.__dataclass_fields__})


class Ended(NamedTuple):
    """The episodes that ended in one step of a block, one entry per agent-episode.

    Columns are lists where they are short, as they mostly are: arrays of one or two take longer to make and to send.
    """

    rows: Column  # within the block
    returns: Column
    lengths: Column
    stats: dict[str, Column]  # by name; None or NaN where an episode has none


@dataclass
class Episodes:
    """Finished episodes, one entry per agent-episode, in the order they ended."""

    rows: np.ndarray  # [N] int64
    returns: np.ndarray  # [N] float32
    lengths: np.ndarray  # [N] int32
    stats: dict[str, np.ndarray] = field(default_factory=dict)  # [N] float32 each; NaN where an episode has none

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, which: np.ndarray) -> "Episodes":
        """Those at these places, in that order, or those for which it is true."""
        stats = {name: values[which] for name, values in self.stats.items()}
        return Episodes(self.rows[which], self.returns[which], self.lengths[which], stats)

    @classmethod
    def concatenate(cls, told: Iterable["Ended | Episodes | None"]) -> "Episodes":
        parts = [part for part in told if part is not None]
        names = {name: None for part in parts for name in part.stats}
        unknown = [[np.nan] * len(part.rows) for part in parts] if names else []
        return cls(
            rows=_joined([part.rows for part in parts], np.int64),
            returns=_joined([part.returns for part in parts], np.float32),
            lengths=_joined([part.lengths for part in parts], np.int32),
            stats={
                name: _joined([part.stats.get(name, nan) for part, nan in zip(parts, unknown, strict=True)], np.float32)
                for name in names
            },
        )


def _joined(columns: Sequence[Column], dtype: type) -> np.ndarray:
    if columns and all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns).astype(dtype, copy=False)
    return np.array([*chain.from_iterable(columns)], dtype)


class Block(Protocol):
    """Some environments in one process. Environment i of the block owns rows `[i * agents, (i + 1) * agents)`.

    What a row sees depends on the seed, on the environment's id and on its actions, never on which block or process
    it is in: environment `id`'s episode number k is seeded by `episode_seed(seed, id, k)`.
    """

    def reset(self) -> None:
        """Start every environment's next episode and write its first observation, with `starts` and `alive` true."""

    def step(self) -> Ended | None:
        """Take `buffers.actions`, write everything else, and begin a new episode where one ended; tell which did."""

    def state(self) -> dict[str, np.ndarray] | None:
        """All that `restore` needs to go on exactly from here, or None if this kind of environment cannot promise it.

        Arrays with one entry per environment first. A second dimension may differ in length between blocks (a log of
        actions, say): it is padded with zeros when blocks are joined, so the true lengths must be in the state too.
        """

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """Go back to a state and write the buffers as they were then; False if the observations came out different."""

    def close(self) -> None: ...


class Adapter(Protocol):
    """One kind of environment: how to describe it and how to make a block of it. Settings are the adapter's own."""

    def spec(self, settings: Any) -> EnvSpec: ...

    def block(self, settings: Any, env_ids: range, seed: int, buffers: Buffers) -> Block: ...


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """A 31-bit seed for one episode of one environment, the same wherever and whenever it is played."""
    return _mix(_environment(seed, env_id) ^ (episode & _64_BITS)) >> 33


@cache
def _environment(seed: int, env_id: int) -> int:
    """What is common to the seeds of all its episodes."""
    return _mix(_mix(seed & _64_BITS) ^ (env_id & _64_BITS))


_64_BITS = 0xFFFFFFFFFFFFFFFF


def _mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & _64_BITS
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return value ^ (value >> 31)
