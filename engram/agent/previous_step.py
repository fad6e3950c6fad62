"""The previous action and reward as inputs of a policy: zero where an episode starts."""

# B rows, T steps, N = B * T

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from engram.agent.actions import ActionSpace, GaussianActions
from engram.agent.recurrent.store import episode_starts
from engram.env.parts import PREVIOUS_ACTION
from engram.env.spec import EnvSpec
from engram.settings import UserError

PREVIOUS = {"action": "previous_actions", "reward": "previous_rewards"}  # input -> field of the td


class PreviousStep:
    """Turns the fields `previous_actions` and `previous_rewards` of a td into inputs [N, size]."""

    def __init__(self, names: Sequence[str], spec: EnvSpec, actions: ActionSpace) -> None:
        unknown = [name for name in names if name not in PREVIOUS]
        if unknown:
            raise UserError(f"py_agent.previous: {unknown[0]!r} is not one of {', '.join(PREVIOUS)}")
        self.names, self.spec, self.actions = tuple(names), spec, actions
        self.size = actions.encoded * ("action" in names) + ("reward" in names)

    def fields(self) -> dict[str, Tensor]:
        """One row of each field, for the experience."""
        continuous = isinstance(self.actions, GaussianActions)
        shape, dtype = self.spec.single_action_space.shape, torch.float32 if continuous else torch.int32
        fields = {"action": torch.zeros(shape, dtype=dtype), "reward": torch.zeros(())}
        return {PREVIOUS[name]: fields[name] for name in self.names}

    def append_to(self, features_N: Tensor, td: TensorDictBase, rows: int, steps: int) -> Tensor:
        """The features, with these inputs appended."""
        inputs_N = self(td, episode_starts(td, rows, steps).t().reshape(-1))
        return torch.cat([features_N.flatten(1), inputs_N.to(features_N.dtype)], -1)

    def __call__(self, td: TensorDictBase, starts_N: Tensor) -> Tensor:
        inputs = []
        for name in self.names:
            value = td.get(PREVIOUS[name], None)
            if value is None:
                raise UserError(
                    f"the policy reads the previous {name}: give the td the field {PREVIOUS[name]!r}, "
                    f"[{', '.join(map(str, td.batch_size))}] or more; its values at episode starts are ignored"
                )
            flat = value.flatten(0, td.batch_dims - 1)
            inputs.append(self.actions.encode(flat) if name == "action" else _compressed(flat).unsqueeze(-1))
        return torch.cat(inputs, -1).masked_fill(starts_N.unsqueeze(-1), 0)


def split_previous(names: Sequence[str] | None, spec: EnvSpec) -> tuple[list[str], list[str]]:
    """The inputs that a policy reads beside its observation, and the parts of the observation that it must not read.

    An environment whose observations are only symbols shows the previous action as a part already.
    """
    shown = any(part.name == PREVIOUS_ACTION for part in spec.parts)
    if not shown:
        return list(names or ()), []
    excluded = [PREVIOUS_ACTION] if names is not None and "action" not in names else []
    return [name for name in names or () if name != "action"], excluded


def _compressed(rewards_N: Tensor) -> Tensor:
    """sign(r) log(1 + |r|), so that large rewards do not drown the other inputs."""
    return rewards_N.sign() * rewards_N.abs().log1p()
