"""Transport between a pool and its workers: sockets for commands and replies, shared memory for buffers."""

import mmap
import os
import select
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from engram.env.block import Buffers
from engram.env.spec import EnvSpec
from engram.settings import UserError

POLL_SECONDS = 0.1  # longest wait of one `ReplyReceiver.receive`

_COMMAND = struct.Struct("<IiQ")  # command, batch, length of the payload
_REPLY = struct.Struct("<IIiI?")  # worker, status, batch, length of the payload in this packet, whether more follow
_PACKET_PAYLOAD = select.PIPE_BUF - _REPLY.size  # writes up to PIPE_BUF are atomic, so workers can share one socket
_READ_SIZE = 16 * select.PIPE_BUF
_ALIGNMENT = 64  # a cache line

Layout = dict[str, tuple[tuple[int, ...], np.dtype]]


class Command(IntEnum):
    BUILD = 0
    RESET = 1
    STEP = 2
    STATE = 3
    RESTORE = 4
    SCENE = 5

    @property
    def verb(self) -> str:
        return ("building", "resetting", "stepping", "saving", "restoring", "drawing")[self]


class Status(IntEnum):
    DONE = 0  # the payload is the pickled result, or empty for None
    FAILED = 1  # the payload is the error message; the environments may be built again
    REFUSED = 2  # the payload is the message about a user's mistake, which a restart would not fix
    NOT_FINITE = 3  # the payload is the message about a NaN or infinity; the parent decides


class Reply(NamedTuple):
    worker: int
    status: Status
    batch: int
    payload: bytes | bytearray


class CommandSocket:
    """One end of the socket that carries commands to one worker."""

    def __init__(self, end: socket.socket, send_timeout: float | None = None) -> None:
        self._socket = end
        if send_timeout is not None:  # the kernel's timeout: Python's own costs more system calls per message
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(send_timeout))

    def send(self, command: Command, batch: int, payload: bytes = b"") -> None:
        """Raises BlockingIOError if the worker does not take the message in time."""
        self._socket.sendall(_COMMAND.pack(command, batch, len(payload)) + payload)

    def receive(self) -> tuple[Command, int, bytes | bytearray]:
        """The next command, its batch and payload. Raises EOFError when the other end is closed."""
        command, batch, length = _COMMAND.unpack(self._read(_COMMAND.size))
        return Command(command), batch, self._read(length) if length else b""

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes | bytearray:
        data = self._socket.recv(size)
        if len(data) == size:
            return data
        whole = bytearray(size)
        whole[: len(data)] = data
        rest = memoryview(whole)[len(data) :]
        while rest:
            received = self._socket.recv_into(rest)
            if not received:
                raise EOFError("the other end of the socket is closed")
            rest = rest[received:]
        return whole


class ReplyReceiver:
    """Receives the replies of all workers on one socket.

    Workers inherit `worker_end` and write to it with `send_reply`.
    """

    def __init__(self) -> None:
        self._socket, self.worker_end = socket.socketpair()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(POLL_SECONDS))
        self._unread = b""  # an incomplete packet
        self._incomplete: dict[int, bytearray] = {}  # by worker: payload so far of a reply in several packets
        self._received: deque[Reply] = deque()

    def receive(self) -> Reply | None:
        """The next reply; None if none arrives within POLL_SECONDS."""
        while not self._received:
            try:
                data = self._socket.recv(_READ_SIZE)
            except BlockingIOError:
                return None
            if not data:  # every other end is closed
                time.sleep(POLL_SECONDS)
                return None
            self._parse(self._unread + data)
        return self._received.popleft()

    def forget(self, worker: int) -> None:
        """Drops the first packets of a reply that a dead worker did not finish."""
        self._incomplete.pop(worker, None)

    def close(self) -> None:
        self._socket.close()
        self.worker_end.close()

    def _parse(self, data: bytes) -> None:
        start = 0
        while len(data) >= start + _REPLY.size:
            worker, status, batch, length, more = _REPLY.unpack_from(data, start)
            payload_start = start + _REPLY.size
            end = payload_start + length
            if end > len(data):
                break
            payload = data[payload_start:end]
            if more or worker in self._incomplete:
                self._incomplete.setdefault(worker, bytearray()).extend(payload)
            if not more:
                self._received.append(Reply(worker, Status(status), batch, self._incomplete.pop(worker, payload)))
            start = end
        self._unread = data[start:]


def send_reply(file: int, worker: int, status: Status, batch: int, payload: bytes = b"") -> None:
    """Writes a reply to a file descriptor, split into packets that are written atomically."""
    rest = memoryview(payload)
    while len(rest) > _PACKET_PAYLOAD:
        os.write(file, _REPLY.pack(worker, status, batch, _PACKET_PAYLOAD, True) + rest[:_PACKET_PAYLOAD])
        rest = rest[_PACKET_PAYLOAD:]
    os.write(file, _REPLY.pack(worker, status, batch, len(rest), False) + rest)


def _timeval(seconds: float) -> bytes:
    whole, microseconds = divmod(max(1, round(seconds * 1_000_000)), 1_000_000)
    return struct.pack("@ll", whole, microseconds)


# Shared memory. It is anonymous, so nothing is left behind however a process ends.


def create_memory(layout: Layout) -> int:
    """Allocates zeroed memory for this layout and returns its file descriptor. The caller closes it."""
    size = _offsets(layout)[1]
    file = _anonymous_file()
    try:
        os.ftruncate(file, size)
        if sys.platform == "linux":
            os.posix_fallocate(file, 0, size)  # fail here if memory is short, not with a SIGBUS in the middle of a step
    except OSError as error:
        os.close(file)
        raise UserError(
            f"cannot allocate {size / 2**20:.0f} MiB for environment buffers: {error}; try fewer environments"
        ) from error
    return file


def attach_buffers(file: int, spec: EnvSpec, layout: Layout) -> Buffers:
    offsets, size = _offsets(layout)
    memory = mmap.mmap(file, size)
    return Buffers(
        spec,
        **{
            name: np.ndarray(shape, dtype, buffer=memory, offset=offsets[name])
            for name, (shape, dtype) in layout.items()
        },
    )


def _offsets(layout: Layout) -> tuple[dict[str, int], int]:
    """The offset of every field, and the total size."""
    offsets, end = {}, 0
    for name, (shape, dtype) in layout.items():
        offsets[name] = end
        length = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        end += -(-length // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(end, _ALIGNMENT)


def _anonymous_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("engram")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
