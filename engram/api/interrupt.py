"""Ctrl-C during training from Python: the first ends it after the epoch, the second at once."""

import signal
from collections.abc import Callable
from threading import current_thread, main_thread
from types import FrameType


class Interrupts:
    """Counts interrupts while it is entered. A handler of the user's own stays as it is."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._installed = False
        self.requested = False

    def __enter__(self) -> "Interrupts":
        own = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if own:
            signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(self, *_error: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._show("stopping after this epoch; interrupt again to stop at once")
