"""Stop signals: the first one ends training after the running epoch, with a checkpoint; the second one at once."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

PATIENCE = 10.0  # seconds that an evaluation or a full disk may delay a stop; schedulers kill after about 30
SAME_STOP_SECONDS = 2.0  # signals within this time may mean the same stop, as those of a terminal and its launcher


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
    """The first stop signal received; the second one raises.

    A scheduler may signal every process of a group, and a parent that was signalled may send its children a different
    signal. So a different signal soon after the first is the same stop. With `relayed`, where a launcher passes signals
    on, so is the same signal.
    """

    def __init__(self, show: Callable[[str], None], relayed: bool) -> None:
        self._show, self._relayed, self._stop_time = show, relayed, 0.0
        self.stop: type[Stopped] | None = None

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        kind = STOPS[signal.Signals(number)]
        if self.stop is not None:
            if (self._relayed or kind is not self.stop) and time.monotonic() - self._stop_time < SAME_STOP_SECONDS:
                return
            raise kind
        self.stop, self._stop_time = kind, time.monotonic()
        self._show("stopping after this epoch, with a checkpoint; a second signal stops at once")


@contextmanager
def request_stop(
    show: Callable[[str], None], signals: Sequence[signal.Signals] = tuple(STOPS), relayed: bool = False
) -> Iterator[StopRequest]:
    """Within this context, the first stop signal is only a request. `relayed`: a launcher passes signals on."""
    request = StopRequest(show, relayed)
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
    """A function that returns whether `seconds` have passed since it was first called during a stop request."""
    since: float | None = None

    def is_overdue() -> bool:
        nonlocal since
        if since is None and stopping():
            since = time.monotonic()
        return since is not None and time.monotonic() - since >= seconds

    return is_overdue


def stop_message(epoch: int, saved: int, interval: int) -> str:
    """The message for a run that was stopped at once after `epoch`; `saved`: the epoch of its last checkpoint, or 0."""
    if not saved:
        every = f"trainer.checkpoint.interval is {_epochs(interval)}"
        return f"stopped before the first checkpoint ({every}): the same command starts from the beginning"
    lost = epoch - saved
    which = f"{_epochs(lost)} since the last checkpoint {'is' if lost == 1 else 'are'} lost"
    loss = f"{which} (trainer.checkpoint.interval): " if lost else ""
    return f"stopped; {loss}run the same command again to resume from epoch {saved}"


def _epochs(number: int) -> str:
    return f"{number} epoch{'s' * (number != 1)}"
