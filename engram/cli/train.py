"""`engram train [GROUP=CHOICE …] [SETTING=VALUE …]`: train a policy, alone or as one rank of several."""

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.arguments import add_trust
from engram.cli.settings_help import settings_parser
from engram.config.load import load
from engram.config.run import RunSettings
from engram.config.run_directory import differences, not_writable, prepare_directory, restore_directory
from engram.env.registry import make_spec
from engram.settings import SettingsError, UserError
from engram.training.checkpoint.listing import list_checkpoints
from engram.training.launch import Place, place

if TYPE_CHECKING:
    from engram.agent.metta_agent import MettaAgent
    from engram.training.distributed import World

FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
STOPPED = "stopped; the same command resumes from the last checkpoint, if there is one"


def main(words: Sequence[str]) -> int:
    parser = settings_parser("train", "Trains a policy.")
    add_trust(parser)
    options, words = parser.parse_settings(words)
    with ExitStack() as stack:  # holds the lock of the run's directory
        return _run(words, stack, options.trust)


def _run(words: Sequence[str], stack: ExitStack, trust: bool) -> int:
    process = place()
    try:
        settings = load(words, trust)
        make_spec(settings.env)  # an environment that cannot be made leaves no directory behind
        directory = prepare_directory(settings, stack) if process.rank == 0 else settings.directory
    except UserError as error:
        if process.local_rank == 0:  # all ranks find the same mistake; one of each machine reports it
            raise
        return error.exit_code
    restore = partial(restore_directory, settings, stack) if process.rank == 0 else None

    def train(world: "World | None" = None) -> None:
        _train(words, settings, directory, trust, restore, world)

    if process.size > 1:
        return _run_distributed(process, settings, train)
    train()
    return 0


def _run_distributed(process: Place, settings: RunSettings, train: "Callable[[World], None]") -> int:
    """Join the other ranks, train, and return the exit code. One rank alone reports an error."""
    from engram.training.device import choose_device
    from engram.training.distributed import connect

    world = connect(process, choose_device(settings.device, process), settings.trainer.peer_timeout)
    try:
        if changed := differences(world.broadcast(settings), settings, "on rank 0"):
            raise SettingsError(changed)
        train(world)
        world.leave()
        return 0
    except BaseException as error:
        code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
        if not world.should_report(error):
            return code
        if not isinstance(error, UserError):
            raise
        print(f"rank {world.rank} of {world.size}: {error}", file=sys.stderr)
        return code


def _train(
    words: Sequence[str],
    settings: RunSettings,
    directory: Path,
    trust: bool,
    restore: Callable[[], None] | None,
    world: "World | None" = None,
) -> None:
    try:
        # Imported here: torch takes seconds, and a mistyped option should be reported at once.
        from engram.display.terminal import make_display
        from engram.training.distributed import ALONE
        from engram.training.run import start

        audit: Callable[[MettaAgent], None] | None = None
        if settings.trainer.audit is not None:
            from engram.audit import stop_on_memory_fault

            audit = stop_on_memory_fault
        world = world or ALONE
        resumed = bool(list_checkpoints(directory / "checkpoints"))
        with (
            nullcontext(sys.stdout) if world.main else open(os.devnull, "w", encoding="utf-8") as stream,
            make_display(stream, next_steps=partial(next_steps, words, settings, resumed)) as display,
        ):
            start(settings, display, world, audit=audit, trust=trust, restore_directory=restore)
    except KeyboardInterrupt as stop:
        raise type(stop)(*(stop.args or [STOPPED])) from None
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"not enough memory ({reason}): try fewer trainer.num_envs, or a smaller trainer.batch_size or policy"
        ) from error
    except OSError as error:
        if not _is_about(error, directory):
            raise
        raise UserError(not_writable(directory, error)) from error


def next_steps(words: Sequence[str], settings: RunSettings, resumed: bool, steps_done: int) -> list[str]:
    """Commands to offer after a run: evaluate it, train it for longer, or train the same without memory.

    The command line of a resumed run need not hold all of its settings, so it offers no run without memory.
    """
    steps = 2 * max(settings.trainer.total_timesteps, steps_done)  # the last batch may exceed total_timesteps
    longer: dict[str, object] = {"run": settings.run, "trainer.total_timesteps": steps}
    memoryless: dict[str, object] = {"run": f"{settings.run[:90]}_no_memory", "trainer.memory": "off"}
    changes = [longer] if settings.trainer.memory == "off" or resumed else [longer, memoryless]
    return [_eval_command(settings), *(_train_command(words, change) for change in changes)]


def _eval_command(settings: RunSettings) -> str:
    runs_dir = "" if settings.runs_dir == "runs" else f" runs_dir={shlex.quote(settings.runs_dir)}"
    return f"{_program()} eval run={settings.run}{runs_dir}"


def _train_command(words: Sequence[str], changes: dict[str, object]) -> str:
    process, script = place(), sys.argv[0] if sys.argv[0].endswith("train.py") else None
    program = script or f"{_program()} train"
    if process.size > 1:
        # On several machines only the user knows the arguments of torchrun.
        arguments = f"--nproc-per-node={process.size}" if process.local_size == process.size else "…"
        program = f"torchrun {arguments} {script or '-m engram train'}"
    unchanged = [shlex.quote(word) for word in words if word.partition("=")[0] not in changes]
    return " ".join([program, *unchanged, *(f"{name}={value}" for name, value in changes.items())])


def _program() -> str:
    """How to call `engram`, which may be in a virtual environment that is not activated."""
    if shutil.which("engram"):
        return "engram"
    path = os.path.relpath(Path(sys.executable).with_name("engram"))
    return shlex.quote(str(Path(path).resolve()) if path.startswith("..") else path)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether NumPy or torch could not allocate; torch raises RuntimeErrors of two wordings."""
    return isinstance(error, MemoryError) or any(
        text in str(error) for text in ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    )


def _is_about(error: OSError, directory: Path) -> bool:
    """Whether the error comes from the run's directory: full, read-only, or gone."""
    if error.errno in FULL_OR_READ_ONLY:
        return True
    return isinstance(error.filename, str) and Path(error.filename).resolve().is_relative_to(directory.resolve())
