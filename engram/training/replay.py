"""Replay: a stored minibatch through the policy again, from the memory at each segment's start."""

# B segments, T steps

from collections.abc import Mapping
from typing import NamedTuple

from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.previous_step import PREVIOUS
from engram.training.distributed import ALONE, World
from engram.training.experience import Minibatch, learnable

REPLAYED = ("env_obs", "dones", "truncateds", "starts", *PREVIOUS.values())


class ReplayError(NamedTuple):
    """Largest difference between the rollout and its replay before any update: 0 up to rounding if memory is right."""

    replay_error: Tensor  # of log-probabilities
    replay_error_value: Tensor


def replay(agent: nn.Module, minibatch: Minibatch) -> TensorDictBase:
    """Log-probabilities, entropies and values [B, T] of the stored actions, with a graph."""
    data = minibatch.data
    rows, steps = data.batch_size
    memory = {name: value.unsqueeze(1).expand(-1, steps, *value.shape[1:]) for name, value in minibatch.memory.items()}
    fields = {name: data[name] for name in REPLAYED if name in data.keys()}  # noqa: SIM118
    td = TensorDict({**fields, "memory": TensorDict(memory, [rows, steps])}, batch_size=[rows, steps])
    return agent(td, action=data["actions"])


def replay_error(replayed: Mapping[str, Tensor], minibatch: Minibatch, world: World = ALONE) -> ReplayError:
    """Over the steps of all ranks."""
    data, counted = minibatch.data, learnable(minibatch.data)

    def largest(new: Tensor, old: Tensor) -> Tensor:
        return world.max(((new.detach() - old).abs() * counted).max())

    return ReplayError(
        largest(replayed["act_log_prob"], data["act_log_prob"]), largest(replayed["value"], data["values"])
    )
