"""Commands and replies over sockets: complete, in order, however large they are."""

import os
import socket
import threading

import pytest

from engram.env.workers.transport import _PACKET_PAYLOAD, Command, CommandSocket, ReplyReceiver, Status, send_reply


@pytest.fixture
def commands():
    """Two connected ends."""
    ends = [CommandSocket(end) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def receiver():
    receiver = ReplyReceiver()
    yield receiver
    receiver.close()
    receiver.worker_end.close()


def test_commands_arrive_in_order_with_their_payloads(commands):
    sender, receiver = commands
    for batch in range(3):
        payload = bytes(100_000) if batch == 1 else b""  # more than one read returns
        sender.send(Command.STEP, batch, payload)
        assert receiver.receive() == (Command.STEP, batch, payload)


def test_receiving_waits_for_a_late_command(commands):
    sender, receiver = commands
    for batch in range(3):
        threading.Timer(0.02, sender.send, (Command.RESET, batch)).start()
        assert receiver.receive() == (Command.RESET, batch, b"")


def test_closing_one_end_interrupts_the_wait_at_the_other(commands):
    sender, receiver = commands
    threading.Timer(0.02, sender.close).start()
    with pytest.raises(EOFError):
        receiver.receive()


@pytest.mark.parametrize("size", [0, 1, _PACKET_PAYLOAD, _PACKET_PAYLOAD + 1, 3 * _PACKET_PAYLOAD, 1_000_000])
def test_a_reply_arrives_with_its_whole_payload(receiver, size):
    payload = os.urandom(size)
    thread = threading.Thread(target=send_reply, args=(receiver.worker_end.fileno(), 3, Status.FAILED, -1, payload))
    thread.start()
    assert receiver.receive() == (3, Status.FAILED, -1, payload)
    thread.join()


def test_replies_arrive_in_the_order_they_are_sent(receiver):
    for worker in (2, 0, 1):
        send_reply(receiver.worker_end.fileno(), worker, Status.DONE, 7 + worker, bytes(worker))
    assert [receiver.receive() for _ in range(3)] == [(2, 0, 9, bytes(2)), (0, 0, 7, b""), (1, 0, 8, bytes(1))]


def test_replies_that_one_read_cuts_in_two_are_complete(receiver):
    payloads = [os.urandom(3000) for _ in range(40)]  # more than one read returns
    for batch, payload in enumerate(payloads):
        send_reply(receiver.worker_end.fileno(), 0, Status.DONE, batch, payload)
    assert [receiver.receive() for _ in payloads] == [(0, 0, batch, payload) for batch, payload in enumerate(payloads)]


def test_large_replies_of_several_workers_are_not_mixed(receiver):
    payloads = {worker: bytes([worker]) * (50 * _PACKET_PAYLOAD + worker) for worker in range(4)}
    threads = [
        threading.Thread(target=send_reply, args=(receiver.worker_end.fileno(), worker, Status.DONE, 0, payload))
        for worker, payload in payloads.items()
    ]
    for thread in threads:
        thread.start()
    assert {worker: payload for worker, _, _, payload in (receiver.receive() for _ in payloads)} == payloads
    for thread in threads:
        thread.join()


def test_receiving_returns_none_after_a_while_and_replies_sent_before_closing_arrive(receiver):
    assert receiver.receive() is None
    send_reply(receiver.worker_end.fileno(), 0, Status.DONE, 0, b"last")
    receiver.worker_end.close()
    assert receiver.receive() == (0, 0, 0, b"last")
    assert receiver.receive() is None
