"""Failing environments during training: what is counted, what is saved, and when a run ends."""

import logging
from collections.abc import Callable
from contextlib import suppress

from engram.env.errors import EnvError
from engram.training.checkpoint.checkpoints import Checkpoints
from engram.training.distributed import PeerError
from engram.training.evaluate import EvaluationStoppedError
from engram.training.loop import Training
from engram.training.metrics import Record

log = logging.getLogger("engram")


def evaluate_or_warn(training: Training, evaluate: Callable[[], Record]) -> Record:
    """The results of an evaluation; none if it is cut short, or its environments fail, which counts as a restart."""
    try:
        return evaluate()
    except EnvError as error:
        training.env.restarts.allow(error)
    except EvaluationStoppedError:
        log.warning("epoch %s: its evaluation was cut short by a stop signal", training.progress.epoch)
    return {}


def save_finished_epochs(training: Training, checkpoints: Checkpoints) -> str:
    """Saves the epochs before the rollout that failed; returns from where the run can resume.

    All ranks call this. The run resumes with new episodes, also on ranks whose environments did not fail.
    """
    training.env.close()
    if training.progress.epoch > checkpoints.epoch:
        with suppress(PeerError):
            checkpoints.save(training, {})
    if not checkpoints.epoch:
        return "There is no checkpoint yet: the same command starts from the beginning."
    return f"The same command resumes from epoch {checkpoints.epoch}."
