"""What is measured: time by phase, averages over an epoch, finished episodes, and the stream they are written to."""

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.env.block import Episodes
from engram.training.distributed import ALONE, World

Record = dict[str, Any]


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
    """Means of named scalars, kept where they were computed and brought over at once."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}

    def add(self, group: str, values: NamedTuple) -> None:
        for field, value in values._asdict().items():
            if value is not None:
                self._values.setdefault(f"{group}/{field}", []).append(value.detach())

    def take(self) -> dict[str, float]:
        values, self._values = self._values, {}
        if not values:
            return {}
        means = torch.stack([torch.stack(each).float().mean() for each in values.values()]).tolist()
        return dict(zip(values, means, strict=True))


class ReturnTracker:
    """Finished episodes: the means of an epoch, and the mean return over the most recent ones."""

    def __init__(self, recent: int = 200) -> None:
        self.recent: deque[float] = deque(maxlen=recent)

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
    """One JSON object a line, one line an epoch, written through at once."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def truncate(path: Path, epoch: int) -> None:
        """Drop what a stopped run had written after the checkpoint it goes on from."""
        if not path.exists():
            return
        kept = takewhile(lambda line: _epoch_of(line) <= epoch, path.read_bytes().splitlines(keepends=True))
        os.truncate(path, sum(map(len, kept)))  # at a stroke: the epochs before are never at risk


def interleave_ranks(parts: Sequence[Episodes]) -> Episodes:
    """The episodes of several processes as if they had ended in turn: nobody's are the most recent ones."""
    if len(parts) == 1:
        return parts[0]
    joined = Episodes.concatenate(parts)
    moments = [(np.arange(len(part)) + 0.5) / len(part) for part in parts if len(part)]
    order = np.argsort(np.concatenate([np.zeros(0), *moments]), kind="stable")
    return joined.select(order)


def explained_variance(values: Tensor, returns: Tensor, world: World = ALONE) -> float:
    """1: the values say all about the returns; 0: no more than their mean would. Over all processes."""
    unexplained, all_there_is = _squares(returns - values, world), _squares(returns, world)
    return (1 - unexplained / all_there_is.clamp(min=1e-8 * (returns.numel() * world.size - 1))).item()


def weight_record(agent: MettaAgent, epoch: int) -> Record:
    """The health of the weights, in the epochs in which the policy wants it measured."""
    interval = agent.policy.analyze_weights_interval
    if not interval or epoch % interval:
        return {}
    return {f"weights/{name}": value for name, value in agent.compute_weight_metrics().items()}


def process_megabytes() -> float:
    return psutil.Process().memory_info().rss / 2**20


def _squares(x: Tensor, world: World) -> Tensor:
    """The sum of squared distances from the mean; every process has as many numbers."""
    return world.sum((x - world.sum(x.mean() / world.size)).square().sum())


def _epoch_of(line: bytes) -> float:
    try:
        return json.loads(line)["epoch"]
    except (ValueError, KeyError):
        return float("inf")  # a line cut off in the middle
