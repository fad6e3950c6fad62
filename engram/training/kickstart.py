"""Kickstarting: the policy starts by imitating a trained one, the teacher, which sees the same observations."""

# B rows or segments, T steps, W log-probabilities

from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from engram.agent.actions import MEAN_NOISE, GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import PyAgent, YamlAgent
from engram.env.spec import EnvSpec
from engram.settings import UserError
from engram.stored.files import UnreadableError, read_yaml
from engram.stored.trust import require_trust
from engram.training.checkpoint.loading import find_checkpoint, load_agent
from engram.training.experience import POLICY_FIELDS, Minibatch
from engram.training.ppo import Losses
from engram.training.schedule import Ramp
from engram.training.settings import Kickstart, Trainer


class Imitation(NamedTuple):
    """Distance of a policy from its teacher."""

    action: Tensor  # cross-entropy with the teacher's action probabilities
    value: Tensor  # mean squared difference of values


class Teacher:
    """A trained policy that gets the same observations as the learning one, with its own memory of every row."""

    def __init__(self, agent: MettaAgent) -> None:
        self.agent = agent.eval().requires_grad_(False)
        self.fields = TensorDict(
            {"teacher_log_probs": torch.zeros(agent.action_space.logits), "teacher_values": torch.zeros(())}
        )

    def evaluate(self, td: TensorDictBase) -> dict[str, Tensor]:
        """The teacher's log-probabilities and values for an acting td [B], which is not changed."""
        inputs = td.select(*POLICY_FIELDS, "training_env_id_start", strict=False).copy()
        # Fixed noise, because the teacher's actions are not used.
        noise = torch.full((*td.batch_size, self.agent.action_space.noise), MEAN_NOISE, device=td["env_obs"].device)
        outputs = self.agent(inputs.set("action_noise", noise))
        return {"teacher_log_probs": outputs["full_log_probs"], "teacher_values": outputs["values"]}


def load_teacher(settings: Kickstart, spec: EnvSpec, rows: int, device: torch.device, trust: bool = False) -> Teacher:
    """The policy of a run, or of one of its checkpoints, bound to the environment of `spec`."""
    checkpoint = find_checkpoint(Path(settings.teacher), "trainer.kickstart.teacher")
    policy = _policy_of(checkpoint.path.parents[1], trust)
    agent = load_agent(checkpoint, policy, spec, training=False).to(device)
    if isinstance(agent.action_space, GaussianActions):
        raise UserError("trainer.kickstart: continuous actions cannot be imitated, only discrete ones")
    agent.reserve_memory(rows)
    return Teacher(agent)


def annealing(settings: Trainer) -> dict[str, Ramp]:
    """Schedules that anneal the teacher's coefficients to 0."""
    if settings.kickstart is None:
        return {}
    steps = settings.kickstart.anneal_steps or settings.total_timesteps
    ramp = Ramp(kind="linear", to=0.0, until=steps / settings.total_timesteps)
    return {"kickstart.action_coef": ramp, "kickstart.value_coef": ramp}


def add_imitation(
    losses: Losses, replayed: TensorDictBase, minibatch: Minibatch, size: Tensor, settings: Kickstart
) -> Losses:
    """Add the distance from the teacher to the losses of a minibatch or a part of one."""
    data = minibatch.data
    distance = imitation(
        replayed["full_log_probs"],
        replayed["value"],
        data["teacher_log_probs"],
        data["teacher_values"],
        minibatch.weights,
        size,
    )
    total = losses.total + settings.action_coef * distance.action + settings.value_coef * distance.value
    return losses._replace(total=total, teacher_action=distance.action, teacher_value=distance.value)


def imitation(
    log_probs_BTW: Tensor,
    value_BT: Tensor,
    teacher_BTW: Tensor,
    teacher_value_BT: Tensor,
    weights_BT: Tensor,
    size: Tensor,
) -> Imitation:
    """Weighted means over `size` steps."""
    cross_entropy_BT = -(teacher_BTW.exp() * log_probs_BTW).sum(-1)
    error_BT = (value_BT - teacher_value_BT).square()
    return Imitation((cross_entropy_BT * weights_BT).sum() / size, (error_BT * weights_BT).sum() / size)


def _policy_of(run: Path, trust: bool) -> PyAgent | YamlAgent:
    """The policy settings stored with a run."""
    path = run / "settings.yaml"
    try:
        stored = read_yaml(path, inside=run)
        policy = YamlAgent(**stored["agent"]) if "agent" in stored else PyAgent(**stored["py_agent"])
    except (UnreadableError, TypeError, KeyError, ValidationError) as error:
        raise UserError(f"trainer.kickstart.teacher: {path} does not describe the teacher's policy: {error}") from error
    require_trust(run, stored, trust, unused=("env", "trainer"))
    return policy
