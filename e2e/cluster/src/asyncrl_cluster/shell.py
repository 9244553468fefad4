"""Programs with a deadline, waits with a deadline, and progress on the terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from asyncrl_cluster.errors import ClusterError, CommandFailed, CommandTooSlow, NotInTime, Unmet


def run(
    *command: str | Path,
    timeout: float = 60,
    stdin: str | bytes | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Standard output of a program that must end well within `timeout` seconds."""
    words = [str(word) for word in command]
    given = stdin.encode() if isinstance(stdin, str) else stdin or b""
    try:
        done = subprocess.run(
            words,
            input=given,
            capture_output=True,
            timeout=timeout,
            check=False,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise CommandTooSlow(words, timeout) from error
    except FileNotFoundError as error:
        raise Unmet(
            f"{words[0]} is not installed", "install it, or run `cluster up`, which installs it"
        ) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace")
        raise CommandFailed(words, done.returncode, said)
    return done.stdout.decode(errors="replace")


def succeeds(*command: str | Path, timeout: float = 20) -> bool:
    """Whether a program ends well."""
    try:
        run(*command, timeout=timeout)
    except ClusterError:
        return False
    return True


def wait_until(
    what: str,
    holds: Callable[[], bool | str],
    *,
    timeout: float,
    interval: float = 0.2,
    log: Callable[[], str] | None = None,
) -> None:
    """Return once `holds` gives True. A string, or the text of its ClusterError, is what was seen instead."""
    started = time.monotonic()
    while True:
        try:
            answer = holds()
        except ClusterError as error:
            answer = str(error)
        if answer is True:
            return
        if time.monotonic() - started > timeout:
            raise NotInTime(what, timeout, seen=answer or "", log=log() if log else "")
        time.sleep(interval)


def tail(path: Path, count: int = 15) -> str:
    """The last lines of a log, marked as such."""
    try:
        lines = path.read_text(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return f"  ({path} does not exist)"
    return "\n".join([f"  last lines of {path}:", *(f"  | {line}" for line in lines)])


def free_gigabytes(path: Path) -> float:
    """Free space of the file system that `path` is or will be on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / 1e9


class Phases:
    """Named steps on the terminal, each with its time."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        if sys.stdout.isatty():
            print(f"  …       {name}", end="\r", flush=True)
        try:
            yield
        except BaseException:
            print(f"  {time.monotonic() - started:6.1f} s  {name}: failed", flush=True)
            raise
        self.seconds[name] = time.monotonic() - started
        print(f"  {self.seconds[name]:6.1f} s  {name}", flush=True)

    def note(self, text: str) -> None:
        """A line that belongs to the phase under way."""
        print(f"            {text}", flush=True)

    def total(self) -> float:
        """Seconds since the first phase."""
        return time.monotonic() - self._started
