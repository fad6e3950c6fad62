"""PolicyStep: one acting step of an agent as a function of tensors, which can be traced."""

# B rows, M floats of memory per row, W logits, D dimensions of continuous actions

import math

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.actions import ActionSample, ActionSpace, GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.agent.observations import with_parts
from engram.training.evaluate import copy_with_own_memory

OBSERVATIONS = "observations"  # the name of `env_obs` outside of Engram


class PolicyStep(nn.Module):
    """`step(observations, memory, starts) -> (action, distribution, value, memory)`, on a copy of an agent.

    Observations are tensors [B, ...] by name, memory is [B, M] (zeros to begin with), and starts [B] are true where an
    observation is the first of an episode. The action is the most likely one. The distribution is log-probabilities
    [B, W], or the log standard deviations [B, D] of continuous actions.

    Nothing is stored between calls, so `torch.export` and `torch.onnx` see the whole computation.
    """

    def __init__(self, agent: MettaAgent, use_memory: bool = True) -> None:
        super().__init__()
        self.agent = copy_with_own_memory(agent)
        self.use_memory = use_memory
        self.agent.policy.action_space = GreedyActions(agent.action_space)  # type: ignore[assignment]
        self.memory_sizes = {name: math.prod(shape) for name, shape in agent.memory_shapes().items()}
        seen = with_parts(agent.env_spec, agent.get_agent_experience_spec().unsqueeze(0))
        self.keys = {_graph_name(key): key for key in seen.keys(include_nested=True, leaves_only=True)}
        self.fields = {name: field[0] for name, field in self.inputs(seen).items()}  # one row of each
        self.eval()

    def forward(self, observations: dict[str, Tensor], memory: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        td = TensorDict({}, batch_size=[starts.shape[0]])
        for name, tensor in observations.items():
            td[self.keys[name]] = tensor
        td["starts"] = starts if self.use_memory else torch.ones_like(starts)
        stores = self.agent.policy.stores()
        try:
            for name, part in zip(stores, memory.split([*self.memory_sizes.values()], dim=1), strict=True):
                stores[name].carried = part.unflatten(1, stores[name].memory_NLS.shape[1:])
            td = self.agent(td)
            parts = [store.carried.flatten(1) for store in stores.values() if store.carried is not None]
        finally:
            for store in stores.values():
                store.carried = None
        return td["actions"], td["full_log_probs"], td["values"], torch.cat(parts, dim=1) if parts else memory

    def inputs(self, td: TensorDictBase) -> dict[str, Tensor]:
        """The observations of a td, by their names in the graph."""
        seen = with_parts(self.agent.env_spec, td)
        return {name: seen[key] for name, key in self.keys.items()}

    def example(self, rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Arguments of a call: empty observations and memory, at the start of an episode."""
        observations = {name: field.new_zeros(rows, *field.shape) for name, field in self.fields.items()}
        return observations, torch.zeros(rows, sum(self.memory_sizes.values())), torch.ones(rows, dtype=torch.bool)


class GreedyActions:
    """An action space whose `sample` takes the most likely action, with operators that other runtimes have."""

    def __init__(self, actions: ActionSpace) -> None:
        self.actions, self.logits, self.noise = actions, actions.logits, actions.noise

    def sample(self, logits: Tensor, noise: Tensor) -> ActionSample:
        if isinstance(self.actions, GaussianActions):
            mean, log_std = self.actions.parameters(logits)
            return ActionSample(mean.reshape(-1, *self.actions.shape), -log_std.sum(-1), log_std)
        sample = self.actions.sample(logits, noise)
        return sample._replace(actions=self.actions.greedy(sample.full_log_probs, sample.actions))


def _graph_name(key: str | tuple[str, ...]) -> str:
    """`observations`, or `observations.image` and so on for its parts; other fields keep their names."""
    first, *rest = [key] if isinstance(key, str) else [*key]
    return ".".join([OBSERVATIONS if first == "env_obs" else first, *rest])
