"""MettaAgent: a policy bound to an environment."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.actions import ActionSpace
from engram.agent.make import make_policy
from engram.agent.policies.policy import Policy
from engram.agent.settings import Agent, PyAgent
from engram.env.spec import EnvSpec


class MettaAgent(nn.Module):
    """What training, evaluation and audit hold: the policy, and what binds it to one environment."""

    def __init__(self, env: object, policy: Policy | PyAgent | Agent) -> None:
        super().__init__()
        self.env_spec = EnvSpec.of(env)
        self.policy = policy if isinstance(policy, Policy) else make_policy(self.env_spec, policy)

    @property
    def action_space(self) -> ActionSpace:
        return self.policy.action_space

    def forward(self, td: TensorDictBase, state: Any = None, action: Tensor | None = None) -> TensorDictBase:
        return self.policy(td, state=state, action=action)

    def get_agent_experience_spec(self) -> TensorDict:
        return self.policy.get_agent_experience_spec()

    def memory_shapes(self) -> dict[str, tuple[int, int]]:
        return self.policy.memory_shapes()

    def memory_of(self, ids_B: Tensor) -> dict[str, Tensor]:
        return self.policy.memory_of(ids_B)

    def reserve_memory(self, rows: int) -> None:
        self.policy.reserve_memory(rows)

    def reset_memory(self) -> None:
        self.policy.reset_memory()

    def stored_memory(self) -> Mapping[str, Tensor]:
        """All memory as tensors, for a checkpoint."""
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
        """Root mean square of all that is remembered."""
        total = [store.memory_NLS.square().mean() for store in self.policy.stores().values()]
        return torch.stack(total).mean().sqrt() if total else torch.zeros(())

    def recurrent_parameters(self) -> list[nn.Parameter]:
        return self.policy.recurrent_parameters()

    def clip_weights(self) -> None:
        self.policy.clip_weights()
