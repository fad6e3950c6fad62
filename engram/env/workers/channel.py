"""What a worker is told: a command's number, a group's and, seldom, some bytes."""

import os
import select
import socket
import struct
import time

Message = tuple[int, int, bytes | bytearray]  # command, group, payload
_HEADER = struct.Struct("<IiQ")  # command, group, length of the payload


class Channel:
    """One end of a stream socket.

    `awake`: for how many seconds to look out for a message before sleeping until it comes, if the last one came within
    that time too. Whoever else wants the core has it meanwhile. To be woken can take longer than a small step.
    """

    def __init__(self, end: socket.socket, awake: float = 0.0):
        self._socket = end
        self._awake, self._waited = awake, 0.0
        self._arrivals = select.poll()
        self._arrivals.register(end, select.POLLIN)

    def limit_sending(self, timeout: float) -> None:
        """The kernel's own limit: Python's costs further system calls per message."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(timeout))

    def send(self, command: int, group: int, payload: bytes = b"") -> None:
        """BlockingIOError if the other side does not take it in time."""
        self._socket.sendall(_HEADER.pack(command, group, len(payload)) + payload)

    def receive(self) -> Message:
        """The next message; EOFError if the other side is gone."""
        command, group, length = _HEADER.unpack(self._next_header() if self._awake else self._read(_HEADER.size))
        return command, group, self._read(length) if length else b""

    def close(self) -> None:
        self._socket.close()

    def _next_header(self) -> bytes | bytearray:
        """Stay awake for a while to read it."""
        began = time.perf_counter()
        if self._waited < self._awake:
            while not self._arrivals.poll(0) and time.perf_counter() < began + self._awake:
                os.sched_yield()
        header = self._read(_HEADER.size)
        self._waited = time.perf_counter() - began
        return header

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
                raise EOFError("the other side is gone")
            rest = rest[received:]
        return whole


def timeval(seconds: float) -> bytes:
    whole, part = divmod(max(1, round(seconds * 1_000_000)), 1_000_000)
    return struct.pack("@ll", whole, part)
