"""Checkpoints in a directory: write, digest, sync, rename; one writer at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_runtime.adapters.folder_lock import FolderUnusable
from asyncrl_runtime.adapters.sealed_folder import seal, sync, verified, write_atomically
from asyncrl_runtime.ports.checkpoints import Bundle, BundleDamaged, CheckpointFailed, Fenced

FENCE, STATUS = "fence.json", "latest_checkpoint_status.json"
_BUNDLE = re.compile(r"step_(\d+)(?:\.r(\d+))?")
_NAMES = re.compile(r"step_(\d+)(?:\.current)?")


@dataclass(slots=True)
class DirectoryStore:
    """`step_<n>` folders below a root.

    `claim` writes a fencing token that only grows; a process that finds a newer one stops writing, so a
    zombie of an earlier start cannot publish (SC-9.33).
    """

    root: Path
    token: int = field(default=0, init=False)

    def claim(self) -> int:
        """Become the owner; returns the start count. Raises FolderUnusable."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.token = self._owner() + 1
            write_atomically(self.root / FENCE, json.dumps({"start": self.token, "pid": os.getpid()}))
        except OSError as error:
            raise FolderUnusable(str(self.root), str(error)) from error
        return self.token

    def stage(self, step: int) -> Path:
        """An empty `tmp_step_<n>`."""
        self.check_owner()
        staged = self.root / f"tmp_step_{step}"
        if staged.exists():
            shutil.rmtree(staged)
        staged.mkdir(parents=True)
        return staged

    def publish(self, step: int, staged: Path) -> Bundle:
        """Digest, sync, rename; a second bundle of the same step replaces the first through a pointer."""
        try:
            seal(staged, {"step": step, "start": self.token})
            self.check_owner()
            return self._rename(step, staged)
        except OSError as error:
            self.check_owner()
            raise CheckpointFailed(str(staged), str(error)) from error

    def _rename(self, step: int, staged: Path) -> Bundle:
        final, pointer = self.root / f"step_{step}", self._pointer(step)
        if not final.exists() and not pointer.exists():
            staged.rename(final)
            sync(self.root)
            return Bundle(step, final)
        numbers = [
            int(match[2] or 0)
            for path in self.root.iterdir()
            if (match := _BUNDLE.fullmatch(path.name)) and int(match[1]) == step
        ]
        replacement = self.root / f"step_{step}.r{max(numbers, default=0) + 1}"
        staged.rename(replacement)
        write_atomically(pointer, replacement.name)
        sync(self.root)
        self._sweep_replaced(step)
        return Bundle(step, replacement)

    def bundles(self) -> list[Bundle]:
        """Published bundles, newest first."""
        if not self.root.is_dir():
            return []
        steps = {int(match[1]) for path in self.root.iterdir() if (match := _NAMES.fullmatch(path.name))}
        found = [Bundle(step, self._current(step)) for step in sorted(steps, reverse=True)]
        return [bundle for bundle in found if bundle.path.exists()]

    def verify(self, bundle: Bundle) -> None:
        """Compare every file with the manifest."""
        manifest = verified(bundle.path)
        if manifest.get("step") != bundle.step:
            raise BundleDamaged(str(bundle.path), f"it was written as step {manifest.get('step')}")

    def delete(self, bundle: Bundle) -> None:
        """Remove a bundle. It stops being selectable in one rename, and no older one takes its place."""
        self.check_owner()
        self._sweep_replaced(bundle.step)
        doomed = bundle.path.with_name(f"tmp_deleted_{bundle.path.name}")
        bundle.path.rename(doomed)
        self._pointer(bundle.step).unlink(missing_ok=True)
        shutil.rmtree(doomed)

    def report(self, status: Mapping[str, object]) -> None:
        """Write the status file for monitors."""
        write_atomically(self.root / STATUS, json.dumps(status))

    def sweep(self) -> None:
        """Remove what an interrupted writer left; only the owner may."""
        self.check_owner()
        for path in self.root.glob("tmp_*"):
            shutil.rmtree(path, ignore_errors=True)
        for pointer in self.root.glob("step_*.current"):
            if not self._named_by(pointer).exists():
                pointer.unlink()
        for step in {int(m[1]) for path in self.root.iterdir() if (m := _BUNDLE.fullmatch(path.name))}:
            self._sweep_replaced(step)

    def _sweep_replaced(self, step: int) -> None:
        """Remove bundles of a step that are not its current one."""
        current = self._current(step)
        if not current.is_dir():
            return
        for path in list(self.root.iterdir()):
            match = _BUNDLE.fullmatch(path.name)
            if match and int(match[1]) == step and path != current:
                shutil.rmtree(path, ignore_errors=True)

    def _pointer(self, step: int) -> Path:
        return self.root / f"step_{step}.current"

    def _named_by(self, pointer: Path) -> Path:
        """What a pointer names; a pointer that names no bundle stands for itself, and cannot be verified."""
        name = pointer.read_text(encoding="utf-8").strip()
        return self.root / name if _BUNDLE.fullmatch(name) else pointer

    def _current(self, step: int) -> Path:
        pointer = self._pointer(step)
        return self._named_by(pointer) if pointer.is_file() else self.root / f"step_{step}"

    def _owner(self) -> int:
        try:
            return int(json.loads((self.root / FENCE).read_text(encoding="utf-8"))["start"])
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError) as error:
            raise BundleDamaged(str(self.root), f"its {FENCE} cannot be read ({error}): remove it") from error

    def check_owner(self) -> None:
        """Raise Fenced if a newer start has taken the folder over."""
        owner = self._owner()
        if owner != self.token:
            raise Fenced(str(self.root), self.token, owner)
