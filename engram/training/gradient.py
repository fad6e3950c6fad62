"""The gradient of one minibatch: replay it, take the loss, go backward; in parts where it does not fit."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.training.distributed import ALONE, World
from engram.training.experience import Minibatch
from engram.training.kickstart import with_imitation
from engram.training.ppo import Losses, add_losses, ppo_loss
from engram.training.precision import autocast
from engram.training.replay import replay
from engram.training.settings import Trainer
from engram.training.trace import Trace


class Learned(NamedTuple):
    """What came of a minibatch, beside the gradients that the parameters have now."""

    replayed: Mapping[str, Tensor]  # [B, T]: act_log_prob and value, without a graph, of this process's own part
    losses: Losses


def compute_gradient(
    agent: MettaAgent, minibatch: Minibatch, settings: Trainer, trace: Trace, world: World = ALONE
) -> Learned:
    """Leaves the gradient of the minibatch's loss in the parameters, whatever the number of parts and of processes.

    The minibatches of all processes are parts of one: losses and gradients are sums over all of its steps, divided by
    their number.
    """
    for parameter in agent.parameters():
        parameter.grad = None
    size, parts = world.sum(minibatch.size), minibatch.parts(settings.accumulate)
    replays: list[dict[str, Tensor]] = []
    losses: list[Losses] = []
    for part in parts:
        trace("minibatch", part.data, memory=part.memory, advantages=part.advantages, weights=part.weights)
        with autocast(settings.precision, part.weights.device):
            replayed = replay(agent, part, settings.memory)
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
            distance = agent.l2_init_loss() / (len(parts) * world.size)  # every part bears its share
            loss = loss._replace(total=loss.total + settings.ppo.l2_init_coef * distance, l2_init=distance)
        if settings.kickstart is not None and settings.teaching:
            loss = with_imitation(loss, replayed, part, size, settings.kickstart)
        loss.total.backward()
        replays.append({name: replayed[name].detach() for name in ("act_log_prob", "value")})
        losses.append(loss)
    total = world.add_up(agent.parameters(), add_losses(losses))
    if len(parts) == 1:
        return Learned(replays[0], total)
    return Learned({name: torch.cat([each[name] for each in replays]) for name in replays[0]}, total)
