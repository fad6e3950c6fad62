"""Pools that step batches of environments, in this process or in workers, and how batches are shared over workers."""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from engram.cores import available_cores
from engram.env import user_code
from engram.env.block import Block, Buffers
from engram.env.registry import adapter_path, make_block
from engram.env.settings import PythonEnv
from engram.env.spec import EnvSpec
from engram.env.workers.local_pool import HangWatch, LocalPool
from engram.env.workers.restarts import Restarts
from engram.env.workers.transport import Command, attach_buffers, create_memory
from engram.env.workers.worker import WorkerSetup, rows_of
from engram.env.workers.worker_pool import WorkerPool


class Pool(Protocol):
    """Steps the environments of each batch. A batch is split into shares, in order of environments.

    Environments that fail are built again and begin new episodes: the result of their share is INTERRUPTED then. After
    too many restarts a pool closes itself and raises.
    """

    closed: bool
    steps: list[int]  # of each batch

    def start(self, command: Command, batch: int, arguments: Sequence[Any] | None = None) -> None:
        """Gives every share of a batch a command; `arguments` has one for each share."""

    def finish(self, batch: int) -> list[Any]:
        """Waits for the command that a batch was given; returns the result of each share."""

    def begin_restarted(self) -> list[tuple[int, int]]:
        """Begins episodes where restarted environments have none yet; returns the batch and share of each."""

    def close(self) -> None: ...


class OpenedPool(NamedTuple):
    pool: Pool
    buffers: Buffers  # of all rows
    shares: list[list[range]]  # by batch: the positions of each share, in order


def open_local(
    settings: Any,
    spec: EnvSpec,
    seed: int,
    batches: Sequence[range],
    first_env: int,
    restarts: Restarts,
    watch: HangWatch | None = None,
) -> OpenedPool:
    """Batches are ranges of positions from 0 on; the environment at position p has the id `first_env` + p."""
    buffers = Buffers.allocate(spec, spec.agents * batches[-1].stop)

    def build(ids: range) -> Block:
        return make_block(settings, ids, seed, rows_of(ids, first_env, spec.agents, buffers))

    ids = [_shift(positions, first_env) for positions in batches]
    pool = LocalPool(_title(settings, spec), ids, build, restarts, watch)
    return OpenedPool(pool, buffers, [[positions] for positions in batches])


def open_workers(
    settings: Any,
    spec: EnvSpec,
    seed: int,
    batches: Sequence[range],
    first_env: int,
    num_workers: int,
    step_timeout: float,
    start_timeout: float,
    restarts: Restarts,
) -> OpenedPool:
    """Like `open_local`, in worker processes over shared memory."""
    layout = Buffers.layout(spec, spec.agents * batches[-1].stop)
    shares = share_out(batches, num_workers, separate=num_workers >= available_cores())
    code = user_code.pickled(settings.name, "env") if isinstance(settings, PythonEnv) else None
    setups = [
        WorkerSetup(adapter_path(settings.kind), settings, seed, spec, layout, first_env, own, code)
        for own in (_shares_of(worker, shares, first_env) for worker in range(num_workers))
        if own
    ]
    memory = create_memory(layout)
    try:
        buffers = attach_buffers(memory, spec, layout)
        pool = WorkerPool(_title(settings, spec), setups, memory, step_timeout, start_timeout, restarts)
    finally:
        os.close(memory)
    return OpenedPool(pool, buffers, [[positions for _, positions in batch] for batch in shares])


def split(positions: range, parts: int) -> list[range]:
    """Contiguous parts whose sizes differ by at most one, larger ones first; some may be empty."""
    size, larger = divmod(len(positions), parts)
    bounds = [positions.start + part * size + min(part, larger) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


def share_out(batches: Sequence[range], num_workers: int, separate: bool) -> list[list[tuple[int, range]]]:
    """For each batch, the (worker, positions) that step it.

    By default every worker has a share of every batch, so that none is idle while the policy acts on one batch. The
    larger shares rotate over the workers. `separate` gives every batch its own workers, if the batches divide the
    workers evenly: that halves the messages, and suits machines where the policy needs the core of an idle worker.
    """
    if separate and num_workers % len(batches) == 0:
        per_batch = num_workers // len(batches)
        return [
            [(batch * per_batch + part, share) for part, share in enumerate(split(positions, per_batch)) if share]
            for batch, positions in enumerate(batches)
        ]
    return [
        [((batch.start + part) % num_workers, share) for part, share in enumerate(split(batch, num_workers)) if share]
        for batch in batches
    ]


def _shares_of(worker: int, shares: Sequence[Sequence[tuple[int, range]]], first_env: int) -> dict[int, range]:
    """The environment ids of a worker, by batch."""
    own = {batch: positions for batch, parts in enumerate(shares) for owner, positions in parts if owner == worker}
    return {batch: _shift(positions, first_env) for batch, positions in own.items()}


def _shift(positions: range, by: int) -> range:
    return range(positions.start + by, positions.stop + by)


def _title(settings: Any, spec: EnvSpec) -> str:
    return settings.kind if settings.kind == spec.name else f"{settings.kind} {spec.name}"
