"""Settings of `engram replay`: which agent plays, and how much is recorded. Checked before torch is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engram.config.evaluation import PlaySettings, read_request
from engram.config.run import RunSettings
from engram.training.settings import Positive


class ReplaySettings(PlaySettings):
    """What to record."""

    episodes: Positive | None = None  # null: as many as it takes for 64 steps
    max_steps: Positive = 1000


class ReplayRequest(NamedTuple):
    directory: Path
    settings: ReplaySettings
    run: RunSettings  # as stored, with the environment that was asked for


def load_replay(words: Sequence[str], trust: bool = False) -> ReplayRequest:
    """The request of a command line; raises `UserError` with everything that is wrong with it."""
    return ReplayRequest(*read_request(words, ReplaySettings, trust))
