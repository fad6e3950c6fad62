"""Progress of a run and metrics of an epoch: timers, mean losses, returns, observations, and the file for them."""

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.agent.observations import unpack
from engram.env.block import Episodes
from engram.env.parts import ACTION_MASK
from engram.training.distributed import ALONE, World
from engram.training.experience import Experience, learnable
from engram.training.storage import LineFile

Record = dict[str, Any]

MAX_LINE = 2**22  # bytes of one record; a longer line is damaged
RECENT_EPISODES = 200  # the return of a run is their mean
SAMPLED_SEGMENTS = 8  # of a rollout, for metrics of observations: reading all images takes too long


@dataclass
class Progress:
    """The steps, epochs and seconds of a run so far."""

    steps: int = 0  # agent-steps
    epoch: int = 0
    seconds: float = 0.0  # of training, including the time before a resume
    _last: float = field(default_factory=time.perf_counter)

    def advance(self, steps: int) -> None:
        self.steps += steps
        self.epoch += 1

    def anneal(self, first: float, last: float, total_timesteps: int) -> float:
        """Interpolate linearly from `first` to `last` over the run."""
        return first + (last - first) * min(self.steps / total_timesteps, 1.0)

    def fraction(self, batch_size: int, total_timesteps: int) -> float:
        """The fraction of the run completed at the middle of the coming epoch, strictly between 0 and 1.

        The last epoch fills its batch, so the run may end after `total_timesteps`; this counts whole epochs.
        """
        epochs = max(1, ceil((total_timesteps - self.steps) / batch_size))
        return (self.steps + batch_size / 2) / (self.steps + epochs * batch_size)

    def record(self) -> Record:
        return {"epoch": self.epoch, "steps": self.steps}

    def timing(self, phases: dict[str, float], steps: int) -> Record:
        """Duration and speed of the epoch that just ended. Only `time/` metrics differ between equal runs."""
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        self.seconds += elapsed
        durations = {f"time/{phase}_seconds": seconds for phase, seconds in phases.items()}
        return {"time/seconds": self.seconds, "time/steps_per_second": steps / max(elapsed, 1e-9), **durations}


class Timers:
    """Seconds spent in each phase since the last `take`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        seconds, self.seconds = self.seconds, {}
        return seconds


class Averages:
    """Means of named scalars. They stay on their device until `take` copies all of them in one transfer."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def add(self, group: str, values: NamedTuple) -> None:
        for name, value in values._asdict().items():
            if value is not None:
                self._values.setdefault(f"{group}/{name}", []).append(value.detach())

    def take(self) -> dict[str, float]:
        values, self._values = self._values, {}
        if not values:
            return {}
        means = torch.stack([torch.stack(scalars).float().mean() for scalars in values.values()]).tolist()
        return dict(zip(values, means, strict=True))


