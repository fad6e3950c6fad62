"""Replay: a stored minibatch through the policy again, from the memory each segment began with."""

# B segments, T steps, L layers, Z floats per layer

from collections.abc import Mapping
from typing import NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.training.distributed import ALONE, World
from engram.training.experience import Minibatch


class ReplayError(NamedTuple):
    """How far a replay before any update is from what was played; zero but for rounding when memory is right."""

    replay_error: Tensor  # of log-probabilities
    replay_error_value: Tensor


def replay(agent: nn.Module, minibatch: Minibatch, memory: str) -> TensorDictBase:
    """Log-probabilities, entropies and values [B, T] of the stored actions, with a graph."""
    data = minibatch.data
    shape = data.batch_size
    fields = {name: data[name] for name in ("env_obs", "dones", "truncateds")}
    if memory == "off":
        fields["dones"] = torch.ones_like(fields["dones"])
    starts = {
        name: value.unsqueeze(1).expand(-1, shape[1], *value.shape[1:]) for name, value in minibatch.memory.items()
    }
    td = TensorDict({**fields, "memory": TensorDict(starts, shape)}, batch_size=shape)
    return agent(td, action=data["actions"])


def replay_error(replayed: Mapping[str, Tensor], minibatch: Minibatch, world: World = ALONE) -> ReplayError:
    """The worst of all processes."""
    there = minibatch.data["alive"]

    def worst(new: Tensor, old: Tensor) -> Tensor:
        return world.largest(((new.detach() - old).abs() * there).max())

    data = minibatch.data
    return ReplayError(worst(replayed["act_log_prob"], data["act_log_prob"]), worst(replayed["value"], data["values"]))
