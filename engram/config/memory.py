"""Settings of `engram memory`: which agent is examined, over how many episodes. Checked before torch is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engram.config.evaluation import PlaySettings, read_request
from engram.config.run import RunSettings
from engram.settings import UserError
from engram.training.settings import Positive


class MemorySettings(PlaySettings):
    """What to measure."""

    episodes: Positive = 128


class MemoryRequest(NamedTuple):
    directory: Path
    settings: MemorySettings
    run: RunSettings  # as stored, with the environment that was asked for


def load_memory(words: Sequence[str], trust: bool = False) -> MemoryRequest:
    """The request of a command line; raises `UserError` with everything that is wrong with it."""
    request = MemoryRequest(*read_request(words, MemorySettings, trust))
    if request.run.trainer.memory == "off":
        raise UserError(
            f"run: {request.settings.run} was trained with trainer.memory=off, so it has no memory to examine"
        )
    return request
