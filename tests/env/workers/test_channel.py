"""Messages between two ends, waited for asleep and awake."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from engram.env.workers.channel import Channel


@pytest.fixture(params=[0.0, 100e-6, 1.0], ids=["asleep", "awake for a moment", "awake"])
def ends(request):
    ours, theirs = socket.socketpair()
    channels = Channel(ours), Channel(theirs, awake=request.param)
    yield channels
    for channel in channels:
        channel.close()


def test_messages_come_in_order_with_what_they_carry(ends):
    ours, theirs = ends
    for group in range(3):
        ours.send(7, group, bytes(100_000) if group == 1 else b"")  # more than is received at once
        assert theirs.receive() == (7, group, bytes(100_000) if group == 1 else b"")


def test_a_message_that_is_late_is_waited_for(ends):
    ours, theirs = ends
    for group in range(3):
        threading.Timer(0.02, ours.send, (7, group)).start()
        assert theirs.receive() == (7, group, b"")


def test_the_end_is_noticed_while_waiting(ends):
    ours, theirs = ends
    threading.Timer(0.02, ours.close).start()
    with pytest.raises(EOFError):
        theirs.receive()


def test_who_waits_long_sleeps_and_the_next_time_does_not_even_look():
    ours, theirs = socket.socketpair()
    channel, looks = Channel(theirs, awake=100e-6), []
    arrivals = channel._arrivals
    channel._arrivals = SimpleNamespace(poll=lambda patience: looks.append(patience) or arrivals.poll(patience))
    for looked in (True, False):
        looks.clear()
        threading.Timer(0.3, ours.send, (bytes(16),)).start()
        busy = time.thread_time()
        channel.receive()
        assert time.thread_time() - busy < 0.1
        assert bool(looks) == looked
    ours.close()
    channel.close()
