"""Metrics of observations, which tell a diagnosis that an environment shows nothing, or huge numbers."""

from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.agent.observations import unpack
from engram.training.experience import Experience, learnable

SAMPLED_SEGMENTS = 8  # of a rollout: reading all images of one takes too long


def observation_record(agent: MettaAgent, experience: Experience, normalized: bool) -> dict[str, float]:
    """How often observations change, and the largest value that reaches the policy without normalisation.

    Of a sample of this rank's segments: a diagnosis needs no more.
    """
    sample = experience.buffer[:: max(1, experience.segments // SAMPLED_SEGMENTS)]
    if "env_obs" not in sample.keys():  # noqa: SIM118 (a TensorDict)
        return {}
    found = {
        "observation/changes": changes(sample["env_obs"], sample["starts"] | ~learnable(sample)),
        "observation/largest": _largest(agent, sample["env_obs"], normalized),
    }
    return {name: value for name, value in found.items() if value is not None}


def changes(observations: Tensor, starts: Tensor) -> float | None:
    """The fraction of steps [segments, T] inside episodes that show something else than the step before."""
    inside = ~starts[:, 1:]
    if not inside.any():
        return None
    differs = (observations[:, 1:] != observations[:, :-1]).flatten(2).any(2)
    return differs[inside].float().mean().item()


def _largest(agent: MettaAgent, observations: Tensor, normalized: bool) -> float | None:
    covered = {normalizer.part for normalizer in agent.policy.observation_normalizers()} if normalized else set()
    parts = unpack(agent.env_spec, observations).items()
    sizes = [part.abs().amax().item() for name, part in parts if part.is_floating_point() and name not in covered]
    return max(sizes, default=None)
