"""Framed messages over a socket: many posts of one loop tick leave in one write."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

_HEADER = struct.Struct("<QI")  # bytes of the body, number of out-of-band buffers
_ALIGNMENT = 16

Fault = Callable[[Any, Exception], Any]


def _padding(size: int) -> int:
    return -size % _ALIGNMENT


def encoded(message: object) -> list[bytes | memoryview]:
    """One frame: header, sizes, pickle, then aligned buffers: arrays are not copied into the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    if not buffers:
        return [_HEADER.pack(len(body), 0), body]
    views = [buffer.raw() for buffer in buffers]
    sizes = struct.pack(f"<{len(views) + 1}Q", len(body), *(view.nbytes for view in views))
    parts: list[bytes | memoryview] = [sizes, body]
    total = len(sizes) + len(body)
    for view in views:
        gap = _padding(total)
        parts += [bytes(gap), view]
        total += gap + view.nbytes
    return [_HEADER.pack(total, len(views)), *parts]


def decoded(body: bytearray, num_buffers: int) -> Any:
    """The message of one frame's body. Arrays are views of the body."""
    if not num_buffers:
        return pickle.loads(body)
    view = memoryview(body)
    sizes = struct.unpack_from(f"<{num_buffers + 1}Q", body)
    at = 8 * (num_buffers + 1)
    payload = view[at : at + sizes[0]]
    at += sizes[0]
    buffers = []
    for size in sizes[1:]:
        at += _padding(at)
        buffers.append(view[at : at + size])
        at += size
    return pickle.loads(payload, buffers=buffers)


def picklable(batch: list[Any], fault: Fault) -> list[Any]:
    """The messages that can be pickled, and what `fault` gives in place of the others."""
    kept = []
    for message in batch:
        try:
            pickle.dumps(message, protocol=5)
        except Exception as problem:  # noqa: BLE001 - pickling runs foreign code
            answer = fault(message, problem)
            if answer is not None:
                kept.append(answer)
        else:
            kept.append(message)
    return kept


class Channel(asyncio.Protocol):
    """One end of a socket pair. A frame is a list of messages; each is handed to `receive` in order."""

    def __init__(self, *, receive: Callable[[Any], None], lost: Callable[[], None], fault: Fault) -> None:
        """`fault` answers for a message that cannot be pickled: it returns what to send instead, or None."""
        self._receive = receive
        self._lost = lost
        self._fault = fault
        self._outbox: list[Any] = []
        self._head = bytearray()
        self._body: bytearray | None = None
        self._filled = 0
        self._num_buffers = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(cls, sock: socket.socket, **handlers: Any) -> Channel:
        """A channel on a connected socket, in the running loop."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(**handlers), sock=sock)
        return channel

    def post(self, message: object) -> None:
        """Queue a message for the end of this loop tick."""
        if not self._outbox:
            self._loop.call_soon(self.flush)
        self._outbox.append(message)

    def flush(self) -> None:
        """Write what is queued."""
        batch, self._outbox = self._outbox, []
        if not batch or self._transport is None or self._transport.is_closing():
            return
        try:
            parts = encoded(batch)
        except Exception:  # noqa: BLE001 - pickling runs foreign code; the fault handler names the message
            parts = encoded(picklable(batch, self._fault))
        self._transport.writelines(parts)

    def close(self) -> None:
        """Send what is queued, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Called by the loop with bytes of any number of frames."""
        at = 0
        while at < len(data):
            if self._body is None:
                taken = data[at : at + _HEADER.size - len(self._head)]
                self._head += taken
                at += len(taken)
                if len(self._head) < _HEADER.size:
                    return
                size, self._num_buffers = _HEADER.unpack(self._head)
                self._head.clear()
                self._body, self._filled = bytearray(size), 0
            size = min(len(self._body) - self._filled, len(data) - at)
            self._body[self._filled : self._filled + size] = data[at : at + size]
            self._filled += size
            at += size
            if self._filled == len(self._body):
                body, self._body = self._body, None
                for message in decoded(body, self._num_buffers):
                    self._receive(message)
