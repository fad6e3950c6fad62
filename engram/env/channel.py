"""Messages between a process and its worker: a code, a group's number and, seldom, some bytes."""

import os
import select
import socket
import struct
import time

Message = tuple[int, int, bytes | bytearray]  # code, group, payload
_HEADER = struct.Struct("<IIQ")  # code, group, length of the payload


class Channel:
    """One end of a stream socket. Timeouts are the kernel's: Python's own cost further system calls per message.

    `awake`: for how many seconds to look out for a message before sleeping until it comes, if the last one came within
    that time too. Whoever else wants the core has it meanwhile. To be woken can take longer than a small step.
    """

    def __init__(self, end: socket.socket, awake: float = 0.0):
        self._socket = end
        self._patience = 0.0  # for ever
        self._awake, self._waited = awake, 0.0
        self._arrivals = select.poll()
        self._arrivals.register(end, select.POLLIN)

    def limit_sending(self, timeout: float) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))

    def limit_receiving(self, timeout: float) -> None:
        """From now on. A signal that is handled while we wait begins the time anew, as does Ctrl-Z and fg."""
        if timeout != self._patience:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(timeout))
            self._patience = timeout

    def send(self, code: int, group: int, payload: bytes = b"") -> None:
        """BlockingIOError if the other side does not take it in time."""
        self._socket.sendall(_HEADER.pack(code, group, len(payload)) + payload)

    def receive(self) -> Message:
        """The next message; EOFError if the other side is gone, BlockingIOError if nothing comes in time."""
        code, group, length = _HEADER.unpack(self._next_header() if self._awake else self._read(_HEADER.size))
        return code, group, self._read(length) if length else b""

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


def _timeval(seconds: float) -> bytes:
    whole, part = divmod(max(1, round(seconds * 1_000_000)), 1_000_000)
    return struct.pack("@ll", whole, part)