class ReturnTracker:
    """Mean episode figures of an epoch, and the mean return over the most recent episodes."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)

    def add(self, episodes: Episodes) -> Record:
        self.recent.extend(episodes.returns.tolist())
        if not len(episodes):
            return {"return": self.mean_return, "episode/count": 0}
        record = {
            "return": self.mean_return,
            "episode/count": len(episodes),
            "episode/return": float(episodes.returns.mean()),
            "episode/length": float(episodes.lengths.mean()),
        }
        for name, values in episodes.stats.items():
            known = values[~np.isnan(values)]
            if len(known):
                record[f"episode/{name}"] = float(known.mean())
        return record

    @property
    def mean_return(self) -> float | None:
        return float(np.mean(self.recent)) if self.recent else None


class MetricsFile:
    """A JSON Lines file with one record per epoch."""

    name = "metrics.jsonl"

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)

    def write(self, record: Record) -> None:
        self._lines.write(json.dumps(record))

    def close(self) -> None:
        self._lines.close()

    @staticmethod
    def truncate(path: Path, epoch: int) -> None:
        """Drop the records after the checkpoint that the run resumes from."""
        if not path.exists():
            return
        kept = 0
        with path.open("rb") as file:
            while (line := file.readline(MAX_LINE)).endswith(b"\n") and _epoch_of(line) <= epoch:
                kept += len(line)
        os.truncate(path, kept)  # atomic: earlier records are never at risk


def interleave_ranks(by_rank: Sequence[Episodes]) -> Episodes:
    """Interleave the episodes of all ranks evenly, so that the most recent ones come from every rank."""
    if len(by_rank) == 1:
        return by_rank[0]
    positions = [(np.arange(len(episodes)) + 0.5) / len(episodes) for episodes in by_rank if len(episodes)]
    order = np.argsort(np.concatenate([np.zeros(0), *positions]), kind="stable")
    return Episodes.concatenate(by_rank).select(order)


def explained_variance(values: Tensor, returns: Tensor, world: World = ALONE) -> float:
    """1 - Var(returns - values) / Var(returns), over all ranks."""
    residual, total = _squared_deviations(returns - values, world), _squared_deviations(returns, world)
    return (1 - residual / total.clamp(min=1e-8 * (returns.numel() * world.size - 1))).item()


def weight_record(agent: MettaAgent, epoch: int) -> Record:
    """Weight metrics, every `analyze_weights_interval` epochs."""
    interval = agent.policy.analyze_weights_interval
    if not interval or epoch % interval:
        return {}
    return {f"weights/{name}": value for name, value in agent.compute_weight_metrics().items()}


def process_megabytes() -> float:
    return psutil.Process().memory_info().rss / 2**20


def observation_record(agent: MettaAgent, experience: Experience, normalized: bool) -> dict[str, float]:
    """Changes of observations, the largest value that reaches the policy without normalisation, and masked actions.

    Measured on a sample of this rank's segments, which is enough for a diagnosis.
    """
    sample = experience.buffer[:: max(1, experience.segments // SAMPLED_SEGMENTS)]
    if "env_obs" not in sample.keys():  # noqa: SIM118 (a TensorDict)
        return {}
    found = {
        "observation/changes": fraction_changed(sample["env_obs"], sample["starts"] | ~learnable(sample)),
        "observation/largest": _largest_unnormalized(agent, sample["env_obs"], normalized),
        "observation/masked_actions": _masked_actions(agent, sample["env_obs"]),
    }
    return {name: value for name, value in found.items() if value is not None}


def fraction_changed(observations: Tensor, starts: Tensor) -> float | None:
    """The fraction of steps [segments, T] inside episodes whose observation differs from the one before."""
    inside = ~starts[:, 1:]
    if not inside.any():
        return None
    differs = (observations[:, 1:] != observations[:, :-1]).flatten(2).any(2)
    return differs[inside].float().mean().item()


def _squared_deviations(x: Tensor, world: World) -> Tensor:
    """The sum of squared deviations from the mean over all ranks, which have equally many values."""
    return world.sum((x - world.sum(x.mean() / world.size)).square().sum())


def _epoch_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["epoch"])
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return float("inf")  # an incomplete or damaged line


def _largest_unnormalized(agent: MettaAgent, observations: Tensor, normalized: bool) -> float | None:
    """The largest value of the parts that no normaliser covers; None if there are none."""
    covered = {normalizer.part for normalizer in agent.policy.observation_normalizers()} if normalized else set()
    parts = unpack(agent.env_spec, observations).items()
    sizes = [part.abs().amax().item() for name, part in parts if part.is_floating_point() and name not in covered]
    return max(sizes, default=None)


def _masked_actions(agent: MettaAgent, observations: Tensor) -> int | None:
    """The number of actions that the mask allows in no step; None without a mask."""
    mask = unpack(agent.env_spec, observations).get(ACTION_MASK)
    return None if mask is None else int((~mask.bool().flatten(0, 1).any(0)).sum())
