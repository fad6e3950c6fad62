"""Opens the pool that steps groups of environments, here or in workers, and shares the groups out over it."""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from engram.cores import available_cores
from engram.env.block import Block, Buffers
from engram.env.registry import adapter_path, make_block
from engram.env.spec import EnvSpec
from engram.env.workers import shared_memory as shared
from engram.env.workers.commands import LocalPool, Pool
from engram.env.workers.worker import Job, rows_of
from engram.env.workers.worker_pool import WorkerPool


class Opened(NamedTuple):
    pool: Pool
    buffers: Buffers  # of all rows
    shares: list[list[range]]  # of each group: the places whose answers come together, in order


def open_here(settings: Any, spec: EnvSpec, seed: int, groups: Sequence[range], first_env: int) -> Opened:
    """Groups are of places, which begin at 0; the environment at a place has the id `first_env` + place."""
    buffers = Buffers.allocate(spec, spec.agents * groups[-1].stop)

    def build(ids: range) -> Block:
        return make_block(settings, ids, seed, rows_of(ids, first_env, spec.agents, buffers))

    pool = LocalPool(_title(settings, spec), [shifted(places, first_env) for places in groups], build)
    return Opened(pool, buffers, [[places] for places in groups])


def open_workers(
    settings: Any,
    spec: EnvSpec,
    seed: int,
    groups: Sequence[range],
    first_env: int,
    num_workers: int,
    step_timeout: float,
    start_timeout: float,
) -> Opened:
    layout = Buffers.layout(spec, spec.agents * groups[-1].stop)
    shares = share_out(groups, num_workers, apart=num_workers >= available_cores())
    jobs = [
        Job(adapter_path(settings.kind), settings, seed, spec.agents, layout, first_env, held)
        for held in (_held_by(worker, shares, first_env) for worker in range(num_workers))
        if held
    ]
    memory = shared.create(layout)
    try:
        buffers = shared.attach(memory, layout)
        pool = WorkerPool(_title(settings, spec), jobs, memory, step_timeout, start_timeout)
    finally:
        os.close(memory)
    return Opened(pool, buffers, [[ids for _, ids in group] for group in shares])


def split(ids: range, parts: int) -> list[range]:
    """Contiguous parts whose sizes differ by one at most, the larger ones first; some are empty if there are many."""
    size, larger = divmod(len(ids), parts)
    bounds = [ids.start + part * size + min(part, larger) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


def shifted(ids: range, by: int) -> range:
    return range(ids.start + by, ids.stop + by)


def share_out(groups: Sequence[range], num_workers: int, apart: bool) -> list[list[tuple[int, range]]]:
    """For each group the (worker, environments) that step it.

    All workers have a part of every group, so that none waits while the policy looks at one of them; the larger parts
    go round, so that no worker has much more. `apart`: every group has workers of its own, if they can be divided so.
    They are told to step half as often; and a policy that has no core but theirs takes one of those who wait for it.
    """
    if apart and num_workers % len(groups) == 0:
        each = num_workers // len(groups)
        return [
            [(group * each + part, ids) for part, ids in enumerate(split(places, each)) if len(ids)]
            for group, places in enumerate(groups)
        ]
    return [
        [((group.start + part) % num_workers, ids) for part, ids in enumerate(split(group, num_workers)) if len(ids)]
        for group in groups
    ]


def _held_by(worker: int, shares: Sequence[Sequence[tuple[int, range]]], first_env: int) -> dict[int, range]:
    """Ids of environments, by group."""
    held = {group: places for group, parts in enumerate(shares) for holder, places in parts if holder == worker}
    return {group: shifted(places, first_env) for group, places in held.items()}


def _title(settings: Any, spec: EnvSpec) -> str:
    return settings.kind if settings.kind == spec.name else f"{settings.kind} {spec.name}"
