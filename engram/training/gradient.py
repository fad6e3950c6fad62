"""The gradient of one minibatch: replay, loss, backward; in several parts if it does not fit into memory.

Replay: the policy sees a stored minibatch again, from the memory at each segment's start.
"""

# B segments, T steps

from collections.abc import Mapping
from typing import NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from engram.agent.metta_agent import MettaAgent
from engram.training.device import autocast
from engram.training.distributed import ALONE, World
from engram.training.experience import POLICY_FIELDS, Minibatch, learnable
from engram.training.kickstart import add_imitation
from engram.training.ppo import Losses, ppo_loss, sum_losses
from engram.training.settings import Trainer
from engram.training.trace import Trace


class ReplayError(NamedTuple):
    """Largest difference between the rollout and its replay before any update: 0 up to rounding if memory is right."""

    replay_error: Tensor  # of log-probabilities
    replay_error_value: Tensor


class MinibatchResult(NamedTuple):
    """The results of a minibatch beside its gradient, which is in the parameters."""

    replayed: Mapping[str, Tensor]  # [B, T]: act_log_prob and value of this rank's minibatch, detached
    losses: Losses


def compute_gradient(
    agent: MettaAgent, minibatch: Minibatch, settings: Trainer, trace: Trace, world: World = ALONE
) -> MinibatchResult:
    """Leaves the gradient of the minibatch's mean loss in the parameters.

    The minibatches of all ranks count as one: losses and gradients are sums over all its steps, divided by their
    number. So the result does not depend on the number of parts or ranks.
    """
    for parameter in agent.parameters():
        parameter.grad = None
    size, parts = world.sum(minibatch.size), minibatch.split(settings.accumulate)
    replays: list[dict[str, Tensor]] = []
    losses: list[Losses] = []
    for part in parts:
        trace("minibatch", part.data, memory=part.memory, advantages=part.advantages, weights=part.weights)
        with autocast(settings.precision, part.weights.device):
            replayed = replay(agent, part)
        trace("replay", replayed)
        loss = ppo_loss(
            log_prob=replayed["act_log_prob"],
            entropy=replayed["entropy"],
            value=replayed["value"],
            old_log_prob=part.data["act_log_prob"],
            old_value=part.data["values"],
            advantages=part.advantages,
            returns=part.data["returns"],
            weights=part.weights,
            size=size,
            settings=settings.ppo,
            value_unit=part.value_unit,
        )
        if settings.ppo.l2_init_coef > 0:
            distance = agent.l2_init_loss() / (len(parts) * world.size)  # each part adds its share
            loss = loss._replace(total=loss.total + settings.ppo.l2_init_coef * distance, l2_init=distance)
        if settings.kickstart is not None and settings.teaching:
            loss = add_imitation(loss, replayed, part, size, settings.kickstart)
        loss.total.backward()
        replays.append({name: replayed[name].detach() for name in ("act_log_prob", "value")})
        losses.append(loss)
    total = world.all_reduce_gradients(agent.parameters(), sum_losses(losses))
    if len(parts) == 1:
        return MinibatchResult(replays[0], total)
    return MinibatchResult({name: torch.cat([each[name] for each in replays]) for name in replays[0]}, total)


def replay(agent: nn.Module, minibatch: Minibatch) -> TensorDictBase:
    """Log-probabilities, entropies and values [B, T] of the stored actions, with a graph."""
    data = minibatch.data
    rows, steps = data.batch_size
    memory = {name: value.unsqueeze(1).expand(-1, steps, *value.shape[1:]) for name, value in minibatch.memory.items()}
    fields = {name: data[name] for name in POLICY_FIELDS if name in data.keys()}  # noqa: SIM118
    td = TensorDict({**fields, "memory": TensorDict(memory, [rows, steps])}, batch_size=[rows, steps])
    return agent(td, action=data["actions"])


def replay_error(replayed: Mapping[str, Tensor], minibatch: Minibatch, world: World = ALONE) -> ReplayError:
    """The largest differences over the steps of all ranks."""
    data, counted = minibatch.data, learnable(minibatch.data)

    def largest(new: Tensor, old: Tensor) -> Tensor:
        return world.max(((new.detach() - old).abs() * counted).max())

    return ReplayError(
        largest(replayed["act_log_prob"], data["act_log_prob"]), largest(replayed["value"], data["values"])
    )
