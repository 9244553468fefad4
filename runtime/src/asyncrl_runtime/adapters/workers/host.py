"""Where worker services run, and what their callers need of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl_runtime.adapters.workers.forkserver import ForkServer
from asyncrl_runtime.adapters.workers.process import WorkerProcess
from asyncrl_runtime.core.errors import WorkerDied


class Worker(Protocol):
    """A service in a process of its own."""

    name: str
    pid: int | None
    ended: asyncio.Event
    """Set once the process is gone and every pending call has failed, also when nobody called."""

    @property
    def alive(self) -> bool:
        """False once it is known to have ended."""
        ...

    @property
    def death(self) -> WorkerDied:
        """How it ended, once it has."""
        ...

    async def call(
        self, method: str, *args: Any, deadline_seconds: float | None = None, setting: str = ""
    ) -> Any:
        """Call a method of the service; it must not write to arrays in its arguments.

        Calls start in the order they were made. Cancelling a call cancels it there too.

        Raises:
            WorkerDied: the process ended.
            DeadlinePassed: no answer within `deadline_seconds`, which `setting` holds.
            Exception: what the method raised (`RemoteError` for types of other packages).
        """
        ...

    def kill(self) -> None:
        """End the process at once, also a frozen one."""
        ...

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Let the service close, then the process end; kill it after `grace_seconds`. Idempotent."""
        ...


class Host(Protocol):
    """Starts services. Each `launch` is a new process."""

    async def launch(
        self, factory: Callable[..., Any], *args: Any, name: str, start_seconds: float, setting: str = ""
    ) -> Worker:
        """Build `factory(*args)` in a new process, and return when it is built.

        `factory` is a module-level callable. Its methods are what `call` calls: plain ones, async
        ones, or ones that return a `Deferred`.

        Raises:
            WorkerDied: the process ended before it was ready.
            DeadlinePassed: it was not ready within `start_seconds`, which `setting` holds.
            Exception: what the factory raised (`RemoteError` for types of other packages).
        """
        ...


class Hosts(Protocol):
    """Where the workers of one job run."""

    async def start(self) -> None:
        """Make room for all of them. Raises RunError when there is none in time."""
        ...

    def shard(self, index: int) -> Host:
        """Of a generation shard."""
        ...

    def trainer(self, rank: int = 0) -> Host:
        """Of one rank of the trainer."""
        ...

    def data_plane(self) -> Host:
        """Of the controller's client of a data plane that is not in this process."""
        ...

    async def close(self) -> None:
        """Leave nothing behind. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class ForkHost:
    """Implements `Host` on this machine, by forking from a server that holds the modules."""

    server: Callable[[], ForkServer]

    async def launch(
        self, factory: Callable[..., Any], *args: Any, name: str, start_seconds: float, setting: str = ""
    ) -> Worker:
        """See `Host`."""
        return await WorkerProcess.start(
            factory, *args, name=name, start_seconds=start_seconds, setting=setting, server=self.server()
        )


@dataclass(frozen=True, slots=True)
class ForkHosts:
    """Implements `Hosts` on this machine."""

    server: Callable[[], ForkServer]

    async def start(self) -> None:
        """The server starts with the first worker, if not before."""

    def shard(self, index: int) -> Host:
        """See `Hosts`."""
        return ForkHost(self.server)

    def trainer(self, rank: int = 0) -> Host:
        """See `Hosts`."""
        return ForkHost(self.server)

    def data_plane(self) -> Host:
        """See `Hosts`."""
        return ForkHost(self.server)

    async def close(self) -> None:
        """The server belongs to the process."""
