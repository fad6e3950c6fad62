"""`engram train [GROUP=CHOICE …] [SETTING=VALUE …]`: train a policy, alone or as one rank of several."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.api.hooks import find_hook
from engram.api.train import train_run
from engram.cli.arguments import add_trust_option
from engram.cli.settings_help import settings_parser
from engram.config.load import load
from engram.config.run import RunSettings
from engram.config.run_directory import differences, prepare_directory, restore_directory
from engram.env.registry import make_spec
from engram.runs.group import expand, train_group
from engram.settings import SettingsError, UserError
from engram.training.checkpoint import list_checkpoints
from engram.training.checkpoint.files import verify_checkpoint
from engram.training.checkpoint.loading import find_checkpoint, latest_checkpoint
from engram.training.launch import RankInfo, rank_info
from engram.training.stop_signals import Stopped, request_stop

if TYPE_CHECKING:
    from engram.training.distributed import World

STOPPED = "stopped; the same command resumes from the last checkpoint, if there is one"
SAVED = "stopped and saved; run the same command again to resume from here"


def main(argv: Sequence[str]) -> int:
    parser = settings_parser("train", "Trains a policy, or one for each value of settings with several: seed=1,2,3.")
    add_trust_option(parser)
    options, overrides = parser.parse_settings(argv)
    members = expand(overrides, options.trust)
    if members is not None:
        return train_group(members, partial(train_one, trust=options.trust))
    with ExitStack() as stack:  # holds the lock of the run's directory
        return _run(overrides, stack, options.trust)


def train_one(overrides: list[str], trust: bool = False) -> int:
    """One run of several, in its own process."""
    from engram.cli.main import main

    return main(["train", *overrides, *(["--trust"] if trust else [])])


def _run(overrides: Sequence[str], stack: ExitStack, trust: bool) -> int:
    process = rank_info()
    try:
        settings = load(overrides, trust)
        display = stack.enter_context(_display(overrides, settings, process))
        display.building(settings.run, f"{settings.policy.name.rpartition(':')[2]} on {_env_name(settings)}")
        find_hook(settings)
        make_spec(settings.env)  # an environment that cannot be made leaves no directory behind
        if process.rank == 0:
            directory = prepare_directory(settings, stack)
            if process.size == 1:  # otherwise the ranks report it together, once they are connected
                _verify_checkpoints(directory, settings)
    except UserError as error:
        if process.local_rank == 0:  # all ranks find the same mistake; one of each machine reports it
            raise
        return error.exit_code
    restore = partial(restore_directory, settings, stack) if process.rank == 0 else None

    def train(world: "World | None" = None) -> int:
        return _train(settings, display, trust, restore, world)

    if process.size > 1:
        return _run_distributed(process, settings, train)
    return train()


def _verify_checkpoints(directory: Path, settings: RunSettings) -> None:
    """Refuse bad checkpoints before torch is imported."""
    if latest_checkpoint(directory, verify_checkpoint) is None and settings.init_from is not None:
        find_checkpoint(Path(settings.init_from), "init_from", verify_checkpoint)
    if settings.trainer.kickstart is not None:
        find_checkpoint(Path(settings.trainer.kickstart.teacher), "trainer.kickstart.teacher", verify_checkpoint)


def _run_distributed(process: RankInfo, settings: RunSettings, train: "Callable[[World], int]") -> int:
    """Join the other ranks, train, and return the exit code. One rank alone reports an error."""
    from engram.training.device import choose_device
    from engram.training.distributed import connect

    world = connect(process, choose_device(settings.device, process), settings.trainer.peer_timeout)
    try:
        if changed := differences(world.broadcast(settings), settings, "on rank 0"):
            raise SettingsError(changed)
        code = train(world)
        world.leave()
        return code
    except BaseException as error:
        code = _exit_code(error)
        if not world.should_report(error):
            return code
        if not isinstance(error, UserError):
            raise
        print(f"rank {world.rank} of {world.size}: {error}", file=sys.stderr)
        return code


def _exit_code(error: BaseException) -> int:
    if isinstance(error, UserError | Stopped):
        return error.exit_code
    return Stopped.exit_code if isinstance(error, KeyboardInterrupt) else 1


def _display(overrides: Sequence[str], settings: RunSettings, process: RankInfo) -> Any:
    """The display of rank 0; the others show nothing."""
    from engram.display.plain import SilentDisplay
    from engram.display.terminal import make_display

    if process.rank:
        return SilentDisplay()
    resumed = bool(list_checkpoints(settings.directory / "checkpoints"))
    return make_display(sys.stdout, next_steps=partial(next_steps, overrides, settings, resumed))


def _env_name(settings: RunSettings) -> str:
    own_names = {"gym": "id", "python": "title", "pettingzoo": "module"}
    return str(getattr(settings.env, own_names.get(settings.env.kind, "kind")))


def _train(
    settings: RunSettings,
    display: Any,
    trust: bool,
    restore: Callable[[], None] | None,
    world: "World | None" = None,
) -> int:
    """Train, and return the exit code: that of a signal if one stopped the run."""
    request = None
    try:
        with request_stop(display.message, relayed=world is not None and world.size > 1) as request:
            end_hung = partial(_end_hung, display)
            train_run(settings, display, world, trust, restore, lambda: request.stop is not None, end_hung)
    except KeyboardInterrupt as stop:
        signalled = request and request.stop  # a plain KeyboardInterrupt does not say which signal came
        kind = signalled if type(stop) is KeyboardInterrupt else type(stop)
        raise (kind or Stopped)(*(stop.args or [STOPPED])) from None
    if request.stop is None:
        return 0
    if world is None or world.main:
        print(SAVED, file=sys.stderr)
    return request.stop.exit_code


def _end_hung(display: AbstractContextManager) -> None:
    """End the program from another thread, because the main thread is in an environment that does not return."""
    display.__exit__(None, None, None)
    print("an environment hangs (see above): " + STOPPED, file=sys.stderr, flush=True)
    os._exit(1)


def next_steps(overrides: Sequence[str], settings: RunSettings, resumed: bool, steps_done: int) -> list[str]:
    """Commands to offer after a run: evaluate it, train it for longer, or train the same without memory.

    A resumed run offers no run without memory, since its command line may lack some of its settings.
    """
    steps = 2 * max(settings.trainer.total_timesteps, steps_done)  # the last batch may exceed total_timesteps
    longer: dict[str, object] = {"run": settings.run, "trainer.total_timesteps": steps}
    memoryless: dict[str, object] = {"run": f"{settings.run[:90]}_no_memory", "trainer.memory": "off"}
    changes = [longer] if settings.trainer.memory == "off" or resumed else [longer, memoryless]
    return [_eval_command(settings), *(_train_command(overrides, change) for change in changes)]


def _eval_command(settings: RunSettings) -> str:
    runs_dir = "" if settings.runs_dir == "runs" else f" runs_dir={shlex.quote(settings.runs_dir)}"
    return f"{_program()} eval run={settings.run}{runs_dir}"


def _train_command(overrides: Sequence[str], changes: dict[str, object]) -> str:
    process, script = rank_info(), sys.argv[0] if sys.argv[0].endswith("train.py") else None
    program = script or f"{_program()} train"
    if process.size > 1:
        # On several machines only the user knows the arguments of torchrun.
        arguments = f"--nproc-per-node={process.size}" if process.local_size == process.size else "…"
        program = f"torchrun {arguments} {script or '-m engram train'}"
    unchanged = [shlex.quote(word) for word in overrides if word.partition("=")[0] not in changes]
    return " ".join([program, *unchanged, *(f"{name}={value}" for name, value in changes.items())])


def _program() -> str:
    """The command for `engram`, which may be in a virtual environment that is not activated."""
    if shutil.which("engram"):
        return "engram"
    path = Path(sys.executable).with_name("engram")
    try:
        shorter = os.path.relpath(path)
    except FileNotFoundError:  # the current folder was removed
        return shlex.quote(str(path))
    return shlex.quote(str(Path(shorter).resolve()) if shorter.startswith("..") else shorter)
