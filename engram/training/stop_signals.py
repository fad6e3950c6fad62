"""Stop signals: the first one ends training after the running epoch, with a checkpoint; the second one at once."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

PATIENCE = 10.0  # seconds that an evaluation may go on after a stop signal; schedulers kill after about 30


class Stopped(KeyboardInterrupt):
    """A stop signal that ends the program at once. Its exit code is 128 plus the signal's number."""

    exit_code = 130


class Terminated(Stopped):
    exit_code = 143


class HungUp(Stopped):
    exit_code = 129


class Preempted(Stopped):
    exit_code = 138


STOPS: dict[signal.Signals, type[Stopped]] = {
    signal.SIGINT: Stopped,  # Ctrl-C
    signal.SIGTERM: Terminated,  # kill, a scheduler
    signal.SIGHUP: HungUp,  # the terminal was closed
    signal.SIGUSR1: Preempted,  # the usual warning before a cluster takes the machine away
}


class StopRequest:
    """The first stop signal received; the second one raises."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.stop: type[Stopped] | None = None

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.stop is not None:
            raise STOPS[signal.Signals(number)]
        self.stop = STOPS[signal.Signals(number)]
        self._show("stopping after this epoch, with a checkpoint; a second signal stops at once")


@contextmanager
def request_stop(
    show: Callable[[str], None], signals: Sequence[signal.Signals] = tuple(STOPS)
) -> Iterator[StopRequest]:
    """Within this context, a stop signal is only a request, shown to the user."""
    request = StopRequest(show)
    with handle_signals(signals, request.on_signal):
        yield request


@contextmanager
def handle_signals(
    signals: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Install a handler, except for signals that are ignored (by nohup, or for a shell's background job).

    Only the main thread can handle signals; elsewhere this does nothing.
    """
    before = {}
    if current_thread() is main_thread():
        before = {number: signal.getsignal(number) for number in signals}
    handled = [number for number, action in before.items() if action is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def overdue(stopping: Callable[[], bool], seconds: float = PATIENCE) -> Callable[[], bool]:
    """A function that returns whether `seconds` have passed since the first of its calls that saw a stop request."""
    since: float | None = None

    def is_overdue() -> bool:
        nonlocal since
        if since is None and stopping():
            since = time.monotonic()
        return since is not None and time.monotonic() - since >= seconds

    return is_overdue


def stop_message(epoch: int, saved: int, interval: int) -> str:
    """What a run stopped at once after `epoch` has lost, if its last checkpoint is of the epoch `saved` (0: none)."""
    if not saved:
        every = f"trainer.checkpoint.interval is {_epochs(interval)}"
        return f"stopped before the first checkpoint ({every}): the same command starts from the beginning"
    lost = epoch - saved
    which = f"{_epochs(lost)} since the last checkpoint {'is' if lost == 1 else 'are'} lost"
    loss = f"{which} (trainer.checkpoint.interval): " if lost else ""
    return f"stopped; {loss}run the same command again to resume from epoch {saved}"


def _epochs(number: int) -> str:
    return f"{number} epoch{'s' * (number != 1)}"
