"""Folders of Ray clusters that this product started, and what is left of those whose owner is gone."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOCK = "owner.lock"
_END_SECONDS = 10.0
_DELETED = " (deleted)"
"""What the kernel adds to the path of an open file that is gone."""


def sessions_folder() -> Path:
    """Of this user. Short, since Ray puts sockets below it whose paths may have 107 bytes."""
    return Path("/tmp") / f"asyncrl-ray-{os.getuid()}"


@dataclass(slots=True)
class Session:
    """The folder of one cluster, locked by the process that owns it."""

    folder: Path
    _lock: int

    def remove(self) -> int:
        """End what still runs of the cluster, and delete its folder; the number of processes ended."""
        try:
            return _remove(self.folder)
        finally:
            os.close(self._lock)


def open_session(parent: Path) -> Session:
    """A new session, once what is left of others whose owner is gone has been ended.

    An owner that lives holds its folder's lock, and a cluster that was not started here has no such
    folder: neither is touched.

    Raises:
        OSError: it cannot be made; also when `parent` is another user's or open to others.
    """
    parent.mkdir(mode=0o700, exist_ok=True)
    facts = parent.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{parent} must be a folder that only its owner may enter; remove it")
    gate = os.open(parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)  # nobody sweeps between the making and the locking of a folder
        for folder in parent.iterdir():
            left = _locked(folder)
            if left is not None:
                Session(folder, left).remove()
        folder = parent / secrets.token_hex(4)
        folder.mkdir(mode=0o700)
        lock = _locked(folder)
        assert lock is not None
        os.write(lock, str(os.getpid()).encode())
        return Session(folder, lock)
    finally:
        os.close(gate)


def processes_of(folder: Path) -> list[int]:
    """Processes that name a folder in their command line or hold a file below it open.

    Not this one, and not the owner: a driver keeps files of a cluster open that it has left.
    """
    spared = {os.getpid(), _owner_of(folder)}
    return [pid for pid in _own_processes() if pid not in spared and _belongs(pid, folder)]


def _owner_of(folder: Path) -> int | None:
    try:
        return int((folder / _LOCK).read_text())
    except (OSError, ValueError):
        return None


def _locked(folder: Path) -> int | None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _remove(folder: Path) -> int:
    """Kill until nobody is left: a process may start another one while it is looked for."""
    killed: set[int] = set()
    end = time.monotonic() + _END_SECONDS
    while (pids := processes_of(folder)) and time.monotonic() < end:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(pids)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)
    return len(killed)


def _own_processes() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                yield int(entry.name)


def _belongs(pid: int, folder: Path) -> bool:
    below, process = f"{folder}/", Path("/proc") / str(pid)
    with suppress(OSError):
        if below.encode() in (process / "cmdline").read_bytes():
            return True
        for name in os.listdir(process / "fd"):
            with suppress(OSError):
                path = os.readlink(process / "fd" / name)
                if path.startswith(below) and not path.endswith(_DELETED):
                    return True
    return False
