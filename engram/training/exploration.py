"""Exploration: the entropy bonus and the noise that samples actions, by the kind of task."""

# T steps, R rows, D numbers per row

import torch
from gymnasium import spaces
from torch import Tensor

from engram.env.spec import EnvSpec
from engram.training.schedule import Ramp
from engram.training.settings import Trainer

ENTROPY = 0.01  # coefficient for discrete actions, annealed to 0
CORRELATION = 0.7  # of the noise of actions from step to step
PERSISTENT = 0.95  # of every eighth row, for discrete actions: swings between the first and the last action
STUBBORN = 0.99  # of every eighth row too: holds any one action, another one in each rollout


def with_exploration(trainer: Trainer, spec: EnvSpec) -> Trainer:
    """Fill in an entropy coefficient and a noise correlation, unless the settings have them.

    Correlated noise keeps a direction for several steps, which reaches more of a world with inertia or distances. Where
    observations are only symbols, as in games of cards, every step is a new question, so noise is independent.
    """
    if trainer.noise_correlation is None:
        trainer = trainer.model_copy(update={"noise_correlation": 0.0 if spec.only_symbols else CORRELATION})
    if trainer.ppo.ent_coef is not None:
        return trainer
    continuous = isinstance(spec.single_action_space, spaces.Box)
    ppo = trainer.ppo.model_copy(update={"ent_coef": 0.0 if continuous else ENTROPY})
    schedule = {"ppo.ent_coef": Ramp(kind="linear", to=0.0), **trainer.schedule}
    return trainer.model_copy(update={"ppo": ppo, "schedule": schedule})


def correlations(correlation: float, rows: int, continuous: bool) -> Tensor:
    """The correlation of each row's noise, [R, 1]. For discrete actions some rows are more persistent."""
    every = torch.full((rows, 1), correlation)
    if correlation and not continuous:
        every[3::8] = max(correlation, PERSISTENT)
        every[7::8] = max(correlation, STUBBORN)
    return every


def rotate(noise_TRD: Tensor, generator: torch.Generator) -> Tensor:
    """The noise of every eighth row moved around the circle [0, 1) by a random angle.

    Noise chooses actions by their order, and stays long only near 0 and 1: at the first and the last action. Rotated,
    it holds any of them. It remains uniform.
    """
    rotated = noise_TRD.clone()
    angles = torch.rand(noise_TRD[:1, 7::8].shape, generator=generator, device=noise_TRD.device)
    rotated[:, 7::8] = (rotated[:, 7::8] + angles) % 1.0
    return rotated


def correlate(noise_TRD: Tensor, last_RD: Tensor | None, correlation: Tensor | float) -> tuple[Tensor, Tensor]:
    """Uniform noise whose normal quantiles are an AR(1) process, and its last state.

    Each step's distribution is unchanged, so log-probabilities are exact.
    """
    normal = torch.special.ndtri(noise_TRD.clamp(1e-6, 1 - 1e-6))
    steps = []
    for z_RD in normal:
        last_RD = z_RD if last_RD is None else correlation * last_RD + (1 - correlation**2) ** 0.5 * z_RD
        steps.append(last_RD)
    return torch.special.ndtr(torch.stack(steps)), steps[-1]
