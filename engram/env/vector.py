"""The vectorised environment: many environments as rows, in batches that step while the policy looks at others."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.env import snapshot as states
from engram.env.block import Buffers, Ended, Episodes
from engram.env.registry import make_spec
from engram.env.workers.commands import Command, Done
from engram.env.workers.pool import open_here, open_workers, split
from engram.settings import UserError

_PASSES = 64  # so often the oldest batch may be passed over; then it is waited for, and noticed if it hangs
_Finished = tuple[int, int, Ended | Episodes]  # the step in which they ended; the first row of those who tell


@dataclass(frozen=True)
class Batch:
    """Some rows that step together. What `buffers` shows stays as it is until the batch is sent."""

    rows: slice
    buffers: Buffers


class VectorEnv:
    """Rows `[0, num_envs * spec.agents)`, split into `batches` of whole environments.

    >>> from engram.env.settings import Recall
    >>> with VectorEnv(Recall(), num_envs=64) as env:
    ...     env.reset()
    ...     for _ in range(10):
    ...         batch = env.recv()
    ...         env.send(batch, np.zeros(len(batch.buffers.rewards), dtype=np.int64))

    A batch is shared out over all workers, or over some of them, and handed over when they are done with it. What a row
    sees follows from the seed and its actions alone, not from timing, nor from the number of workers and batches; the
    order of batches does so too if they are received in order. Two batches keep the workers busy while the policy
    thinks; without workers one is enough, and `recv` steps it in this process.
    """

    def __init__(
        self,
        settings: Any,
        num_envs: int,
        num_workers: int = 0,
        seed: int = 0,
        num_batches: int | None = None,
        step_timeout: float = 20.0,
        start_timeout: float = 120.0,
        first_env: int = 0,
    ):
        """`first_env`: the id of the first environment, where others have the ones before it in other processes."""
        if num_batches is None:
            num_batches = 2 if num_workers else 1
        _check_counts(num_envs=(num_envs, 1), num_workers=(num_workers, 0), num_batches=(num_batches, 1))
        self.spec = make_spec(settings)
        self.num_envs, self.rows, self.seed = num_envs, num_envs * self.spec.agents, seed
        groups = split(range(num_envs), min(num_batches, num_envs))
        if num_workers:
            opened = open_workers(
                settings, self.spec, seed, groups, first_env, min(num_workers, num_envs), step_timeout, start_timeout
            )
        else:
            opened = open_here(settings, self.spec, seed, groups, first_env)
        self._pool, self._buffers, self._shares = opened
        self._finalizer = weakref.finalize(self, self._pool.close)  # also when the interpreter exits
        self._batches = [self._batch(ids) for ids in groups]
        self._sizes = [len(ids) for ids in groups]
        self._firsts = [ids.start for ids in groups]
        self.batches = [batch.rows for batch in self._batches]
        self._number = {(rows.start, rows.stop): group for group, rows in enumerate(self.batches)}
        self._sent: dict[int, None] = {}  # groups that step or are ready, oldest first
        self._passed = 0  # how often others were handed over before the oldest
        self._ready: dict[int, list[Any]] = {}  # answers of those that were waited for already
        self._held: dict[int, None] = {}  # groups that the caller has, in the order it got them
        self._steps = [0] * len(groups)
        self._finished: list[_Finished] = []

    def reset(self) -> None:
        """Begin a new episode in every environment. All batches are to be received again, in order."""
        self._wait_for_all()
        for group in list(self._sent):
            self._finished += self._ended(group, self._ready.pop(group))
        self._held.clear()
        self._sent = dict.fromkeys(range(len(self._batches)))
        for group in self._sent:
            self._pool.start(Command.RESET, group)

    def recv(self, in_order: bool = False) -> Batch:
        """A batch that has stepped: the first that is done or, in order, the one that was sent first."""
        self._check_open()
        if not self._sent:
            raise RuntimeError(
                "nothing to receive: every batch was received; send() one" if self._held else "reset() first"
            )
        group, answers = self._finish(in_order)
        del self._sent[group]
        self._held[group] = None
        if any(answers):
            self._finished += self._ended(group, answers)
        return self._batches[group]

    def send(self, batch: Batch | slice, actions: Any) -> None:
        """Let a received batch, or the batch of these rows, step with a copy of these actions."""
        self._check_open()
        group = self._group_of(batch.rows if isinstance(batch, Batch) else batch)
        _copy_actions(actions, self._batches[group].buffers.actions)
        del self._held[group]
        self._steps[group] += 1
        self._pool.start(Command.STEP, group)
        self._sent[group] = None

    def drain_episodes(self) -> Episodes:
        """What ended in batches received since the last call: by the step of its batch, then by row."""
        finished, self._finished = self._finished, []
        return _in_order(finished)[1]

    def state(self) -> dict[str, np.ndarray] | None:
        """All that `restore` needs, whatever the number of workers and batches then; None if a kind cannot promise it.

        Waits for batches that step. They, and those that the caller holds, are to be received after `restore`.
        """
        self._wait_for_all()
        line = [*self._held, *self._sent]
        if not line:
            raise RuntimeError("there is no state before reset()")
        parts = [part for answers in self._ask_all(Command.STATE) for part in answers]
        if any(part is None for part in parts):
            return None
        unseen = [ended for group, answers in self._ready.items() for ended in self._ended(group, answers)]
        steps, episodes = _in_order(self._finished + unseen)
        own = {
            "seed": np.array([self.seed & 0xFFFFFFFFFFFFFFFF], np.uint64),
            "line": np.repeat([line.index(group) for group in range(len(line))], self._sizes),
            "steps": np.repeat(self._steps, self._sizes),
            "ended": steps,
        }
        return (
            own
            | states.prefixed("blocks", states.join(parts))
            | states.prefixed("buffers", states.of_buffers(self._buffers))
            | states.prefixed("episodes", states.of_episodes(episodes))
        )

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """Go on from a state; False if it is another environment's or does not come out the same: then `reset()`."""
        self._wait_for_all()
        buffers, blocks = states.under("buffers", state), states.under("blocks", state)
        if not states.fits(buffers, self._buffers) or int(state["seed"][0]) != self.seed & 0xFFFFFFFFFFFFFFFF:
            return False
        for known in (self._sent, self._ready, self._held):
            known.clear()
        states.write(buffers, self._buffers)
        arguments = [[states.cut(blocks, ids) for ids in shares] for shares in self._shares]
        if not all(done for answers in self._ask_all(Command.RESTORE, arguments) for done in answers):
            return False
        if not states.same_observations(buffers, self._buffers):
            return False
        states.write(buffers, self._buffers)
        self._steps = state["steps"][self._firsts].tolist()
        finished, steps = states.to_episodes(states.under("episodes", state)), state["ended"]
        self._finished = [(int(step), 0, finished.select(steps == step)) for step in np.unique(steps)]
        for group in np.argsort(state["line"][self._firsts], kind="stable").tolist():
            self._sent[group] = None
            self._ready[group] = []
        return True

    def close(self) -> None:
        """End all workers and close all environments. Safe to call again."""
        self._finalizer()

    def __enter__(self) -> "VectorEnv":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _batch(self, ids: range) -> Batch:
        rows = slice(ids.start * self.spec.agents, ids.stop * self.spec.agents)
        return Batch(rows, self._buffers.rows(rows.start, rows.stop))

    def _check_open(self) -> None:
        if self._pool.closed:
            raise RuntimeError("this VectorEnv is closed")

    def _finish(self, in_order: bool) -> Done:
        if self._ready:
            group = next(iter(self._ready))  # older than those that step
            return group, self._ready.pop(group)
        oldest = next(iter(self._sent))
        done = self._pool.finish(oldest if in_order or self._passed == _PASSES else None)
        self._passed = 0 if done[0] == oldest else self._passed + 1
        return done

    def _wait_for_all(self) -> None:
        self._check_open()
        for group in self._sent:
            if group not in self._ready:
                self._ready[group] = self._pool.finish(group)[1]

    def _ask_all(self, command: Command, arguments: Sequence[Sequence[Any]] | None = None) -> list[list[Any]]:
        groups = range(len(self._batches))
        for group in groups:
            self._pool.start(command, group, None if arguments is None else arguments[group])
        return [self._pool.finish(group)[1] for group in groups]

    def _ended(self, group: int, answers: list[Any]) -> list[_Finished]:
        """What ended, by the answers of a group."""
        return [
            (self._steps[group], ids.start * self.spec.agents, ended)
            for ids, ended in zip(self._shares[group], answers, strict=False)
            if ended is not None
        ]

    def _group_of(self, rows: slice) -> int:
        group = self._number.get((rows.start, rows.stop))
        if group is None:
            batches = ", ".join(f"{batch.start}:{batch.stop}" for batch in self.batches)
            raise ValueError(
                f"rows {rows.start}:{rows.stop} are no batch of this environment; its batches are {batches}"
            )
        if group not in self._held:
            raise RuntimeError(
                f"rows {rows.start}:{rows.stop} were not received since they were last sent: recv() first"
            )
        return group


