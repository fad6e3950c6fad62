"""The parts of a checkpoint: what all processes of a run have in common, and what each has of its own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from engram.settings import UserError
from engram.training.checkpoint.files import Checkpoint, Groups
from engram.training.watchdog import TrainingStoppedError


class Part(NamedTuple):
    """What one process has of its own: memory, environments, random states."""

    groups: Groups
    state: dict[str, Any]
    weights: str  # a fingerprint of what all must have in common


def joined(common: Groups, parts: Sequence[Part]) -> tuple[Groups, list[dict[str, Any]]]:
    """The groups of a whole checkpoint, and the states of all processes by rank."""
    for rank, part in enumerate(parts):
        if part.weights != parts[0].weights:
            raise TrainingStoppedError(
                f"process {rank} of {len(parts)} has other weights than the first: their machines do not compute "
                "alike, so they no longer train one policy. This epoch was not saved"
            )
    groups = dict(common)
    for rank, part in enumerate(parts):
        groups |= {_name(group, rank): tensors for group, tensors in part.groups.items()}
    return groups, [part.state for part in parts]


def processes_of(checkpoint: Checkpoint) -> int:
    """How many processes trained together when it was taken."""
    if "ranks" not in checkpoint.state:
        raise UserError(f"{checkpoint.path} was written by an earlier version of Engram: start another run")
    return len(checkpoint.state["ranks"])


def cut(checkpoint: Checkpoint | None, processes: int) -> list[Checkpoint] | list[None]:
    """For each process that goes on: what all have in common and its own part; no part if their number is another."""
    if checkpoint is None:
        return [None] * processes
    before = processes_of(checkpoint)
    own = [{_name(group, rank) for group in OWN} for rank in range(before)]
    common = {name: group for name, group in checkpoint.groups.items() if name not in set().union(*own)}
    if before != processes:
        return [Checkpoint(checkpoint.path, checkpoint.state, common)] * processes
    return [
        Checkpoint(
            checkpoint.path,
            {**checkpoint.state, "own": checkpoint.state["ranks"][rank]},
            common
            | {name: checkpoint.groups[_name(name, rank)] for name in OWN if _name(name, rank) in checkpoint.groups},
        )
        for rank in range(processes)
    ]


OWN = ("memory", "random", "environment", "teacher")  # groups


def _name(group: str, rank: int) -> str:
    """That of the first process is the plain one, so that checkpoints of one process look simple."""
    return group if rank == 0 else f"{group}.rank{rank}"
