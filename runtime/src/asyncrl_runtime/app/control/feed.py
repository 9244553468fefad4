"""The newest status, for any number of readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from asyncrl_api.control.control_pb2 import RunStatus
from asyncrl_runtime.app.control.messages import status_message
from asyncrl_runtime.app.state import RunState

HEARTBEAT_SECONDS = 5.0
"""A watcher hears at least that often, also while nothing changes."""

SHORTEST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Published:
    """A status, made and serialised once however many read it."""

    revision: int
    payload: bytes
    """A RunStatus message."""


@dataclass(slots=True, kw_only=True, eq=False)
class StatusFeed:
    """Reads the state when somebody asks, at most once per `fresh_seconds`."""

    read: Callable[[], RunState]
    extra: Callable[[], dict[str, float | int | None]] = dict
    """`applied_generation`, `restart_index`, `idle_seconds`, `seconds_since_durable`."""

    fresh_seconds: float = 0.005
    _latest: Published | None = field(default=None, init=False)
    _message: RunStatus | None = field(default=None, init=False)
    _read_at: float = field(default=float("-inf"), init=False)

    def latest(self) -> Published:
        """The status of now; a new revision only where something but the time has changed."""
        now = asyncio.get_running_loop().time()
        if self._latest is None or now - self._read_at >= self.fresh_seconds:
            self._read_at = now
            self._refresh()
        assert self._latest is not None
        return self._latest

    def _refresh(self) -> None:
        message = status_message(self.read(), self.extra())
        revision = 0 if self._latest is None else self._latest.revision
        if self._message is None or message != self._message:
            revision += 1
        self._message = message
        stamped = RunStatus()
        stamped.CopyFrom(message)
        stamped.revision, stamped.updated_at = revision, time.time()
        self._latest = Published(revision, stamped.SerializeToString())

    async def watch(self, min_interval_seconds: float) -> AsyncIterator[Published]:
        """The status now, then whenever it has changed, and as a heartbeat.

        Only the newest state is kept: who reads slowly misses states and holds nobody up.
        """
        interval = max(min_interval_seconds, SHORTEST_SECONDS)
        sent, sent_at = 0, float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            status = self.latest()
            if status.revision != sent or loop.time() - sent_at >= HEARTBEAT_SECONDS:
                sent, sent_at = status.revision, loop.time()
                yield status
            await asyncio.sleep(interval)
