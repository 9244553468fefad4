"""This process's connection to Ray: a cluster of its own on this machine, or one that exists."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from asyncrl_runtime.adapters.ray.errors import ClusterUnavailable, RayMissing
from asyncrl_runtime.adapters.ray.sessions import Session, open_session, sessions_folder

Result = TypeVar("Result")

_LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 256 << 20
_MIN_OBJECT_STORE_BYTES = 80 << 20
_CLOSE_SECONDS = 20.0
"""Ray parts from a cluster that is gone within 7 to 15 s."""

_SYSTEM = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

TOKEN = secrets.token_hex(32)
"""Of every cluster that this process starts."""

_reads_token = False
"""Ray was imported where it could read the token."""


class RayThread:
    """One thread for all calls that block.

    The kernel ends a cluster's processes with the thread that started them, so it lives as long as the
    cluster does, and the process's own end is the cluster's end whatever causes it.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[], Result]) -> Result:
        """Run it after what was asked for before. Cancelling stops the wait alone."""
        future: Future[Result] = Future()
        self._work.put((work, future))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """End the thread after what was asked for."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as problem:  # noqa: BLE001 - raised where the result is awaited
                    future.set_exception(problem)


@dataclass(slots=True)
class Connection:
    """A driver's connection. One per process at a time: that is all Ray has."""

    thread: RayThread
    session: Session | None
    """Of a cluster that this process started."""

    @classmethod
    async def attach(cls, address: str, *, start_seconds: float, setting: str) -> Connection:
        """Connect to a running cluster; "auto" finds that of this machine.

        Raises:
            RayMissing, ClusterUnavailable: it cannot be, or not within `start_seconds` of `setting`.
        """
        connection = cls(RayThread(), None)
        options = {"address": address}
        await connection._init(options, f"the Ray cluster at {address}", start_seconds, setting)
        return connection

    @classmethod
    async def start_local(
        cls, resources: Mapping[str, float], *, num_cpus: int, start_seconds: float, setting: str
    ) -> Connection:
        """Start a cluster that only this user's processes on this machine reach.

        CPUs are counted, not reserved: with fewer than its actors ask for, Ray waits without a word.

        Raises:
            RayMissing, ClusterUnavailable: it did not come up, or not within `start_seconds` of `setting`.
        """
        parent = sessions_folder()
        where = "a Ray cluster on this machine"
        try:
            session = await asyncio.to_thread(open_session, parent)
        except OSError as problem:
            raise ClusterUnavailable(where, str(problem)) from problem
        connection = cls(RayThread(), session)
        options = {
            "address": "local",
            "num_cpus": num_cpus,
            "num_gpus": None,
            "resources": dict(resources),
            "include_dashboard": False,
            "object_store_memory": _object_store_bytes(),
            "_node_ip_address": _LOOPBACK,
            "_temp_dir": str(session.folder),
            "_system_config": _SYSTEM,
        }
        await connection._init(options, where, start_seconds, setting)
        return connection

    async def close(self) -> None:
        """Disconnect; a cluster that this process started ends, and nothing of it stays."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.thread.call(_shutdown)
        except TimeoutError:
            _forget()
        finally:
            self.thread.end()
            if self.session is not None:
                await asyncio.to_thread(self.session.remove)

    async def _init(self, options: Mapping[str, Any], where: str, seconds: float, setting: str) -> None:
        connect = _connect if self.session is None else _start
        try:
            async with asyncio.timeout(seconds):
                await self.thread.call(lambda: connect(options))
        except TimeoutError:
            await self._give_up()
            raise ClusterUnavailable(
                where, f"not ready within {seconds:g} s; raise {setting} if that is too short"
            ) from None
        except (OSError, RuntimeError, ValueError) as problem:
            await self._give_up()
            raise ClusterUnavailable(where, str(problem)) from problem
        except BaseException:
            await self._give_up()
            raise

    async def _give_up(self) -> None:
        if self.session is not None:
            await asyncio.to_thread(self.session.remove)
        self.thread.end()


def _start(options: Mapping[str, Any]) -> None:
    """The cluster's processes inherit the environment of this moment; Ray's library reads it once."""
    global _reads_token
    if "ray" in sys.modules and not _reads_token:
        raise RuntimeError("ray was imported before its token was made; import it after the cluster's start")
    _reads_token = True
    before = dict(os.environ)
    changed = _environment()
    os.environ.update(changed)
    try:
        _connect(options, keep_to_loopback=True)
    finally:
        for name in changed:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def _connect(options: Mapping[str, Any], *, keep_to_loopback: bool = False) -> None:
    try:
        import ray
    except ImportError as problem:
        raise RayMissing(str(problem)) from problem
    from ray._private import ray_constants, worker

    if keep_to_loopback:  # the environment says so too, but Ray may have been imported before
        ray_constants.ENABLE_RAY_CLUSTER = False
    # Ray prints every death of an actor; whoever called it tells that already.
    worker.print_to_stdstream = lambda data, ignore_prefix: None
    ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)


def _shutdown() -> None:
    import ray

    ray.shutdown()


def _forget() -> None:
    """Keep Ray from waiting for its cluster once more when this process ends."""
    from ray._private import worker

    atexit.unregister(worker.shutdown)


def _environment() -> dict[str, str]:
    """What the cluster's processes inherit. The flag named after other systems keeps Ray to the loopback."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
        **{name: os.environ.get(name, "1") for name in _THREADS},
    }


def _object_store_bytes() -> int:
    memory = Path("/dev/shm")
    free = shutil.disk_usage(memory).free if sys.platform == "linux" and memory.exists() else 0
    return max(_MIN_OBJECT_STORE_BYTES, min(_OBJECT_STORE_BYTES, free // 2))
