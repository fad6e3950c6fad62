"""The vectorised environment: many environments as rows, in batches that step while the policy acts on others."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.env import snapshot
from engram.env.block import Buffers, Ended, Episodes, Scene
from engram.env.registry import make_spec
from engram.env.workers.local_pool import HangWatch
from engram.env.workers.pool import open_local, open_workers, split
from engram.env.workers.restarts import INTERRUPTED, Restarts
from engram.env.workers.transport import Command
from engram.settings import UserError

# Episodes that ended: the step of their batch, their first row (rows within `Ended` count from it), and the episodes.
_Finished = tuple[int, int, Ended | Episodes]


@dataclass(frozen=True)
class Batch:
    """Rows that step together. `buffers` do not change until the batch is sent.

    Rows that were `interrupted` begin a new episode because their environment was restarted. The outcome of their
    previous action is unknown: its reward, and whether it ended the episode.
    """

    rows: slice
    buffers: Buffers
    interrupted: np.ndarray  # [rows] bool


class VectorEnv:
    """Rows `[0, num_envs * spec.agents)`, split into `batches` of whole environments.

    >>> from engram.env.settings import Recall
    >>> with VectorEnv(Recall(), num_envs=64) as env:
    ...     env.reset()
    ...     for _ in range(10):
    ...         batch = env.recv()
    ...         env.send(batch, np.zeros(len(batch.buffers.rewards), dtype=np.int64))

    What a row sees depends only on the seed and its actions, not on timing or the number of workers and batches. Two
    batches keep the workers busy while the policy acts. Without workers one is enough, and `recv` steps it in this
    process.
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
        restarts: Restarts | None = None,
        on_hang: Callable[[str], None] | None = None,
    ) -> None:
        """`first_env`: the id of the first environment, for ranks that share one numbering.

        `restarts`: how often environments that fail are built again and begin new episodes; None: never.
        `on_hang` is called, in a thread, when environments of this process take longer than these timeouts.
        """
        if num_batches is None:
            num_batches = 2 if num_workers else 1
        _check_counts(num_envs=(num_envs, 1), num_workers=(num_workers, 0), num_batches=(num_batches, 1))
        self.settings, self.spec = settings, make_spec(settings)
        self.num_envs, self.rows, self.seed = num_envs, num_envs * self.spec.agents, seed
        positions = split(range(num_envs), min(num_batches, num_envs))  # of the environments of each batch
        self.restarts = restarts or Restarts()
        common = (settings, self.spec, seed, positions, first_env)
        if num_workers:
            workers = min(num_workers, num_envs)
            opened = open_workers(*common, workers, step_timeout, start_timeout, self.restarts)
        else:
            watch = HangWatch(step_timeout, start_timeout, on_hang) if on_hang else None
            opened = open_local(*common, self.restarts, watch)
        self._pool, self._buffers, self._shares = opened  # shares: by batch, the environments of each worker
        self._finalizer = weakref.finalize(self, self._pool.close)  # also when the interpreter exits
        self._batches = [self._make_batch(envs) for envs in positions]
        self._sizes = [len(envs) for envs in positions]
        self._first_envs = [envs.start for envs in positions]  # of each batch
        self.batches = [batch.rows for batch in self._batches]
        self._indices = {(rows.start, rows.stop): index for index, rows in enumerate(self.batches)}
        # Batches by index, in order: those that were sent, and those that the caller has received.
        self._sent: dict[int, None] = {}
        self._held: dict[int, None] = {}
        self._ready: dict[int, list[Any]] = {}  # results of sent batches that have been waited for
        self._finished: list[_Finished] = []

    def reset(self) -> None:
        """Begins a new episode in every environment. All batches must be received again."""
        self._wait_for_all()
        for index in list(self._sent):
            self._finished += self._finished_in(index, self._ready.pop(index))
        self._held.clear()
        self._sent = dict.fromkeys(range(len(self._batches)))
        for index in self._sent:
            self._pool.start(Command.RESET, index)

    def recv(self) -> Batch:
        """The next batch that has stepped, in the order in which they were sent."""
        self._check_open()
        if not self._sent:
            raise RuntimeError(
                "nothing to receive: every batch was received; send() one" if self._held else "reset() first"
            )
        index = next(iter(self._sent))
        results = self._ready.pop(index) if index in self._ready else self._pool.finish(index)
        del self._sent[index]
        self._held[index] = None
        batch = self._batches[index]
        if any(results) or batch.interrupted.any():
            self._finished += self._finished_in(index, results)
            batch.interrupted[:] = False
            self._mark_interrupted(index, [share for share, result in enumerate(results) if result is INTERRUPTED])
        return batch

    def send(self, batch: Batch | slice, actions: Any) -> None:
        """Lets a received batch, or the batch of these rows, step with a copy of these actions."""
        self._check_open()
        index = self._index_of(batch.rows if isinstance(batch, Batch) else batch)
        _copy_actions(actions, self._batches[index].buffers.actions)
        del self._held[index]
        self._pool.start(Command.STEP, index)
        self._sent[index] = None

    def drain_episodes(self) -> Episodes:
        """Episodes that ended in batches received since the last call, by the step of their batch, then by row."""
        finished, self._finished = self._finished, []
        return _sorted(finished)[1]

    def state(self) -> dict[str, np.ndarray] | None:
        """All that `restore` needs, for any number of workers and batches; None if the environments have no state.

        Waits for batches that step. After `restore`, they and the batches that the caller holds must be received.
        Restarted environments that have no episode yet begin one, also in batches that the caller holds.
        """
        self._wait_for_all()
        order = [*self._held, *self._sent]
        if not order:
            raise RuntimeError("there is no state before reset()")
        parts = self._block_states()
        if any(part is None for part in parts):
            return None
        unseen = [ended for index, results in self._ready.items() for ended in self._finished_in(index, results)]
        steps, episodes = _sorted(self._finished + unseen)
        own = {
            "seed": np.array([self.seed & 0xFFFFFFFFFFFFFFFF], np.uint64),
            "line": np.repeat([order.index(index) for index in range(len(order))], self._sizes),  # place in the queue
            "steps": np.repeat(self._pool.steps, self._sizes),
            "ended": steps,
        }
        return (
            own
            | snapshot.add_prefix("blocks", snapshot.join(parts))
            | snapshot.add_prefix("buffers", snapshot.save_buffers(self._buffers))
            | snapshot.add_prefix("episodes", snapshot.save_episodes(episodes))
        )

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """Resumes from a state. False if it does not fit the environment or its replay differs: then `reset()`."""
        self._wait_for_all()
        buffers, blocks = snapshot.with_prefix("buffers", state), snapshot.with_prefix("blocks", state)
        if not snapshot.fits_buffers(buffers, self._buffers) or state["seed"][0] != self.seed & 0xFFFFFFFFFFFFFFFF:
            return False
        for batches in (self._sent, self._ready, self._held):
            batches.clear()
        arguments = [[snapshot.select(blocks, envs) for envs in shares] for shares in self._shares]
        if not all(restored for results in self._command_all(Command.RESTORE, arguments) for restored in results):
            return False
        if not snapshot.restore_buffers(buffers, self._buffers):
            return False
        self._pool.steps[:] = state["steps"][self._first_envs].tolist()
        finished, steps = snapshot.load_episodes(snapshot.with_prefix("episodes", state)), state["ended"]
        self._finished = [(int(step), 0, finished.select(steps == step)) for step in np.unique(steps)]
        for index in np.argsort(state["line"][self._first_envs], kind="stable").tolist():
            self._sent[index] = None
            self._ready[index] = []
        return True

    def scene(self) -> Scene | None:
        """The first environment's scene; its batch must have been received. None if it cannot be rendered."""
        self._check_open()
        if 0 not in self._held:
            raise RuntimeError("a scene belongs to an observation: recv() the first batch before")
        self._pool.start(Command.SCENE, 0)
        scene = self._pool.finish(0)[0]
        return None if scene is INTERRUPTED else scene

    @property
    def closed(self) -> bool:
        return self._pool.closed

    def close(self) -> None:
        """Ends all workers and closes all environments. May be called again."""
        self._finalizer()

    def __enter__(self) -> "VectorEnv":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _make_batch(self, envs: range) -> Batch:
        rows = slice(envs.start * self.spec.agents, envs.stop * self.spec.agents)
        buffers = self._buffers.rows(rows.start, rows.stop)
        return Batch(rows, buffers, np.zeros(len(buffers.rewards), np.bool_))

    def _check_open(self) -> None:
        if self._pool.closed:
            raise RuntimeError("this VectorEnv is closed")

    def _wait_for_all(self) -> None:
        self._check_open()
        for index in self._sent:
            if index not in self._ready:
                self._ready[index] = self._pool.finish(index)

    def _command_all(self, command: Command, arguments: Sequence[Sequence[Any]] | None = None) -> list[list[Any]]:
        indices = range(len(self._batches))
        for index in indices:
            self._pool.start(command, index, None if arguments is None else arguments[index])
        return [self._pool.finish(index) for index in indices]

    def _finished_in(self, index: int, results: list[Any]) -> list[_Finished]:
        """The episodes that ended, from the results of a batch's shares."""
        return [
            (self._pool.steps[index], envs.start * self.spec.agents, ended)
            for envs, ended in zip(self._shares[index], results, strict=False)
            if ended is not None and ended is not INTERRUPTED
        ]

    def _mark_interrupted(self, index: int, shares: Sequence[int]) -> None:
        """Marks the rows of restarted environments."""
        batch, agents = self._batches[index], self.spec.agents
        for envs in (self._shares[index][share] for share in shares):
            start = envs.start * agents - batch.rows.start
            batch.interrupted[start : start + len(envs) * agents] = True

    def _block_states(self) -> list[Any]:
        """The states of all shares. An environment that is restarted meanwhile has none: it begins an episode."""
        while True:
            for index, share in self._pool.begin_restarted():
                self._mark_interrupted(index, [share])
            parts = [part for results in self._command_all(Command.STATE) for part in results]
            if not any(part is INTERRUPTED for part in parts):
                return parts

    def _index_of(self, rows: slice) -> int:
        index = self._indices.get((rows.start, rows.stop))
        if index is None:
            batches = ", ".join(f"{batch.start}:{batch.stop}" for batch in self.batches)
            raise ValueError(
                f"rows {rows.start}:{rows.stop} are not a batch of this environment; its batches are {batches}"
            )
        if index not in self._held:
            raise RuntimeError(
                f"rows {rows.start}:{rows.stop} were not received since they were last sent: recv() first"
            )
        return index


