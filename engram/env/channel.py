"""Messages between a process and its worker: a code, a group's number and, seldom, some bytes."""

import select
import socket
import struct
from typing import NamedTuple

_HEADER = struct.Struct("<IIQ")  # code, group, length of the payload


class Message(NamedTuple):
    code: int
    group: int
    payload: bytes | bytearray


class Channel:
    """One end of a stream socket. With a timeout set on the socket, no half-sent message can block its reader."""

    def __init__(self, end: socket.socket):
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """Sleep until a message comes or the other side is gone; False if neither happens within `timeout` seconds."""
        return bool(self._poll.poll(timeout * 1000))

    def send(self, code: int, group: int, payload: bytes = b"") -> None:
        self._socket.sendall(_HEADER.pack(code, group, len(payload)) + payload)

    def receive(self) -> Message:
        """The next message; EOFError if the other side is gone."""
        code, group, length = _HEADER.unpack(self._read(_HEADER.size))
        return Message(code, group, self._read(length) if length else b"")

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
                raise EOFError("the other side is gone")
            rest = rest[received:]
        return whole
