"""The fork server's own process: imports once, forks on request, reports exits."""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress

from asyncrl_runtime.adapters.workers import service
from asyncrl_runtime.adapters.workers.forkserver import EVENT, EXITED, SPAWN, SPAWNED
from asyncrl_runtime.adapters.workers.parent import end_with_parent


def main(fd: int) -> None:
    """Serve fork requests on an inherited socket until its other end closes."""
    control = socket.socket(fileno=fd)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # handlers, not SIG_IGN: programs that workers start get none
        signal.signal(number, _leave_it_to_the_parent)
    (size,) = SPAWN.unpack(_exactly(control, SPAWN.size))
    facts = json.loads(_exactly(control, size))
    if facts["parent"] is not None:
        end_with_parent(facts["parent"])
    sys.path[:] = facts["path"]
    _preload(facts["preload"])
    with suppress(ConnectionError):  # a parent that was killed
        _serve(control)


def _leave_it_to_the_parent(*_: object) -> None:
    """The process that called decides when workers end."""


def _exactly(control: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = control.recv(size - len(data))
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def _preload(modules: list[str]) -> None:
    gc.disable()
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - a worker that needs it meets the same error, and reports it
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that workers share


def _serve(control: socket.socket) -> None:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _leave_it_to_the_parent)  # wakes the pipe
    tokens: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        _reap(control, tokens)
        if control not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(control, SPAWN.size, 1)
        if not data:
            return
        data += _exactly(control, SPAWN.size - len(data)) if len(data) < SPAWN.size else b""
        (token,) = SPAWN.unpack(data)
        pid = os.fork()
        if pid == 0:
            _become_worker(control, (wake_read, wake_write), fds[0])
        os.close(fds[0])
        tokens[pid] = token
        control.sendall(EVENT.pack(SPAWNED, token, pid))


def _reap(control: socket.socket, tokens: dict[int, int]) -> None:
    while tokens:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        control.sendall(EVENT.pack(EXITED, tokens.pop(pid), os.waitstatus_to_exitcode(status)))


def _become_worker(control: socket.socket, pipes: tuple[int, int], fd: int) -> None:
    server = os.getppid()
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for pipe in pipes:
            os.close(pipe)
        end_with_parent(server)
        gc.enable()
        code = service.serve(socket.socket(fileno=fd))
    except BaseException:  # noqa: BLE001 - the frames above belong to the server and must not run on
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