def _check_counts(**counts: tuple[int, int]) -> None:
    for name, (count, minimum) in counts.items():
        if count < minimum:
            raise UserError(f"{name}: {count} is too few: it must be at least {minimum}")


def _copy_actions(actions: Any, out: np.ndarray) -> None:
    actions = np.asarray(actions)
    if actions.shape != out.shape:
        raise ValueError(f"actions of shape {actions.shape} were sent; this batch takes shape {out.shape}")
    try:
        np.copyto(out, actions, casting="same_kind")
    except TypeError:
        raise ValueError(f"actions of {actions.dtype} were sent; this environment takes {out.dtype}") from None


def _sorted(finished: list[_Finished]) -> tuple[np.ndarray, Episodes]:
    """All episodes and the steps they ended in, by step and row, with their stats in order of names."""
    counts = np.array([len(ended.rows) for _, _, ended in finished], np.int64)
    origins = np.array([origin for *origin, _ in finished], np.int64).reshape(-1, 2)
    steps, first_rows = np.repeat(origins, counts, axis=0).T
    episodes = Episodes.concatenate([ended for *_, ended in finished])
    episodes.rows += first_rows
    episodes.stats = dict(sorted(episodes.stats.items()))
    order = np.lexsort((episodes.rows, steps))
    return steps[order], episodes.select(order)
