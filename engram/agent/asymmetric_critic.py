"""An asymmetric critic: it reads all parts of the observation, also those that the actor does not see."""

# B rows, T steps, N = B * T, H hidden size

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.agent.encoders.parts import PartsEncoder
from engram.agent.heads import make_critic
from engram.agent.observations import Observations
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.store import MemoryStore, run_with_memory
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.settings import UserError

CRITIC_INPUTS = 128


class AsymmetricCritic(nn.Module):
    """Values from all parts: with the memory of the actor, or with its own."""

    def __init__(self, spec: EnvSpec, hidden_size: int, core: Core | None) -> None:
        super().__init__()
        self.encoder = PartsEncoder(spec, CRITIC_INPUTS)
        self.core = core
        self.memory = None if core is None else MemoryStore(*core.memory_shape)
        self.head = make_critic(spec, hidden_size + CRITIC_INPUTS if core is None else core.hidden_size)

    def forward(
        self, observations: Observations, hidden_NH: Tensor, td: TensorDictBase, shape: tuple[int, int]
    ) -> Tensor:
        features = self.encoder(observations)
        if self.core is None or self.memory is None:
            return self.head(torch.cat([hidden_NH, features.to(hidden_NH.dtype)], -1))
        return self.head(run_with_memory(self.core, self.memory, "critic", features, td, *shape))


def actor_spec(spec: EnvSpec, critic_only: Sequence[str]) -> EnvSpec:
    """The environment as the actor sees it."""
    names = [part.name for part in spec.parts]
    for name in critic_only:
        if name not in names:
            hint = suggestion(name, names, otherwise=f"; it has {', '.join(names) or 'one observation without parts'}")
            raise UserError(f"py_agent.critic_only: {spec.name} has no part {name!r}{hint}")
    if critic_only and not set(names) - {*critic_only}:
        raise UserError(f"py_agent.critic_only: nothing is left for the actor; {spec.name} has only {', '.join(names)}")
    return spec.without_parts(critic_only)
