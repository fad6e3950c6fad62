"""MemoryStep: one step of an agent as a function of its memory, so that memory can be changed between steps.

Also action distributions as numbers, their entropy, and the distance between two of them.
"""

# N rows, U memory units (numbers) per row
# W numbers per action distribution: probabilities, or means followed by standard deviations

import math
from typing import NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from engram.agent.actions import MEAN_NOISE, ActionSpace, GaussianActions, MultiCategoricalActions
from engram.agent.metta_agent import MettaAgent
from engram.agent.recurrent.core import Core
from engram.training.evaluate import copy_with_own_memory

MAX_ROWS = 2048  # in one call, since encoders allocate much per row


def distributions(action_space: ActionSpace, td: TensorDictBase) -> Tensor:
    """The distributions [N, W] of an acting call. Continuous actions must have been sampled with `MEAN_NOISE`."""
    if not isinstance(action_space, GaussianActions):
        return td["full_log_probs"].exp()
    means_ND = td["actions"].reshape(len(td["actions"]), -1)
    stds_ND = (-td["full_log_probs"] - 0.5 * math.log(2 * math.pi)).exp()  # from the density at the mean
    return torch.cat([means_ND, stds_ND], -1)


def total_variation(action_space: ActionSpace, first: Tensor, second: Tensor) -> Tensor:
    """Total variation distance [N] between distributions: the probability, from 0 to 1, that moves to other actions.

    Several independent actions: the largest of their distances. Continuous actions: exact for equal standard
    deviations.
    """
    if isinstance(action_space, GaussianActions):
        (mean, std), (other_mean, other_std) = first.chunk(2, -1), second.chunk(2, -1)
        shift = (mean - other_mean).square() / (0.5 * (std.square() + other_std.square()))
        return torch.erf(shift.sum(-1).sqrt() / math.sqrt(8))
    sizes = action_space.sizes if isinstance(action_space, MultiCategoricalActions) else [first.shape[-1]]
    parts = [part.abs().sum(-1) / 2 for part in (first - second).split(sizes, -1)]
    return torch.stack(parts).amax(0)


def entropy(action_space: ActionSpace, distributions: Tensor) -> Tensor:
    """The entropy [N] of each distribution, in nats."""
    if isinstance(action_space, GaussianActions):
        _, std = distributions.chunk(2, -1)
        return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
    return -torch.special.xlogy(distributions, distributions).sum(-1)


class StepInputs(NamedTuple):
    """The inputs of a step, apart from memory."""

    observations: Tensor  # [N, …]
    previous_actions: Tensor  # [N] or [N, n]
    previous_rewards: Tensor  # [N]


class StepOutput(NamedTuple):
    """All on the CPU."""

    distributions: Tensor  # [N, W]
    values: Tensor  # [N]
    memory: Tensor  # [N, U] after the step


class MemoryStep:
    """`step(inputs, memory, starts)`. A row's memory is U numbers: all stores of the policy, side by side."""

    def __init__(self, agent: MettaAgent) -> None:
        self.agent = copy_with_own_memory(agent)
        self.agent.bind(agent.env_spec)
        self.action_space = self.agent.action_space
        self.device = next(self.agent.parameters()).device
        self.units = sum(layers * size for layers, size in self.agent.memory_shapes().values())

    @torch.no_grad()
    def __call__(self, inputs: StepInputs, memory: Tensor, starts: Tensor) -> StepOutput:
        """Memory [N, U] and starts [N]: memory is cleared where an episode starts."""
        chunks = zip(*(field.split(MAX_ROWS) for field in (*inputs, memory, starts)), strict=True)
        outputs = [self._step(StepInputs(*fields), memory_NU, starts_N) for *fields, memory_NU, starts_N in chunks]
        return StepOutput(*(torch.cat(fields) for fields in zip(*outputs, strict=True)))

    def _step(self, inputs: StepInputs, memory: Tensor, starts: Tensor) -> StepOutput:
        rows = len(starts)
        self.agent.reserve_memory(rows)
        write_units(self.agent, memory)
        starts = starts.to(self.device)
        fields = {
            "env_obs": inputs.observations.to(self.device),
            "previous_actions": inputs.previous_actions.to(self.device),
            "previous_rewards": inputs.previous_rewards.to(self.device),
            "dones": starts,
            "truncateds": torch.zeros_like(starts),
            "starts": starts,
            "training_env_id_start": torch.zeros(rows, dtype=torch.long, device=self.device),
            "action_noise": torch.full((rows, self.action_space.noise), MEAN_NOISE, device=self.device),
        }
        td = self.agent(TensorDict(fields, batch_size=[rows]))
        return StepOutput(
            distributions(self.action_space, td).cpu(), td["values"].float().cpu(), read_units(self.agent, rows)
        )


def read_units(agent: MettaAgent, rows: int) -> Tensor:
    """A copy of the memory [rows, U] of an agent's first rows."""
    stores = agent.policy.stores().values()
    return torch.cat(
        [torch.zeros(rows, 0), *(store.memory_NLS[:rows].flatten(1).float().cpu() for store in stores)], -1
    )


def write_units(agent: MettaAgent, memory: Tensor) -> None:
    """Replace the memory of an agent's first N rows by these units [N, U]."""
    stores = agent.policy.stores().values()
    sizes = [store.memory_NLS[0].numel() for store in stores]
    for store, part in zip(stores, memory.split(sizes, -1), strict=True):
        store.write(slice(0, len(memory)), part.reshape(len(memory), *store.memory_NLS.shape[1:]))


def unit_names(agent: MettaAgent) -> list[str]:
    """A name for each memory unit: its store, its layer, and its index in h or c."""
    cores = [module for module in agent.policy.modules() if isinstance(module, Core)]
    names = []
    for name, (layers, size) in agent.memory_shapes().items():
        has_cell = any(core.has_cell and core.memory_shape == (layers, size) for core in cores)
        for layer in range(layers):
            prefix = f"{name} layer {layer + 1}" if layers > 1 else name
            hidden = size // 2 if has_cell else size
            names += [f"{prefix} {'h' if unit < hidden else 'c'}[{unit % hidden}]" for unit in range(size)]
    return names
