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
# For discrete actions, two rows of eight have more correlation: one swings between the first and the last action, one
# holds a single action during a rollout, any of them.
SWINGING_ROWS, SWINGING_CORRELATION = slice(3, None, 8), 0.95
HOLDING_ROWS, HOLDING_CORRELATION = slice(7, None, 8), 0.99


def with_exploration(trainer: Trainer, spec: EnvSpec) -> Trainer:
    """Fill in an entropy coefficient and a noise correlation, unless the settings have them.

    Correlated noise keeps a direction for several steps, which reaches more of a world with inertia or distances. If
    observations are only symbols, as in card games, every step is a new question, so noise is independent.
    """
    if trainer.noise_correlation is None:
        trainer = trainer.model_copy(update={"noise_correlation": 0.0 if spec.only_symbols else CORRELATION})
    if trainer.ppo.ent_coef is not None:
        return trainer
    continuous = isinstance(spec.single_action_space, spaces.Box)
    ppo = trainer.ppo.model_copy(update={"ent_coef": 0.0 if continuous else ENTROPY})
    schedule = {"ppo.ent_coef": Ramp(kind="linear", to=0.0), **trainer.schedule}
    return trainer.model_copy(update={"ppo": ppo, "schedule": schedule})


class ActionNoise:
    """The uniform noise that samples the actions of all ranks' rows, correlated in time or independent."""

    def __init__(self, generator: torch.Generator, rows: int, size: int, continuous: bool, correlation: float) -> None:
        """`size` numbers sample one action."""
        self.generator, self.rows, self.size, self.continuous = generator, rows, size, continuous
        self.last: Tensor | None = None  # [R, D] normal: where correlated noise continues
        self._correlations: Tensor | None = None
        if correlation:
            self._correlations = correlations(correlation, rows, continuous).to(generator.device)

    def sample(self, steps: int) -> Tensor:
        """The noise [T, R, D] of the next steps."""
        noise = torch.rand((steps, self.rows, self.size), generator=self.generator, device=self.generator.device)
        if self._correlations is None:
            return noise
        noise, self.last = correlate(noise, self.last, self._correlations)
        return noise if self.continuous else rotate(noise, self.generator)


def correlations(correlation: float, rows: int, continuous: bool) -> Tensor:
    """The correlation of each row's noise, [R, 1]."""
    correlations_R1 = torch.full((rows, 1), correlation)
    if not continuous:
        correlations_R1[SWINGING_ROWS] = max(correlation, SWINGING_CORRELATION)
        correlations_R1[HOLDING_ROWS] = max(correlation, HOLDING_CORRELATION)
    return correlations_R1


def rotate(noise_TRD: Tensor, generator: torch.Generator) -> Tensor:
    """Moves the noise of HOLDING_ROWS around the circle [0, 1) by a random angle, after which it is still uniform.

    Noise selects actions by their order. Correlated noise stays long only near 0 and 1, so without this it would hold
    only the first and the last action.
    """
    rotated = noise_TRD.clone()
    angles = torch.rand(noise_TRD[:1, HOLDING_ROWS].shape, generator=generator, device=noise_TRD.device)
    rotated[:, HOLDING_ROWS] = (rotated[:, HOLDING_ROWS] + angles) % 1.0
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
