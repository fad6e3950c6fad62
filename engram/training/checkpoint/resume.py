"""The state of a run that a checkpoint saves, joined from all ranks, and resuming from it."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.settings import UserError
from engram.training.checkpoint.files import Checkpoint, Groups
from engram.training.checkpoint.loading import mismatches
from engram.training.device import derive_seed
from engram.training.metrics import MetricsFile
from engram.training.state import Training
from engram.training.watchdog import TrainingStoppedError

PROGRESS = ("steps", "epoch", "seconds")
EXACT = "resume: exact"
OWN_GROUPS = ("memory", "random", "environment", "teacher")  # one of each per rank

log = logging.getLogger("engram")


class RankState(NamedTuple):
    """The state of one rank: memory, environments, random number generators."""

    groups: Groups
    state: dict[str, Any]
    weights: str  # fingerprint of the weights, which all ranks must share


def snapshot(training: Training) -> tuple[Groups, dict[str, Any], RankState]:
    """Everything that changes during training: tensors and JSON that all ranks share, and this rank's own state."""
    common: Groups = {
        "weights": dict(training.agent.state_dict()),
        "optimizer": _optimizer_tensors(training.optimizer),
    }
    state = {
        "progress": {name: getattr(training.progress, name) for name in PROGRESS},
        "recent_returns": list(training.returns.recent),
        "schedules": training.schedules.state(),
        "explosion": training.explosion.state(),
        "env": {"settings": training.env.settings.model_dump(mode="json"), "seed": training.env.seed},
        "env_spec": training.agent.env_spec.to_json(),
        "policy_spec": training.agent.policy.env_spec.to_json(),
    }
    return common, state, _rank_state(training, common["weights"])


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


def resume(training: Training, directory: Path, checkpoint: Checkpoint | None) -> None:
    """Restore a checkpoint, or reset the environments for a new run."""
    world = training.world
    if world.main:
        MetricsFile.truncate(directory / "metrics.jsonl", checkpoint.state["progress"]["epoch"] if checkpoint else 0)
    if checkpoint is None:
        training.env.reset()
        return
    for message in dict.fromkeys(world.gather(restore(training, checkpoint))):
        log.log(logging.INFO if message == EXACT else logging.WARNING, "%s, from %s", message, checkpoint.path)


def restore(training: Training, checkpoint: Checkpoint) -> str:
    """Restore a run from a checkpoint; returns a message about what was restored.

    Raises `UserError` for a checkpoint that is intact but does not fit, for example because a stranger wrote it.
    """
    try:
        return _restore(training, checkpoint)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise UserError(
            f"{checkpoint.path} cannot be restored ({type(error).__name__}: {error}): remove it to resume from the "
            "previous one, or start a new run"
        ) from error


def _restore(training: Training, checkpoint: Checkpoint) -> str:
    groups, state = checkpoint.groups, checkpoint.state
    training.agent.load_state_dict(groups["weights"])
    _load_optimizer(training.optimizer, groups["optimizer"])
    for name in PROGRESS:
        setattr(training.progress, name, state["progress"][name])
    training.returns.recent.extend(state["recent_returns"])
    training.schedules.load_state(state["schedules"])
    training.explosion.load_state(state["explosion"])
    if "own" not in state:
        _start_new(training)
        now, before = training.world.size, number_of_ranks(checkpoint)
        return (
            f"resume: with {now} rank{'s' * (now > 1)}, not {before}: weights, optimiser, counters and schedules "
            "are restored; environments, memory and random numbers start fresh"
        )
    _load_random(training, groups["random"])
    if state["own"]["has_env_state"]:
        dtypes = state["own"]["env_dtypes"]
        arrays = {name: _to_array(tensor, dtypes[name]) for name, tensor in groups["environment"].items()}
        if training.env.restore(arrays):
            _load_memory(training.agent, groups["memory"])
            if training.rollout.teacher is not None:
                _load_memory(training.rollout.teacher.agent, groups["teacher"])
            return EXACT
    training.env.reset()
    training.agent.reset_memory()
    return "resume: environments reset, because they cannot be restored; memory was cleared with them"


