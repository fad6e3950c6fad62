"""Training from Python: `engram.train`, and what it shares with the command line."""

import errno
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from engram.api.arguments import Env, PolicyChoice, run_settings
from engram.api.hooks import epoch_callback, find_hook
from engram.api.run import Run
from engram.config.run import RunSettings
from engram.config.run_directory import not_writable, prepare_directory, restore_directory
from engram.env.errors import describe_exception
from engram.env.registry import make_spec
from engram.settings import UserError
from engram.training.launch import rank_info
from engram.training.stop_signals import request_stop

if TYPE_CHECKING:
    from engram.agent.metta_agent import MettaAgent
    from engram.training.distributed import World
    from engram.training.run import Display

FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def train(
    env: Env | None = None,
    policy: PolicyChoice | None = None,
    total_timesteps: int | None = None,
    run: str | None = None,
    *,
    on_epoch: Callable[..., Any] | None = None,
    progress: bool = True,
    trust: bool = False,
    **settings: Any,
) -> Run:
    """Train a policy, or resume a run of the same name. Ctrl-C ends training and returns the run so far.

    >>> import engram
    >>> run = engram.train("recall", "fast", total_timesteps=1024, run="first", progress=False)
    >>> run.steps
    1024

    `env` is a name ("tmaze", "CartPole-v1"), an environment class, or a function that makes an environment. `policy` is
    a name, a subclass of `engram.LSTMWrapper`, or a YAML file. Without them the run has its own, or the defaults.
    `settings` are those of the command line, nested or dotted: `trainer={"bptt_horizon": 64}`,
    `**{"trainer.bptt_horizon": 64}`.

    `on_epoch(run, record)` is called after every epoch with its metrics. It may call `run.stop()` and
    `run.set("ppo.ent_coef", 0.001)`, and return settings of the environment for the coming epochs.

    `trust=True` allows code named in the stored settings of a run, although you did not make the run here.
    """
    if rank_info().size > 1:
        raise UserError("engram.train trains in a single process: start several with `torchrun -m engram train …`")
    resolved = run_settings(settings, env, policy, total_timesteps, run, on_epoch, trust)
    find_hook(resolved)
    make_spec(resolved.env)  # an environment that cannot be made leaves no directory behind
    with ExitStack() as stack:  # holds the lock of the run's directory
        directory = prepare_directory(resolved, stack)
        display = stack.enter_context(_display(resolved, sys.stdout if progress else None))
        stack.enter_context(warnings.catch_warnings())  # training shows warnings as messages
        default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # otherwise it is the user's
        request = stack.enter_context(request_stop(display.message, [signal.SIGINT] if default_handler else []))
        try:
            restore = partial(restore_directory, resolved, stack)
            train_run(resolved, display, None, trust, restore, lambda: request.stop is not None)
        except KeyboardInterrupt as stop:
            display.message(str(stop) or "stopped")
    return Run(directory)


def train_run(
    settings: RunSettings,
    display: "Display",
    world: "World | None",
    trust: bool,
    restore_directory: Callable[[], None] | None,
    interrupted: Callable[[], bool],
    end_hung: Callable[[], None] = lambda: None,
) -> None:
    """Train in a prepared directory, with the audit and the hook of the settings.

    The last four arguments are those of `engram.training.run.start`.
    """
    # Imported here: torch takes seconds, and a mistyped setting should be reported at once.
    from engram.training.distributed import ALONE
    from engram.training.run import start
    from engram.training.storage import stop_logging

    audit: Callable[[MettaAgent], None] | None = None
    if settings.trainer.audit is not None:
        from engram.audit import stop_on_memory_fault

        audit = stop_on_memory_fault
    hook = find_hook(settings) if world is None or world.main else None
    on_epoch = epoch_callback(settings, hook, interrupted)
    try:
        start(settings, display, world or ALONE, audit, trust, restore_directory, on_epoch, end_hung, interrupted)
    except UserError:
        raise
    except Exception as error:
        message = _explain(error, settings)
        if message is None:
            raise
        raise UserError(message) from error
    finally:
        stop_logging()


def _display(settings: RunSettings, stream: TextIO | None) -> Any:
    from engram.display.plain import SilentDisplay
    from engram.display.terminal import make_display

    def next_steps(_steps: int) -> list[str]:
        run = repr(str(settings.directory))
        return [f"engram.open({run}).evaluate()", f"engram.load({run}).act(observation)"]

    return SilentDisplay() if stream is None else make_display(stream, next_steps)


def _explain(error: Exception, settings: RunSettings) -> str | None:
    """The message for an error that the user can fix; None for a fault of Engram's."""
    if isinstance(error, OSError) and _is_about(error, settings.directory):
        return not_writable(settings.directory, error)
    if _is_out_of_memory(error):
        reason = str(error).partition("\n")[0]
        return f"not enough memory ({reason}): try fewer trainer.num_envs, or a smaller trainer.batch_size or policy"
    if settings.py_agent is None or ":" not in settings.py_agent.name:  # not the user's code
        return None
    if "does not require grad" in str(error):
        why = "its weights do not require gradients, or it detaches logits and values"
        return f"py_agent: {settings.py_agent.name}: the loss has no gradient: {why}"
    failed_in = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    if failed_in & {"encode_observations", "decode_actions", "forward"}:
        from engram.agent.observations import describe_observations

        seen = f" ({describe_observations(make_spec(settings.env))})" if "encode_observations" in failed_in else ""
        return f"py_agent: {settings.py_agent.name} failed{seen}: {describe_exception(error)}"
    return None


def _is_about(error: OSError, directory: Path) -> bool:
    """Whether the error is that the run's directory is full, read-only or gone."""
    if error.errno in FULL_OR_READ_ONLY:
        return True
    return isinstance(error.filename, str) and Path(error.filename).resolve().is_relative_to(directory.resolve())


def _is_out_of_memory(error: Exception) -> bool:
    """Whether NumPy or torch could not allocate."""
    texts = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")  # of torch
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)
