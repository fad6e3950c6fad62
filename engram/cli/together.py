"""Training in one of several processes: it meets the others, and how it ends is said once, by one of them."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from engram.config.run import RunSettings
from engram.config.stored import differences
from engram.settings import SettingsError, UserError
from engram.training.launch import Place

if TYPE_CHECKING:
    from engram.training.distributed import World


def together(here: Place, settings: RunSettings, train: "Callable[[World], None]") -> int:
    """Train with the other processes and return the exit code."""
    meet = import_module("engram.training.rendezvous").meet
    device = import_module("engram.training.device").choose_device(settings.device, here)
    world = meet(here, device, settings.trainer.peer_timeout)
    try:
        if changed := differences(world.share(settings), settings):
            raise SettingsError([line.replace("when the run began", "for the first process") for line in changed])
        train(world)
        world.leave()
        return 0
    except BaseException as error:
        return _end(error, world)


def _end(error: BaseException, world: "World") -> int:
    """The exit code; or the error itself, for this process to say."""
    code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
    if not world.speaks(error):
        return code
    if not isinstance(error, UserError):
        raise error
    print(f"process {world.rank} of {world.size}: {error}", file=sys.stderr)
    return code