def _rank_state(training: Training, weights: Mapping[str, Tensor]) -> RankState:
    env_state = None if training.env.closed else training.env.state()  # closed: they failed too often
    teacher = training.rollout.teacher
    state: dict[str, Any] = {"has_env_state": env_state is not None}
    groups: Groups = {"memory": _on_cpu(training.agent.stored_memory()), "random": _random_states(training)}
    if teacher is not None:
        groups["teacher"] = _on_cpu(teacher.agent.stored_memory())
    if env_state is not None:
        groups["environment"] = {name: _to_tensor(array) for name, array in env_state.items()}
        state["env_dtypes"] = {name: str(array.dtype) for name, array in env_state.items()}
    return RankState(groups, state, fingerprint(weights) if training.world.size > 1 else "")


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of the tensors' bits."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _random_states(training: Training) -> dict[str, Tensor]:
    states = {
        "actions": training.rollout.noise.generator.get_state(),
        "segments": training.generator.get_state(),
        "torch": torch.get_rng_state(),
    }
    last_noise = training.rollout.noise.last
    return states if last_noise is None else states | {"action_noise": last_noise.cpu()}


def _load_random(training: Training, states: Mapping[str, Tensor]) -> None:
    training.rollout.noise.generator.set_state(states["actions"])
    training.generator.set_state(states["segments"])
    torch.set_rng_state(states["torch"])
    if "action_noise" in states:
        training.rollout.noise.last = states["action_noise"].to(training.rollout.device)


def _start_new(training: Training) -> None:
    """Reset environments and memory, with random numbers that were not used before."""
    seed, epoch, rank = training.env.seed, training.progress.epoch, training.world.rank
    training.rollout.noise.generator.manual_seed(derive_seed(seed, "actions", epoch))
    training.generator.manual_seed(derive_seed(seed, "segments", rank, epoch))
    torch.manual_seed(derive_seed(seed, "policy", rank, epoch))
    training.env.reset()
    training.agent.reset_memory()


def _group_name(group: str, rank: int) -> str:
    """Rank 0 uses the plain name, so a single-process checkpoint has no suffixes."""
    return group if rank == 0 else f"{group}.rank{rank}"


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = optimizer.state_dict()["state"]
    return {f"{index}.{name}": torch.as_tensor(v) for index, state in states.items() for name, v in state.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        states.setdefault(int(index), {})[name] = tensor
    expected = _expected_states(optimizer)
    _require_like(tensors, {f"{index}.{name}": own for index in states for name, own in expected[index].items()})
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _expected_states(optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """The tensors of each parameter that has been updated, as in the optimiser's state dict."""
    return [
        {"momentum_buffer": own} if "momentum" in group else {"step": torch.ones(()), "exp_avg": own, "exp_avg_sq": own}
        for group in optimizer.param_groups
        for own in group["params"]
    ]


def _load_memory(agent: MettaAgent, tensors: Mapping[str, Tensor]) -> None:
    """Memory may have any number of rows."""
    expected = {}
    for name, own in agent.stored_memory().items():
        rows = tensors[f"{name.rpartition('.')[0]}.known"].shape[:1]
        expected[name] = torch.empty(rows + own.shape[1:], dtype=own.dtype, device="meta")
    _require_like(tensors, expected)
    agent.load_stored_memory(tensors)


def _require_like(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    if problems := mismatches(tensors, expected, finite=tensors):
        raise ValueError(problems)


# safetensors lacks some of NumPy's dtypes: wide unsigned integers are stored as signed ones of the same bits.


def _to_tensor(array: np.ndarray) -> Tensor:
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.view(f"i{array.dtype.itemsize}")
    return torch.from_numpy(array)


def _to_array(tensor: Tensor, dtype: str) -> np.ndarray:
    array = tensor.numpy()
    return array if str(array.dtype) == dtype else array.view(dtype)
