import os
import signal

import pytest

from engram.training import stop_signals
from engram.training.stop_signals import STOPS, HungUp, Terminated, overdue, request_stop


def test_the_first_signal_is_a_request_and_the_second_one_raises():
    shown = []
    with request_stop(shown.append) as request:
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.stop is Terminated
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
    assert shown == ["stopping after this epoch, with a checkpoint; a second signal stops at once"]


@pytest.mark.parametrize(("relayed", "second"), [(False, signal.SIGHUP), (True, signal.SIGHUP), (True, signal.SIGTERM)])
def test_signals_of_a_terminal_and_of_a_parent_process_are_one_stop(monkeypatch, relayed, second):
    now = 100.0
    monkeypatch.setattr(stop_signals.time, "monotonic", lambda: now)
    with request_stop(lambda text: None, relayed=relayed) as request:
        os.kill(os.getpid(), signal.SIGTERM)
        now = 101.0
        os.kill(os.getpid(), second)
        assert request.stop is Terminated
        now = 103.0
        with pytest.raises(STOPS[second]):
            os.kill(os.getpid(), second)


def test_a_different_signal_later_is_a_second_one(monkeypatch):
    monkeypatch.setattr(stop_signals, "SAME_STOP_SECONDS", 0.0)
    shown = []
    with request_stop(shown.append):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(HungUp):
            os.kill(os.getpid(), signal.SIGHUP)
    assert len(shown) == 1


def test_every_signal_has_the_exit_code_of_a_shell():
    assert {number: stop.exit_code for number, stop in STOPS.items()} == {
        number: 128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    }


def test_handlers_are_restored():
    before = signal.getsignal(signal.SIGINT)
    with request_stop(print):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with request_stop(print) as request:
            os.kill(os.getpid(), signal.SIGHUP)
            assert request.stop is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stop_is_overdue_some_seconds_after_it_was_requested(monkeypatch):
    now, requested = 100.0, False
    monkeypatch.setattr(stop_signals.time, "monotonic", lambda: now)
    is_overdue = overdue(lambda: requested, seconds=10)
    assert not is_overdue()
    now, requested = 200.0, True
    assert not is_overdue()
    now = 209.0
    assert not is_overdue()
    now = 210.0
    assert is_overdue()
