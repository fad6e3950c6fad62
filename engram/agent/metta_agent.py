"""MettaAgent: a policy bound to an environment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.actions import ActionSpace, CategoricalActions
from engram.agent.observations import torch_dtype, with_parts
from engram.agent.policies.base import Policy
from engram.agent.policy_factory import make_policy
from engram.agent.recurrent.core import Core
from engram.agent.settings import PyAgent, YamlAgent
from engram.agent.transfer import (
    FeatureMap,
    Features,
    check_compatible,
    load_weights,
    make_feature_map,
    read_features,
    unknown_features,
    with_new_features,
)
from engram.env.parts import ACTION_MASK
from engram.env.spec import EnvSpec, Feature
from engram.settings import UserError


class MettaAgent(nn.Module):
    """The policy that training, evaluation and audit use, bound to one environment.

    `env_spec` is the environment it acts in now, `policy.env_spec` the one the policy was built for.

    >>> import gymnasium
    >>> from engram import Fast
    >>> env = gymnasium.make_vec("CartPole-v1")
    >>> agent = MettaAgent(env, Fast(env))
    """

    def __init__(self, env: object, policy: Policy | PyAgent | YamlAgent) -> None:
        super().__init__()
        self.env_spec = EnvSpec.of(env)
        self.settings = None if isinstance(policy, Policy) else policy
        self.policy = policy if isinstance(policy, Policy) else make_policy(self.env_spec, policy)
        self.feature_map: FeatureMap | None = None
        self.train(self.policy.training)
        self._bind(self.env_spec)

    @property
    def action_space(self) -> ActionSpace:
        return self.policy.action_space

    def forward(self, td: TensorDictBase, state: Any = None, action: Tensor | None = None) -> TensorDictBase:
        seen = with_parts(self.env_spec, td)
        if self.feature_map is not None:
            seen = seen.copy().set("env_obs", self.feature_map(seen["env_obs"]))
        if seen is td:
            return self.policy(td, state=state, action=action)
        # The td keeps the environment's rows: stored ones are unpacked and mapped again when they are replayed.
        return td.update(self.policy(seen, state=state, action=action).exclude("env_obs", ACTION_MASK))

    # Binding.

    def bind(self, env: object) -> None:
        """Move to a different environment, with empty memory.

        Features are matched by name, whatever their ids. In training mode the policy grows for features it does not
        know (bind before making the optimiser, since the parameters are replaced); in evaluation mode they are masked.
        """
        self._bind(EnvSpec.of(env))
        self.reset_memory()

    def initialize_to_environment(
        self,
        features: Features,
        action_names: Sequence[str],
        action_max_params: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Like `bind`, to an environment that differs from the current one in its features and actions only."""
        names, max_params = tuple(action_names), None if action_max_params is None else tuple(action_max_params)
        spec = replace(self.env_spec, features=read_features(features), action_names=names)
        if isinstance(spec.single_action_space, spaces.Discrete):
            count = len(names) if max_params is None else sum(largest + 1 for largest in max_params)
            spec = replace(spec, single_action_space=spaces.Discrete(count))
        elif max_params:
            space = spaces.MultiDiscrete([len(max_params), max(max_params) + 1])
            spec = replace(spec, single_action_space=space, action_max_params=max_params)
        self.bind(spec)
        self.to(device)

    def _bind(self, spec: EnvSpec) -> None:
        check_compatible(self.policy.env_spec, spec)
        unknown = unknown_features(self.policy.env_spec.features, spec.features)
        if unknown and self.training:
            self._grow(unknown)
        self.env_spec = spec
        _ = spec.packing  # computed here: torch.compile cannot trace a cached property that is still empty
        self.feature_map = make_feature_map(self.policy.env_spec.features, spec.features)
        if self.feature_map is not None:
            self.feature_map.to(next(self.policy.parameters()).device)

    def _grow(self, features: Sequence[Feature]) -> None:
        """Replace the policy by a larger one that has these features too, and copy the weights."""
        if self.settings is None:
            names = ", ".join(feature.name for feature in features)
            raise UserError(
                f"agent: the policy does not know the features {names}, so it cannot learn them: make a policy for "
                "with_new_features(policy.env_spec, features) and load_weights, both from engram.agent.transfer, "
                "or call policy.eval() first, which masks them"
            )
        old, parameter = self.policy, next(self.policy.parameters())
        self.policy = make_policy(with_new_features(old.env_spec, features), self.settings)
        load_weights(self.policy, old.state_dict(), old.env_spec)
        self.policy.to(parameter).reserve_memory(max(store.capacity for store in old.stores().values()))

    # Actions.

    def convert_index_to_action(self, index: Tensor | int) -> Tensor:
        """The environment's action, [...] or (type, parameter) [..., 2], for the index of a logit [...]."""
        index, actions = torch.as_tensor(index), self._categorical_actions()
        if ((index < 0) | (index >= actions.logits)).any():
            raise ValueError(f"action indices must be from 0 to {actions.logits - 1}, got {index.tolist()}")
        return actions.to_action(index)

    def convert_action_to_index(self, action: Tensor | Sequence[int] | int) -> Tensor:
        """The inverse of `convert_index_to_action`."""
        action, actions = torch.as_tensor(action), self._categorical_actions()
        try:
            index = actions.to_index(action)
            valid = torch.equal(self.convert_index_to_action(index), action.long())
        except (IndexError, ValueError):
            valid = False
        if not valid:
            raise ValueError(f"{action.tolist()} is not an action of {self.env_spec.single_action_space}")
        return index

    def _categorical_actions(self) -> CategoricalActions:
        if isinstance(self.action_space, CategoricalActions):
            return self.action_space
        raise ValueError(
            f"{self.env_spec.single_action_space} has no flat index; Discrete and (type, parameter) actions have one"
        )

    # Experience.

    def get_agent_experience_spec(self) -> TensorDict:
        """One row of each field the policy needs in learning, with observations as the environment stores them."""
        spec, (shape, dtype) = self.policy.get_agent_experience_spec(), self.env_spec.row
        return spec.set("env_obs", torch.zeros(shape, dtype=torch_dtype(dtype)))

    # Memory.

    def has_memory(self) -> bool:
        return self.policy.has_memory()

    def get_memory(self) -> Any:
        return self.policy.get_memory()

    def set_memory(self, memory: Any) -> None:
        self.policy.set_memory(memory)

    def reset_memory(self) -> None:
        self.policy.reset_memory()

    def reset_env_memory(self, env_id: int) -> None:
        self.policy.reset_env_memory(env_id)

    def memory_shapes(self) -> dict[str, tuple[int, int]]:
        return self.policy.memory_shapes()

    def memory_of(self, ids_B: Tensor) -> dict[str, Tensor]:
        return self.policy.memory_of(ids_B)

    def reserve_memory(self, rows: int) -> None:
        self.policy.reserve_memory(rows)

    def spread_time_scales(self, horizon: int) -> None:
        """Initialise the cores of a new policy for memories of up to `horizon` steps."""
        for module in self.policy.modules():
            if isinstance(module, Core):
                module.spread_time_scales(horizon)

    def set_burn_in(self, steps: int) -> None:
        """Use the first steps of each segment only to warm up memory, without gradient."""
        for module in self.policy.modules():
            if isinstance(module, Core):
                module.burn_in = steps

    def stored_memory(self) -> Mapping[str, Tensor]:
        """All memory as tensors by name, for a checkpoint."""
        return {
            f"{name}.{field}": tensor
            for name, store in self.policy.stores().items()
            for field, tensor in (("memory", store.memory_NLS), ("known", store.known_N))
        }

    def load_stored_memory(self, tensors: Mapping[str, Tensor]) -> None:
        for name, store in self.policy.stores().items():
            memory, known = tensors[f"{name}.memory"], tensors[f"{name}.known"]
            store.reserve(known.shape[0])
            store.clear()
            store.memory_NLS[: known.shape[0]] = memory.to(store.memory_NLS.device)
            store.known_N[: known.shape[0]] = known.to(store.known_N.device)

    def memory_norm(self) -> Tensor:
        """RMS of all memory."""
        total = [store.memory_NLS.square().mean() for store in self.policy.stores().values()]
        return torch.stack(total).mean().sqrt() if total else torch.zeros(())

    # Weights.

    def recurrent_parameters(self) -> list[nn.Parameter]:
        return self.policy.recurrent_parameters()

    def clip_weights(self) -> None:
        self.policy.clip_weights()

    def l2_init_loss(self) -> Tensor:
        return self.policy.l2_init_loss()

    def update_l2_init_weight_copy(self) -> None:
        self.policy.update_l2_init_weight_copy()

    def compute_weight_metrics(self) -> dict[str, float]:
        return self.policy.compute_weight_metrics()
