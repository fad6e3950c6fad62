"""The checkpoints of a run: the last few, and the best by return."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from engram.stored.files import UnreadableError, require_inside, sync
from engram.stored.metrics import METRICS_FILE
from engram.training.checkpoint import list_checkpoints
from engram.training.checkpoint.files import (
    BEST,
    BadCheckpointError,
    Checkpoint,
    Groups,
    delete,
    load_checkpoint,
    save_best,
    save_checkpoint,
)
from engram.training.checkpoint.resume import join_ranks, snapshot
from engram.training.metrics import Record
from engram.training.sizes import Sizes
from engram.training.state import Training
from engram.training.storage import Storage

Stamp = tuple[tuple[str, int, int, int], ...]  # name, inode, size and time of each file

MIN_EPISODES = 20  # fewer make the mean return of training too noisy to compare

log = logging.getLogger("engram")


class Score(NamedTuple):
    """The rank of a checkpoint: the best has the highest. An evaluated return outranks a training return."""

    evaluated: bool
    value: float


class Checkpoints:
    """Every rank has one and takes part in saving; rank 0 gathers all states and writes."""

    def __init__(self, directory: Path, keep: int, sizes: Sizes, storage: Storage, last: Checkpoint | None) -> None:
        """`last`: the checkpoint that the run resumes from."""
        self.directory, self.sizes, self._storage = directory, sizes, storage
        self._retention = Retention(directory, keep)
        self.last = None if last is None else last.path
        self.epoch: int = 0 if last is None else last.state["progress"]["epoch"]  # of the last checkpoint; 0: none yet
        self._best = _score_of_best(directory)

    def save(self, training: Training, record: Record) -> bool:
        """Save this epoch, unless it is saved already; `record` holds its metrics. Returns whether it is saved now."""
        epoch, world = training.progress.epoch, training.world
        if epoch == self.epoch:
            return True
        common, state, own = world.fail_together(lambda: snapshot(training))
        parts = world.gather(own)
        saved = True
        if world.main:
            groups, ranks = join_ranks(common, parts)
            state |= {"ranks": ranks, "sizes": self.sizes._asdict()}
            score = _score(training, record)
            saved = self._storage.attempt("the checkpoint", lambda: self._write(epoch, groups, state, score))
        if saved := world.broadcast(saved):
            self.epoch = epoch
        return saved

    def _write(self, epoch: int, groups: Groups, state: dict[str, Any], score: Score | None) -> None:
        """Write the best checkpoint first: a run killed between the two repeats this epoch and saves both again."""
        metrics = self.directory.parent / METRICS_FILE
        if metrics.exists():  # a checkpoint that outlives a power failure needs its metrics
            sync(metrics)
        if score is not None and (self._best is None or score > self._best):
            best = save_best(self.directory, epoch, groups, {**state, "score": score._asdict()})
            self._best = score
            log.info("saved %s: %s return %.6g", best, "evaluated" if score.evaluated else "mean", score.value)
        self.last = save_checkpoint(self.directory, epoch, groups, state)
        log.info("saved %s", self.last)
        self._retention.clean(self.last)


class Retention:
    """Keeps the last few checkpoints that could be loaded; unreadable ones do not count.

    Older ones are deleted. Newer unreadable ones are left for the user to inspect.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory, self.keep = directory, keep
        self._readable: dict[Path, Stamp] = {}  # their files when last read or written

    def clean(self, written: Path) -> None:
        """Delete older checkpoints, now that `written` is complete."""
        self._readable[written] = _stamp(written)
        checkpoints = list_checkpoints(self.directory)
        kept = 0
        for path in reversed(checkpoints):
            if kept == self.keep:
                delete(path)
                self._readable.pop(path, None)
            elif self._is_readable(path):
                kept += 1

    def _is_readable(self, path: Path) -> bool:
        """Whether a checkpoint can be loaded. One whose files are unchanged is not read again."""
        stamp = _stamp(path)
        if stamp and self._readable.get(path) == stamp:
            return True
        try:
            load_checkpoint(path)
        except BadCheckpointError:
            return False
        self._readable[path] = stamp
        return True


def _score(training: Training, record: Record) -> Score | None:
    if "evaluate/return" in record:
        return Score(True, record["evaluate/return"])
    if record.get("return") is None or len(training.returns.recent) < MIN_EPISODES:
        return None
    return Score(False, record["return"])


def _score_of_best(directory: Path) -> Score | None:
    if not (directory / BEST).exists():
        return None
    try:
        require_inside(directory / BEST, directory.parent)
        score = load_checkpoint(directory / BEST).state.get("score")
        return None if score is None else Score(score["evaluated"], score["value"])
    except (BadCheckpointError, UnreadableError) as error:
        log.warning("the best checkpoint is not readable, the next good one replaces it: %s", error)
        return None


def _stamp(path: Path) -> Stamp:
    try:
        files = [(file.name, file.stat()) for file in sorted(path.iterdir())]
    except OSError:
        return ()
    return tuple((name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in files)
