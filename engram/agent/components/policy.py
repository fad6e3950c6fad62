"""ComponentPolicy: a policy assembled from YAML."""

# B rows, T steps, N = B * T

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.agent.components.component import BuildContext, Component, LayerComponent, Shape, WeightedComponent
from engram.agent.components.graph import OBSERVATION, read_graph
from engram.agent.components.layers import MergeComponent
from engram.agent.components.node import NodeInput
from engram.agent.components.plan import PlanStep, make_plan
from engram.agent.event_counts import EventCounts
from engram.agent.observations import Observations
from engram.agent.policies.base import Policy, call_shape
from engram.agent.policies.lstm_wrapper import Memory, join_memory, split_memory
from engram.agent.previous_step import PreviousStep, split_previous
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.store import MemoryStore, run_with_memory
from engram.agent.settings import YamlAgent
from engram.agent.weights import WeightOptions
from engram.settings import SettingsError

CORE = "_core_"
NONLINEARITIES = {"relu": torch.relu, "gelu": F.gelu, "tanh": torch.tanh}


class ComponentPolicy(Policy):
    """A policy from named components, given as plain data or as the `YamlAgent` settings of a run.

    >>> import gymnasium
    >>> components = {
    ...     "encoder": {"kind": "vector_encoder", "sources": ["_obs_"], "size": 16},
    ...     "_core_": {"kind": "lstm", "sources": ["encoder"], "hidden_size": 32, "num_layers": 1},
    ...     "_value_": {"kind": "linear", "sources": ["_core_"], "size": 1},
    ...     "_action_embeds_": {"kind": "action_embedding", "size": 8},
    ...     "_action_": {"kind": "actor", "sources": ["_core_", "_action_embeds_"]},
    ... }
    >>> policy = ComponentPolicy(gymnasium.make_vec("CartPole-v1"), components)

    All mistakes are raised at once, as one `SettingsError`, before anything is built. Each recurrent component stores
    its memory under its own name.
    """

    def __init__(
        self,
        env: object,
        components: YamlAgent | Mapping[str, Mapping[str, Any]],
        clip_range: float = 0,
        analyze_weights_interval: int = 300,
        previous: Sequence[str] | None = None,
    ) -> None:
        if isinstance(components, YamlAgent):
            clip_range, analyze_weights_interval = components.clip_range, components.analyze_weights_interval
            previous, components = components.previous, components.components
        super().__init__(env, clip_range, analyze_weights_interval)
        self.components, self.memories = nn.ModuleDict(), nn.ModuleDict()
        previous_inputs, self._excluded_parts = split_previous(previous, self.env_spec)
        self.previous = PreviousStep(previous_inputs, self.env_spec, self.action_space) if previous_inputs else None
        context = BuildContext(self.env_spec.without_parts(self._excluded_parts), self.action_space.logits)
        graph = read_graph(components)
        self.plan = make_plan(graph, context)
        for name in graph.nodes:
            if name in dir(self.components):
                graph.problems.add(name, "reserved by PyTorch's ModuleDict: rename the component")
        if graph.problems.lines:
            raise SettingsError(graph.problems.lines)
        for step in self.plan:
            self._add(step.name, step.component, step.component.build(self._inputs(step), context))

    def forward(self, td: TensorDictBase, state: Any = None, action: Tensor | None = None) -> TensorDictBase:
        rows, steps = call_shape(td, action)
        stores = self.stores()
        outputs: dict[str, Any] = {OBSERVATION: self._observations(td)}  # tensors, or tuples of them
        for step in self.plan:
            inputs = [slice_output(outputs[source.name], source) for source in step.sources]
            module = self.components[step.name]
            if self.previous is not None and step.name == CORE:
                inputs = [self.previous.append_to(inputs[0], td, rows, steps)]
            if isinstance(module, EventCounts):
                output = module(inputs[0], td, rows, steps, step.name)
            elif isinstance(module, Core):
                output = run_with_memory(module, stores[step.name], step.name, inputs[0], td, rows, steps)
            else:
                output = module(*inputs)
            outputs[step.name] = apply_nonlinearity(step.component, output)
        if action is None:
            return self.forward_inference(td, outputs["_action_"], outputs["_value_"])
        return self.forward_training(td, action, outputs["_action_"], outputs["_value_"])

    def stores(self) -> Mapping[str, MemoryStore]:
        return {name: store for name, store in self.memories.items() if isinstance(store, MemoryStore)}

    def get_memory(self) -> dict[str, Memory]:
        """For each component with memory, copies of h [L, H] and c [L, C], each by environment id."""
        memory = {}
        for name, store in self.stores().items():
            core = self.components[name]
            size = core.hidden_size if isinstance(core, Core) else store.memory_NLS.shape[2]
            memory[name] = split_memory(store, size)
        return memory

    def set_memory(self, memory: Mapping[str, tuple[Mapping[int, Tensor], Mapping[int, Tensor]]]) -> None:
        stores = self.stores()
        if memory.keys() != stores.keys():
            raise ValueError(
                f"got memory of {', '.join(memory)}, expected that of the recurrent components {', '.join(stores)}"
            )
        for name, store in stores.items():
            store.load(join_memory(memory[name]))

    def value_layer(self) -> nn.Linear | None:
        layer = self.components["_value_"]
        return layer if isinstance(layer, nn.Linear) and layer.out_features == 1 else None

    def _inputs(self, step: PlanStep) -> tuple[Shape, ...]:
        """The shapes a component reads; the core reads the previous step beside its source."""
        if self.previous is None or step.name != CORE:
            return step.inputs
        (features,) = step.inputs
        return (Shape("features", (features.sizes[0] + self.previous.size,)),)

    def _add(self, name: str, component: Component, module: nn.Module) -> None:
        self.components[name] = module
        if isinstance(module, Core):
            self.memories[name] = MemoryStore(*module.memory_shape)
        if isinstance(module, EventCounts):
            self.memories[name] = module.memory
        if isinstance(component, WeightedComponent):
            self.weight_options[f"components.{name}"] = WeightOptions(
                clip_scale=component.clip_scale,
                l2_init_scale=component.l2_init_scale,
                analyze_weights=component.analyze_weights,
                effective_rank=component.effective_rank,
            )

    def _observations(self, td: TensorDictBase) -> Observations:
        """Observations [N, …] without the excluded parts; vectors in the dtype of the weights."""
        observations = td["env_obs"].flatten(0, td.batch_dims - 1)
        if self._excluded_parts:
            observations = observations.exclude(*self._excluded_parts)
        if self.env_spec.observation_kind != "vector":
            return observations
        return observations.to(self.components[CORE].weight_ih_l0.dtype)


def slice_output(output: Any, source: NodeInput) -> Any:
    """A component's output, or the slice of it that is the source."""
    return output[:, source.start : source.stop] if source.is_slice else output


def apply_nonlinearity(component: Component, output: Any) -> Any:
    """The output after the component's nonlinearity, if it has one."""
    if not isinstance(component, LayerComponent | MergeComponent) or component.nonlinearity == "linear":
        return output
    return NONLINEARITIES[component.nonlinearity](output)
