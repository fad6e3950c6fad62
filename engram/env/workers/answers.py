"""What workers tell their parent, all of them on one socket: whoever is done first is heard first."""

import os
import select
import socket
import struct
import time
from collections import deque

from engram.env.workers.channel import timeval

Answer = tuple[int, int, int, bytes | bytearray]  # who tells, code, group, payload
SLICE = 0.1  # seconds that are waited for one at once

# The same without the payload; how many bytes of it are in this packet, and whether more follow in others.
_HEADER = struct.Struct("<IIiI?")
_ROOM = select.PIPE_BUF - _HEADER.size  # in a packet: so much stays together when several processes write
_AT_ONCE = 16 * select.PIPE_BUF  # bytes to read


class Answers:
    """The parent's end. `theirs` is the end to `tell` at; close it when all workers have it."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(SLICE))
        self._unread = b""  # the beginning of a packet
        self._parts: dict[int, bytearray] = {}  # by who tells: of an answer that is not here to its end
        self._heard: deque[Answer] = deque()

    def receive(self) -> Answer | None:
        """The next answer; None if there is none for the time of a slice."""
        while not self._heard:
            try:
                data = self._ours.recv(_AT_ONCE)
            except BlockingIOError:
                return None
            if not data:  # nobody is left
                time.sleep(SLICE)
                return None
            self._read(self._unread + data)
        return self._heard.popleft()

    def close(self) -> None:
        self._ours.close()

    def _read(self, data: bytes) -> None:
        at = 0
        while len(data) >= at + _HEADER.size:
            who, code, group, size, more = _HEADER.unpack_from(data, at)
            begin, end = at + _HEADER.size, at + _HEADER.size + size
            if end > len(data):
                break
            payload = data[begin:end]
            if more or who in self._parts:
                self._parts.setdefault(who, bytearray()).extend(payload)
            if not more:
                self._heard.append((who, code, group, self._parts.pop(who, payload)))
            at = end
        self._unread = data[at:]


def tell(theirs: int, who: int, code: int, group: int, payload: bytes = b"") -> None:
    """Write an answer, in as many packets as it takes."""
    rest = memoryview(payload)
    while len(rest) > _ROOM:
        os.write(theirs, _HEADER.pack(who, code, group, _ROOM, True) + rest[:_ROOM])
        rest = rest[_ROOM:]
    os.write(theirs, _HEADER.pack(who, code, group, len(rest), False) + rest)
