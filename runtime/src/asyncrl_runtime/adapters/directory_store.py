"""Checkpoints in a directory: write, digest, sync, rename; one writer at a time."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.ports.checkpoints import Bundle, BundleDamaged, CheckpointFailed, Fenced

MANIFEST, FENCE, STATUS = "manifest.json", "fence.json", "latest_checkpoint_status.json"
_STEP = re.compile(r"step_(\d+)")
_REPLACEMENT = re.compile(r"step_(\d+)\.r(\d+)")


@dataclass(eq=False)
class FolderInUse(RunError):
    """Another live process runs in the folder."""

    path: str
    pid: str

    def __str__(self) -> str:
        return (
            f"{self.path} is in use by process {self.pid}: "
            "wait for it, stop it, or choose another folder with --output"
        )


@dataclass(slots=True)
class FolderLock:
    """A lock that ends with the process that holds it, however that ends (CLI-40)."""

    path: Path
    _file: TextIOWrapper | None = field(default=None, init=False)

    def acquire(self) -> None:
        """Take the lock. Raises FolderInUse."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise FolderInUse(str(self.path.parent), pid) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give it back. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(slots=True)
class DirectoryStore:
    """`step_<n>` folders below a root.

    `claim` writes a fencing token that only grows; a process that finds a newer one stops writing, so a
    zombie of an earlier start cannot publish (SC-9.33).
    """

    root: Path
    token: int = field(default=0, init=False)

    def claim(self) -> int:
        """Become the owner; returns the start count."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.token = self._owner() + 1
        write_atomically(self.root / FENCE, json.dumps({"start": self.token, "pid": os.getpid()}))
        return self.token

    def stage(self, step: int) -> Path:
        """An empty `tmp_step_<n>`."""
        self._check_owner()
        staged = self.root / f"tmp_step_{step}"
        if staged.exists():
            shutil.rmtree(staged)
        staged.mkdir(parents=True)
        return staged

    def publish(self, step: int, staged: Path) -> Bundle:
        """Digest, sync, rename; a second bundle of the same step replaces the first through a pointer."""
        try:
            files = {
                str(path.relative_to(staged)): _facts(path)
                for path in sorted(staged.rglob("*"))
                if path.is_file()
            }
            digest = sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
            write_atomically(
                staged / MANIFEST,
                json.dumps({"step": step, "start": self.token, "files": files, "digest": digest}),
            )
            for folder in [staged, *(path for path in staged.rglob("*") if path.is_dir())]:
                _sync(folder)
            self._check_owner()
            return self._rename(step, staged)
        except OSError as error:
            raise CheckpointFailed(str(staged), str(error)) from error

    def _rename(self, step: int, staged: Path) -> Bundle:
        final = self.root / f"step_{step}"
        if not final.exists():
            staged.rename(final)
            _sync(self.root)
            return Bundle(step, final)
        numbers = [
            int(m[2])
            for p in self.root.iterdir()
            if (m := _REPLACEMENT.fullmatch(p.name)) and int(m[1]) == step
        ]
        replacement = self.root / f"step_{step}.r{max(numbers, default=0) + 1}"
        staged.rename(replacement)
        old = self._current(step)
        write_atomically(self.root / f"step_{step}.current", replacement.name)
        _sync(self.root)
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
        return Bundle(step, replacement)

    def bundles(self) -> list[Bundle]:
        """Published bundles, newest first."""
        if not self.root.is_dir():
            return []
        steps = [
            int(m[1]) for path in self.root.iterdir() if (m := _STEP.fullmatch(path.name)) and path.is_dir()
        ]
        return [Bundle(step, self._current(step)) for step in sorted(steps, reverse=True)]

    def verify(self, bundle: Bundle) -> None:
        """Compare every file with the manifest."""
        try:
            manifest = json.loads((bundle.path / MANIFEST).read_text(encoding="utf-8"))
            files = manifest["files"]
            digest = sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleDamaged(str(bundle.path), f"its {MANIFEST} cannot be read ({error})") from error
        if digest != manifest.get("digest"):
            raise BundleDamaged(str(bundle.path), f"its {MANIFEST} does not match its own digest")
        if manifest.get("step") != bundle.step:
            raise BundleDamaged(str(bundle.path), f"it was written as step {manifest.get('step')}")
        for name, facts in files.items():
            path = bundle.path / name
            if not path.is_file():
                raise BundleDamaged(str(bundle.path), f"{name} is missing")
            if _facts(path, sync=False) != facts:
                raise BundleDamaged(str(bundle.path), f"{name} is not what was written")

    def delete(self, bundle: Bundle) -> None:
        """Remove a bundle; it stops being selectable first."""
        self._check_owner()
        (self.root / f"step_{bundle.step}.current").unlink(missing_ok=True)
        for path in {self.root / f"step_{bundle.step}", bundle.path}:
            if path.is_dir():
                doomed = path.with_name(f"tmp_deleted_{path.name}")
                path.rename(doomed)
                shutil.rmtree(doomed)

    def report(self, status: Mapping[str, object]) -> None:
        """Write the status file for monitors."""
        write_atomically(self.root / STATUS, json.dumps(status))

    def sweep(self) -> None:
        """Remove what an interrupted writer left; only the owner may."""
        self._check_owner()
        for path in self.root.glob("tmp_*"):
            shutil.rmtree(path, ignore_errors=True)

    def _current(self, step: int) -> Path:
        pointer = self.root / f"step_{step}.current"
        return (
            self.root / pointer.read_text(encoding="utf-8").strip()
            if pointer.is_file()
            else self.root / f"step_{step}"
        )

    def _owner(self) -> int:
        try:
            return int(json.loads((self.root / FENCE).read_text(encoding="utf-8"))["start"])
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError) as error:
            raise BundleDamaged(str(self.root), f"its {FENCE} cannot be read ({error}): remove it") from error

    def _check_owner(self) -> None:
        owner = self._owner()
        if owner != self.token:
            raise Fenced(str(self.root), self.token, owner)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see the old or the new content, also after a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _facts(path: Path, *, sync: bool = True) -> dict[str, object]:
    """Size and digest of a file, which is on disk afterwards if sync."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        if sync:
            os.fsync(file.fileno())
        size = file.tell()
    return {"bytes": size, "sha256": digest.hexdigest()}


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
