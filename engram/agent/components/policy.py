"""ComponentPolicy: a policy assembled from YAML."""

# B rows, T steps, N = B * T

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.agent.components.component import Source
from engram.agent.components.graph import OBSERVATION, read_graph
from engram.agent.components.kind import Kind, Layer, Weighted
from engram.agent.components.layer_kinds import Merge
from engram.agent.components.library import build
from engram.agent.components.plan import make_plan
from engram.agent.components.shapes import Target
from engram.agent.policies.base import Policy, call_shape
from engram.agent.policies.lstm_wrapper import Memory, join_memory, split_memory
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.memory_call import remember_and_run
from engram.agent.recurrent.store import MemoryStore
from engram.agent.recurrent.tanh import tanh
from engram.agent.settings import Agent
from engram.agent.weights import WeightOptions
from engram.settings import SettingsError

NONLINEARITIES = {"relu": torch.relu, "gelu": F.gelu, "tanh": tanh}


class ComponentPolicy(Policy):
    """Components by name, each with a kind and its sources; the settings of a run, or only their components.

    All that is wrong with them is raised at once, as a `SettingsError`, before anything is built. Whatever remembers
    does so under its component's name.
    """

    def __init__(
        self,
        env: object,
        components: Agent | Mapping[str, Mapping[str, Any]],
        clip_range: float = 0,
        analyze_weights_interval: int = 300,
    ) -> None:
        if isinstance(components, Agent):
            clip_range, analyze_weights_interval = components.clip_range, components.analyze_weights_interval
            components = components.components
        super().__init__(env, clip_range, analyze_weights_interval)
        self.components, self.memories = nn.ModuleDict(), nn.ModuleDict()
        target = Target(self.env_spec, self.action_space.logits)
        graph = read_graph(components)
        self.plan = make_plan(graph, target)
        for name in graph.components:
            if name in dir(self.components):
                graph.problems.note(name, "PyTorch has a use of its own for this name: give it another")
        if graph.problems.lines:
            raise SettingsError(graph.problems.lines)
        for step in self.plan:
            self._add(step.name, build(step, target), step.options)

    def forward(self, td: TensorDictBase, state: Any = None, action: Tensor | None = None) -> TensorDictBase:
        rows, steps = call_shape(td, action)
        self.set_shape_fields(td, rows, steps)
        stores = self.stores()
        outputs: dict[str, Any] = {OBSERVATION: self._observations(td)}
        for step in self.plan:
            inputs = [part(outputs[source.name], source) for source in step.sources]
            module = self.components[step.name]
            if isinstance(module, Core):
                output = remember_and_run(module, stores[step.name], step.name, inputs[0], td, rows, steps)
            else:
                output = module(*inputs)
            outputs[step.name] = after(step.options, output)
        if action is None:
            return self.forward_inference(td, outputs["_action_"], outputs["_value_"])
        return self.forward_training(td, action, outputs["_action_"], outputs["_value_"])

    def stores(self) -> Mapping[str, MemoryStore]:
        return {name: store for name, store in self.memories.items() if isinstance(store, MemoryStore)}

    def get_memory(self) -> dict[str, Memory]:
        """By component, copies of h [L, H] and c [L, C], each by environment id."""
        memory = {}
        for name, store in self.stores().items():
            core = self.components[name]
            assert isinstance(core, Core)
            memory[name] = split_memory(store, core.hidden_size)
        return memory

    def set_memory(self, memory: Mapping[str, tuple[Mapping[int, Tensor], Mapping[int, Tensor]]]) -> None:
        stores = self.stores()
        if memory.keys() != stores.keys():
            raise ValueError(f"memory is of {', '.join(memory)}, and what remembers here is {', '.join(stores)}")
        for name, store in stores.items():
            store.load(join_memory(memory[name]))

    def _add(self, name: str, module: nn.Module, options: Kind) -> None:
        self.components[name] = module
        if isinstance(module, Core):
            self.memories[name] = MemoryStore(*module.state_shape)
        if isinstance(options, Weighted):
            self.weight_options[f"components.{name}"] = WeightOptions(
                clip_scale=options.clip_scale,
                l2_init_scale=options.l2_init_scale,
                analyze_weights=options.analyze_weights,
                effective_rank=options.effective_rank,
            )

    def _observations(self, td: TensorDictBase) -> Tensor:
        """[N, …]; tokens and images in their bytes, a vector in the numbers that layers compute with."""
        observations = td["env_obs"].flatten(0, td.batch_dims - 1)
        if self.env_spec.observation_kind != "vector":
            return observations
        return observations.to(self.components["_core_"].weight_ih_l0.dtype)


def part(output: Any, source: Source) -> Any:
    """What a component sees of another one's output."""
    return output[:, source.start : source.stop] if source.is_part else output


def after(options: Kind, output: Any) -> Any:
    """A component's output after its nonlinearity."""
    if not isinstance(options, Layer | Merge) or options.nonlinearity == "linear":
        return output
    return NONLINEARITIES[options.nonlinearity](output)
