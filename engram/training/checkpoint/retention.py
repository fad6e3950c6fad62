"""Archive: the checkpoints of a run, the last few of them and the best by return."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from engram.training.checkpoint.files import (
    BEST,
    BadCheckpointError,
    Checkpoint,
    Groups,
    load_checkpoint,
    save_best,
    save_checkpoint,
)
from engram.training.checkpoint.ranks import joined
from engram.training.checkpoint.resume import snapshot
from engram.training.loop import Training
from engram.training.metrics import Record
from engram.training.sizes import Sizes

ENOUGH = 20  # recent episodes, without which a mean return of training is luck

log = logging.getLogger("engram")


class Score(NamedTuple):
    """By what a checkpoint is the best. A return that was evaluated counts more than one met in training."""

    evaluated: bool
    value: float


class Archive:
    """All processes of a run have one and save together; the first of them writes, with the parts of all."""

    def __init__(self, directory: Path, keep: int, sizes: Sizes, last: Checkpoint | None = None) -> None:
        """`last`: the checkpoint that the run goes on from."""
        self.directory, self.keep, self.sizes = directory, keep, sizes
        self.last = None if last is None else last.path
        self.epoch: int = 0 if last is None else last.state["progress"]["epoch"]  # that of the last one; 0: none yet
        self._best = _score_of_best(directory)

    def save(self, training: Training, record: Record) -> None:
        """Keep this moment, unless it is kept already; `record` is what was measured of it."""
        epoch = training.progress.epoch
        if epoch == self.epoch:
            return
        common, state, own = snapshot(training)
        parts = training.world.gather(own)
        if training.world.main:
            groups, ranks = joined(common, parts)
            self._write(
                epoch, groups, {**state, "ranks": ranks, "sizes": self.sizes._asdict()}, _score(training, record)
            )
        self.epoch = epoch

    def _write(self, epoch: int, groups: Groups, state: dict[str, Any], score: Score | None) -> None:
        """The best one first: a run that is killed in between does this epoch again, and misses nothing."""
        if score is not None and (self._best is None or score > self._best):
            best = save_best(self.directory, epoch, groups, {**state, "score": score._asdict()})
            self._best = score
            log.info("saved %s: %s return %.6g", best, "evaluated" if score.evaluated else "mean", score.value)
        self.last = save_checkpoint(self.directory, epoch, groups, state, self.keep)
        log.info("saved %s", self.last)


def _score(training: Training, record: Record) -> Score | None:
    if "evaluate/return" in record:
        return Score(True, record["evaluate/return"])
    if record.get("return") is None or len(training.episodes.recent) < ENOUGH:
        return None
    return Score(False, record["return"])


def _score_of_best(directory: Path) -> Score | None:
    if not (directory / BEST).exists():
        return None
    try:
        return Score(**load_checkpoint(directory / BEST).state["score"])
    except BadCheckpointError as error:
        log.warning("the best checkpoint is not usable, the next good one takes its place: %s", error)
        return None
