"""A service in a Ray actor, seen from the controller."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from asyncrl_runtime.adapters.ray.frames import framed, owned
from asyncrl_runtime.adapters.ray.service import ServiceActor
from asyncrl_runtime.adapters.workers.caller import Caller
from asyncrl_runtime.core.errors import DeadlinePassed, WorkerDied

_KILL_SECONDS = 10.0
"""How long Ray may take to tell that a killed actor has ended."""

_MAX_CALLS = 1_000_000
"""Frames under way in one actor. Ray's own bound would hold calls back without a word."""


class RayWorker(Caller):
    """A service in an actor that Ray never restarts: a new one would have lost everything."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Start the actor, with Ray's `options`; `build` puts the service into it."""
        import ray

        super().__init__(name)
        remote: Any = ray.remote
        settled = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": _MAX_CALLS, "num_cpus": 0}
        self._actor = remote(**settled, **options)(ServiceActor).remote(sys.path)
        self._outbox: list[tuple] = []
        self._num_frames = 0
        self._detail = ""
        self._is_here = False
        self._kill_timer: asyncio.TimerHandle | None = None
        self._listening = self._loop.create_task(self._listen(), name=f"answers of {name}")

    async def build(
        self, factory: Callable[..., Any], *args: Any, start_seconds: float, setting: str = ""
    ) -> None:
        """Build the service; see `Host.launch`. When that fails the actor is ended."""
        ready = self._open(factory, args)
        try:
            async with asyncio.timeout(start_seconds):
                await ready
        except TimeoutError:
            self.kill()
            raise DeadlinePassed(f"the start of {self.name}", start_seconds, setting) from None
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        """False once it is known to have ended."""
        return not self.ended.is_set()

    @property
    def death(self) -> WorkerDied:
        """How it ended, once it has."""
        return WorkerDied(self.name, self.exit_code, self._detail)

    def kill(self) -> None:
        """End the process at once; where it is on another machine, a frozen one within seconds."""
        import ray

        if self.ended.is_set():
            return
        if self._is_here and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        ray.kill(self._actor, no_restart=True)
        self._detail = self._detail or "it was killed"
        if self._kill_timer is None:
            self._kill_timer = self._loop.call_later(_KILL_SECONDS, self._settle)

    def give_up(self, reason: str) -> None:
        """Take it for ended: its cluster is gone."""
        if not self.ended.is_set():
            self._detail = reason
            self._settle()

    def _has_closed(self, closing: asyncio.Future[Any]) -> None:
        if not closing.cancelled() and closing.exception() is None:
            self.exit_code, self._detail = 0, "it was closed"
            self.kill()

    def _post(self, message: tuple) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        batch, self._outbox = self._outbox, []
        if self.ended.is_set():
            return
        self._actor.post.remote(self._num_frames, framed(batch, self._fault))
        self._num_frames += 1

    async def _listen(self) -> None:
        """Hand answers on until the actor ends: the wait for more of them is how its end is noticed."""
        from ray.exceptions import RayError, RayTaskError

        try:
            self.pid, node = await self._actor.hello.remote()
            self._is_here = node == _this_node()
            while True:
                for message in owned(await self._actor.answers.remote()):
                    self._receive(message)
        except RayTaskError as problem:
            self._detail = f"it cannot read its arguments: {problem.cause!r}"
            self.kill()
        except RayError as problem:
            self._detail = self._detail or _cause(problem)
            self.kill()
        finally:
            self._settle()

    def _settle(self) -> None:
        """It has ended, or nothing is heard of it any more."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if not self.ended.is_set():
            self._has_ended()
        if self._listening is not asyncio.current_task():
            self._listening.cancel()


def _this_node() -> str:
    import ray

    return ray.get_runtime_context().get_node_id()


def _cause(problem: Exception) -> str:
    """The part of Ray's text that differs between one death and another."""
    text = str(problem)
    for lead in ("The actor is dead because ", "Worker exit detail: "):
        text = text.partition(lead)[2] or text
    text = text.partition(" Some common causes include")[0]
    return " ".join(text.split())