def _check_counts(**counts: tuple[int, int]) -> None:
    for name, (count, least) in counts.items():
        if count < least:
            raise UserError(f"{name}: {count} is too few: it must be at least {least}")


def _copy_actions(actions: Any, target: np.ndarray) -> None:
    actions = np.asarray(actions)
    if actions.shape != target.shape:
        raise ValueError(f"actions of shape {actions.shape} were sent; this batch takes shape {target.shape}")
    try:
        np.copyto(target, actions, casting="same_kind")
    except TypeError:
        raise ValueError(f"actions of {actions.dtype} were sent; this environment takes {target.dtype}") from None


def _in_order(finished: list[_Finished]) -> tuple[np.ndarray, Episodes]:
    """All episodes and the steps they ended in, by step and row, with the names of their stats in order too."""
    counts = np.array([len(ended.rows) for _, _, ended in finished], np.int64)
    places = np.array([place for *place, _ in finished], np.int64).reshape(-1, 2)
    steps, first_rows = np.repeat(places, counts, axis=0).T
    episodes = Episodes.concatenate([ended for *_, ended in finished])
    episodes.rows += first_rows
    episodes.stats = dict(sorted(episodes.stats.items()))
    order = np.lexsort((episodes.rows, steps))
    return steps[order], episodes.select(order)
