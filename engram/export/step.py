"""PolicyStep: one acting step of an agent as a function of tensors, which can be traced."""

# B rows, M floats of memory per row, W logits, D dimensions of continuous actions

import math
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from engram.agent.actions import ActionSample, ActionSpace, GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.training.evaluate import copy_with_own_memory

OBSERVATIONS = "observations"  # the name of `env_obs` outside of Engram


class StepOutputs(NamedTuple):
    action: Tensor  # the most likely one: [B], [B, D], or [B, *shape] for continuous actions
    distribution: Tensor  # log-probabilities [B, W], or log standard deviations [B, D] for continuous actions
    value: Tensor  # [B]
    memory: Tensor  # [B, M]


class PolicyStep(nn.Module):
    """`step(observations, memory, starts) -> (action, distribution, value, memory)`, on a copy of an agent.

    Observations are tensors [B, ...] by name, memory is [B, M] (zeros to begin with), and starts [B] are true where an
    observation is the first of an episode. Nothing is stored between calls, so that `torch.export` and `torch.onnx`
    see the whole computation.
    """

    def __init__(self, agent: MettaAgent, use_memory: bool = True) -> None:
        super().__init__()
        self.agent = copy_with_own_memory(agent).requires_grad_(False)
        self.use_memory = use_memory
        self.agent.policy.action_space = GreedyActions(agent.action_space)
        self.memory_size = sum(math.prod(shape) for shape in agent.memory_shapes().values())
        self.fields = dict(_leaves(agent.get_agent_experience_spec()))  # one row of each, by its name in the graph

    def forward(self, observations: dict[str, Tensor], memory: Tensor, starts: Tensor) -> StepOutputs:
        stores = self.agent.policy.stores()
        sizes = [math.prod(shape) for shape in self.agent.memory_shapes().values()]
        fields = {_td_key(name): tensor for name, tensor in observations.items()}
        td = TensorDict({}, batch_size=[starts.shape[0]])
        for key, tensor in fields.items():
            td[key] = tensor
        td["starts"] = starts if self.use_memory else torch.ones_like(starts)
        try:
            for store, part in zip(stores.values(), memory.split(sizes, dim=1), strict=True):
                store.carried = part.unflatten(1, store.memory_NLS.shape[1:])
            td = self.agent(td)
            new = [store.carried.flatten(1) for store in stores.values() if store.carried is not None]
        finally:
            for store in stores.values():
                store.carried = None
        next_memory = torch.cat(new, dim=1) if new else memory
        return StepOutputs(td["actions"], td["full_log_probs"], td["values"], next_memory)

    def initial_memory(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.memory_size)


class GreedyActions:
    """The most likely action instead of a sampled one, by operators that other runtimes have."""

    def __init__(self, actions: ActionSpace) -> None:
        self.actions, self.logits, self.noise = actions, actions.logits, actions.noise

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample:
        if isinstance(self.actions, GaussianActions):
            mean, log_std = self.actions.parameters(logits)
            return ActionSample(mean.reshape(-1, *self.actions.shape), -log_std.sum(-1), log_std)
        sample = self.actions.sample(logits, noise)
        return sample._replace(actions=self.actions.greedy(sample.full_log_probs, sample.actions))


def _leaves(spec: TensorDict) -> list[tuple[str, Tensor]]:
    leaves = spec.items(include_nested=True, leaves_only=True)
    return [(_graph_name(key), tensor) for key, tensor in leaves]


def _graph_name(key: str | tuple[str, ...]) -> str:
    first, *rest = (key,) if isinstance(key, str) else key
    return ".".join([OBSERVATIONS if first == "env_obs" else first, *rest])


def _td_key(name: str) -> tuple[str, ...]:
    first, *rest = name.split(".")
    return ("env_obs" if first == OBSERVATIONS else first, *rest)
