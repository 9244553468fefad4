"""A server process that imports modules once and forks workers from itself in milliseconds."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl_runtime.core.errors import WorkerDied

SPAWN = struct.Struct("<Q")
"""Request: token; the worker's socket travels beside it."""

EVENT = struct.Struct("<BQq")
"""Answer: kind, token, process id or exit code."""

SPAWNED, EXITED = 1, 2

_MAIN = (
    "import sys; from asyncrl_runtime.adapters.workers.forkserver_main import main; main(int(sys.argv[1]))"
)


@dataclass(slots=True)
class Fork:
    """One forked worker, as the server reports it."""

    spawned: asyncio.Future[int]
    """Its process id."""

    exited: asyncio.Future[int | None]
    """Its exit code, negative for a signal, None if the server itself is gone."""


@dataclass(slots=True, eq=False)
class ForkServer:
    """Forks workers from a process that holds `preload`.

    `start` returns at once; the imports run meanwhile, and workers asked for earlier wait for them.
    The server and its workers form their own session, ignore SIGINT and SIGTERM, and end with the
    process that started them.
    """

    preload: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the server and its workers."""

    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _control: socket.socket | None = field(default=None, init=False)
    _received: bytearray = field(default_factory=bytearray, init=False)
    _forks: dict[int, Fork] = field(default_factory=dict, init=False)
    _tokens: int = field(default=0, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the server unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **self.environ},
            )
        bound_to_parent = threading.current_thread() is threading.main_thread()
        facts = {
            "path": sys.path,
            "preload": list(self.preload),
            "parent": os.getpid() if bound_to_parent else None,
        }
        text = json.dumps(facts).encode()
        self._control.sendall(SPAWN.pack(len(text)) + text)
        self._received.clear()
        self._loop = None

    def fork(self, worker: socket.socket) -> Fork:
        """Ask for a worker that serves on its end of a socket pair. Call within the running loop."""
        self.start()
        self._watch()
        loop = asyncio.get_running_loop()
        self._tokens += 1
        fork = self._forks[self._tokens] = Fork(loop.create_future(), loop.create_future())
        try:
            socket.send_fds(self._open_control, [SPAWN.pack(self._tokens)], [worker.fileno()])
        except OSError:
            self._ended()
        return fork

    @property
    def _open_control(self) -> socket.socket:
        assert self._control is not None
        return self._control

    def close(self) -> None:
        """End the server and every worker that still runs. Idempotent."""
        if self._process is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._open_control.fileno())
        self._open_control.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._loop = None
        self._fail_forks(None)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._open_control.fileno())
        self._forks = {token: fork for token, fork in self._forks.items() if fork.exited.get_loop() is loop}
        self._loop = loop
        loop.add_reader(self._open_control.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = self._open_control.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._ended()
            return
        self._received += data
        whole = len(self._received) // EVENT.size * EVENT.size
        for kind, token, value in EVENT.iter_unpack(bytes(self._received[:whole])):
            self._report(kind, token, value)
        del self._received[:whole]

    def _report(self, kind: int, token: int, value: int) -> None:
        fork = self._forks.get(token)
        if fork is None:
            return
        if kind == SPAWNED and not fork.spawned.done():
            fork.spawned.set_result(value)
        if kind == EXITED:
            del self._forks[token]
            if not fork.exited.done():
                fork.exited.set_result(value)

    def _ended(self) -> None:
        assert self._loop is not None
        assert self._process is not None
        self._loop.remove_reader(self._open_control.fileno())
        self._open_control.close()
        self._process.kill()
        code = self._process.wait()
        self._process = self._loop = None
        self._fail_forks(code)

    def _fail_forks(self, code: int | None) -> None:
        forks, self._forks = self._forks, {}
        for fork in forks.values():
            if fork.exited.get_loop().is_closed():
                continue
            if not fork.spawned.done():
                fork.spawned.set_exception(WorkerDied("the server that forks workers", code))
                fork.spawned.exception()
            if not fork.exited.done():
                fork.exited.set_result(None)


_light: ForkServer | None = None


def light_server() -> ForkServer:
    """The process-wide server without preloaded modules, for users' code and small helpers."""
    global _light
    if _light is None:
        _light = ForkServer()
    return _light
