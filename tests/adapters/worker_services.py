"""Services that the worker tests run in real processes."""

import asyncio
import os
import threading
import time

import numpy as np

from asyncrl_runtime.adapters.workers import Deferred
from asyncrl_runtime.core.errors import EnvironmentFailure


class Foreign(Exception):
    """A type that the caller's process does not know."""


class Arithmetic:
    def __init__(self, offset: int) -> None:
        if offset < 0:
            raise ValueError("offset must not be negative")
        self.offset = offset
        self.running = 0
        self.notes = []

    def add(self, value):
        return self.offset + value

    def later(self, value, seconds):
        deferred = Deferred(on_cancel=self._cancelled)
        self.running += 1
        asyncio.get_running_loop().call_later(seconds, deferred.resolve, value)
        return deferred

    def _cancelled(self):
        self.running -= 1

    async def sleep(self, seconds):
        self.running += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1

    def writeable(self, array):
        return array.flags.writeable

    def noted(self, array):
        self.notes.append(len(array))

    def note(self):
        return self.notes

    def block(self, seconds):
        time.sleep(seconds)

    def count_running(self):
        return self.running

    def doubled(self, array):
        return {"doubled": array * 2, "aligned": array.flags.aligned, "text": "x"}

    def raise_typed(self):
        raise EnvironmentFailure(environment="e", function="f", prompt="p", problem="was late")

    def raise_foreign(self):
        raise Foreign("no such thing")

    def unpicklable(self):
        return threading.Lock()

    def arrays(self, rows):
        return [np.full(row, row, dtype=np.int64) for row in range(rows)]

    def exit(self, code):
        os._exit(code)


def slow_start(seconds):
    time.sleep(seconds)
    return Arithmetic(0)
