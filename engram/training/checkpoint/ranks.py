"""Joins the states of all ranks into one checkpoint, and splits a checkpoint by rank."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from engram.settings import UserError
from engram.training.checkpoint.files import Checkpoint, Groups
from engram.training.watchdog import TrainingStoppedError

OWN_GROUPS = ("memory", "random", "environment", "teacher")  # one of each per rank


class RankState(NamedTuple):
    """The state of one rank: memory, environments, random number generators."""

    groups: Groups
    state: dict[str, Any]
    weights: str  # fingerprint of the weights, which all ranks must share


def join_ranks(shared: Groups, ranks: Sequence[RankState]) -> tuple[Groups, list[dict[str, Any]]]:
    """The groups of a whole checkpoint, and the states of all ranks."""
    for rank, own in enumerate(ranks):
        if own.weights != ranks[0].weights:
            raise TrainingStoppedError(
                f"rank {rank} of {len(ranks)} has different weights than rank 0: their machines do not compute the "
                "same results, so they no longer train one policy. This epoch was not saved"
            )
    groups = dict(shared)
    for rank, own in enumerate(ranks):
        groups |= {_group_name(group, rank): tensors for group, tensors in own.groups.items()}
    return groups, [own.state for own in ranks]


def number_of_ranks(checkpoint: Checkpoint) -> int:
    """The number of ranks that wrote a checkpoint."""
    if "ranks" not in checkpoint.state:
        raise UserError(f"{checkpoint.path} was written by an earlier version of Engram: start a new run")
    return len(checkpoint.state["ranks"])


def split_by_rank(checkpoint: Checkpoint | None, ranks: int) -> list[Checkpoint] | list[None]:
    """A checkpoint for each rank: the shared state and its own; only the shared one if the number of ranks changed."""
    if checkpoint is None:
        return [None] * ranks
    before = number_of_ranks(checkpoint)
    own = [{_group_name(group, rank) for group in OWN_GROUPS} for rank in range(before)]
    shared = {name: group for name, group in checkpoint.groups.items() if name not in set().union(*own)}
    if before != ranks:
        return [Checkpoint(checkpoint.path, checkpoint.state, shared)] * ranks
    return [
        Checkpoint(
            checkpoint.path,
            {**checkpoint.state, "own": checkpoint.state["ranks"][rank]},
            shared
            | {
                name: checkpoint.groups[_group_name(name, rank)]
                for name in OWN_GROUPS
                if _group_name(name, rank) in checkpoint.groups
            },
        )
        for rank in range(ranks)
    ]


def _group_name(group: str, rank: int) -> str:
    """Rank 0 uses the plain name, so a single-process checkpoint has no suffixes."""
    return group if rank == 0 else f"{group}.rank{rank}"
