"""Updates the statistics by which a policy normalises observations and values, between two rollouts."""

import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.agent.normalization import ObservationNormalizer
from engram.agent.observations import unpack
from engram.training.advantage import NOT_SCALED, Advantages, ReturnScale, compute_advantages
from engram.training.distributed import ALONE, World
from engram.training.experience import Experience, learnable
from engram.training.settings import PPO

MOMENTS_CHUNK = 1024  # observations
FIRST_SWEEPS = 32  # each closes a fifth or more of the mean return's distance to its limit


def return_scale(agent: MettaAgent, normalize: bool) -> ReturnScale:
    """The units of values and advantages."""
    normalizer = agent.policy.value_normalizer
    return ReturnScale(normalizer.std, normalizer.largest_std) if normalize else NOT_SCALED


def is_first_update(agent: MettaAgent) -> bool:
    """Whether the value statistics were never updated; they have no unit while all returns are the same."""
    return not agent.policy.value_normalizer.updates.item()


@torch.no_grad()
def begin_value_normalization(agent: MettaAgent, experience: Experience, settings: PPO, world: World = ALONE) -> None:
    """Initialise the value statistics from the first rollout's returns, and rescale the values stored with it.

    An untrained critic then predicts the mean return instead of 0. Segments end long before discounted rewards fade,
    so returns are bootstrapped from that mean until it no longer changes.
    """
    normalizer, counted = agent.policy.value_normalizer, learnable(experience.buffer)
    stored = [
        (fields, normalizer.inverse(fields["values"]), normalizer.inverse(fields["final_values"]))
        for fields in (experience.buffer, experience.bootstrap)
    ]
    for _ in range(FIRST_SWEEPS):
        returns = compute_advantages(experience, settings).returns
        normalizer.begin(*mean_and_variance(returns, counted, world))
        for fields, outputs, final_outputs in stored:
            fields["values"].copy_(normalizer(outputs))
            fields["final_values"].copy_(torch.where(fields["truncateds"], normalizer(final_outputs), 0.0))


@torch.no_grad()
def update_normalizers(
    agent: MettaAgent, experience: Experience, advantages: Advantages, observations: bool, values: bool, world: World
) -> None:
    """Update the statistics with the observations and returns of a rollout, after learning from it."""
    counted = learnable(experience.buffer)
    if values:
        mean, variance = mean_and_variance(advantages.returns, counted, world)
        agent.policy.value_normalizer.update(mean, variance, agent.policy.value_output())
    normalizers = agent.policy.observation_normalizers() if observations else []
    parts = unpack(agent.env_spec, experience.buffer["env_obs"]) if normalizers else {}
    for normalizer in normalizers:
        count, mean, variance = _moments(normalizer, parts[normalizer.part][counted], world)
        normalizer.update(count.float(), mean.float(), variance.float())


def mean_and_variance(returns: Tensor, counted: Tensor, world: World = ALONE) -> tuple[Tensor, Tensor]:
    """The mean and variance of the returns of all ranks, over the steps for which `counted` is true."""
    kept = returns[counted].double()
    count = world.sum(counted.sum()).clamp(min=1)
    mean, mean_square = world.sum(kept.sum()) / count, world.sum(kept.square().sum()) / count
    return mean.float(), (mean_square - mean.square()).float()


def _moments(normalizer: ObservationNormalizer, part_N: Tensor, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and variance of what is normalised, over all ranks. In chunks: one-hots take much memory."""
    size = normalizer.mean.shape
    total, squares = (torch.zeros(size, dtype=torch.float64, device=part_N.device) for _ in range(2))
    count = torch.zeros((), device=part_N.device)
    for chunk in part_N.split(MOMENTS_CHUNK):
        x_NS = normalizer.encode(chunk).double()
        count += len(x_NS)
        total += x_NS.sum(0)
        squares += x_NS.square().sum(0)
    count = world.sum(count).clamp(min=1)
    mean = world.sum(total) / count
    return count, mean, (world.sum(squares) / count - mean.square()).clamp(min=0)
