"""Messages as Ray takes them: a pickle, then its buffers as arrays that Ray shares without a copy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncrl_runtime.adapters.workers.channel import Fault, picklable

Frame = list[Any]


def framed(batch: list[Any], fault: Fault) -> Frame:
    """One frame for many messages; `fault` answers for those that cannot be pickled."""
    try:
        return _pickled(batch)
    except Exception:  # noqa: BLE001 - pickling runs foreign code; the fault handler names the message
        return _pickled(picklable(batch, fault))


def shared(frame: Frame) -> list[Any]:
    """The messages of a frame; their arrays are read-only views of it."""
    return _unpickled(frame, memoryview)


def owned(frame: Frame) -> list[Any]:
    """The messages of a frame; their arrays are copies, so that Ray can free its memory."""
    return _unpickled(frame, bytearray)


def _pickled(batch: list[Any]) -> Frame:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    return [body, *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]


def _unpickled(frame: Frame, take: Callable[[Any], Any]) -> list[Any]:
    body, *arrays = frame
    return pickle.loads(body, buffers=[take(array) for array in arrays])
