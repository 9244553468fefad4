"""The actor's side: one service whose calls and answers cross in batches."""

from __future__ import annotations

import asyncio
import os
import sys

from asyncrl_runtime.adapters.ray.frames import Frame, framed, shared
from asyncrl_runtime.adapters.workers.service import Server


class ServiceActor:
    """Hosts a service. Ray may hand frames over in another order than they were sent in."""

    def __init__(self, path: list[str]) -> None:
        """`path` is where the caller finds modules."""
        sys.path += [folder for folder in path if folder not in sys.path]
        self._outbox: list[tuple] = []
        self._filled = asyncio.Event()
        self._server: Server | None = None
        self._early: dict[int, Frame] = {}
        self._expected = 0
        self._unreadable: Exception | None = None

    async def hello(self) -> tuple[int, str]:
        """Process id and node of this actor."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()

    async def post(self, number: int, frame: Frame) -> None:
        """Take the messages of frame `number` once every earlier frame has been taken."""
        self._early[number] = frame
        while self._expected in self._early:
            self._take(self._early.pop(self._expected))
            self._expected += 1

    async def answers(self) -> Frame:
        """The next answers, as soon as there are any. Raises what made a frame unreadable."""
        await self._filled.wait()
        if self._unreadable is not None:
            raise self._unreadable
        self._filled.clear()
        batch, self._outbox = self._outbox, []
        return framed(batch, Server.fault)

    def _take(self, frame: Frame) -> None:
        if self._server is None:
            self._server = Server(self._answer, lambda: None)
        try:
            messages = shared(frame)
        except Exception as problem:  # noqa: BLE001 - whose calls these were is not known: the caller gives up
            self._unreadable = problem
            self._filled.set()
            return
        for message in messages:
            self._server.receive(message)

    def _answer(self, message: tuple) -> None:
        self._outbox.append(message)
        self._filled.set()
