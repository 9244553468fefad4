"""Checkpoint bundles: staged, published by one rename, verified before use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asyncrl_runtime.core.errors import RunError


@dataclass(frozen=True, slots=True)
class Bundle:
    """A published trainer checkpoint."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed rollout snapshot."""

    number: int
    path: Path


@dataclass(eq=False)
class BundleDamaged(RunError):
    """A bundle lacks a part, or a part is not what was written."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"checkpoint {self.path} cannot be used: {self.problem}"


@dataclass(eq=False)
class CheckpointFailed(RunError):
    """A checkpoint could not be written; no selectable bundle is left."""

    path: str
    problem: str

    def __str__(self) -> str:
        return (
            f"checkpoint {self.path} could not be written: {self.problem}; free space or repair the folder, "
            "or set spec.checkpointing.enabled to false"
        )


@dataclass(eq=False)
class Fenced(RunError):
    """A newer start of the job owns the checkpoints; this one must not write (a zombie)."""

    path: str
    ours: int
    theirs: int

    def __str__(self) -> str:
        return (
            f"start {self.theirs} of the job has taken {self.path} over, and this is start {self.ours}; "
            "this process stops without writing"
        )


class CheckpointStore(Protocol):
    """Where bundles live. Calls may block; callers run them off the event loop."""

    def stage(self, step: int) -> Path:
        """An empty folder to write the bundle's files into; a stale one of the same step is removed."""
        ...

    def publish(self, step: int, staged: Path) -> Bundle:
        """Digest every file, sync, rename. Raises CheckpointFailed or Fenced: nothing is selectable then."""
        ...

    def bundles(self) -> list[Bundle]:
        """Published bundles, newest first. Reads names only, changes nothing."""
        ...

    def verify(self, bundle: Bundle) -> None:
        """Raise BundleDamaged unless every file is there and has its digest."""
        ...

    def delete(self, bundle: Bundle) -> None:
        """Remove a bundle."""
        ...

    def report(self, status: Mapping[str, object]) -> None:
        """Tell monitors about the last attempt (SC-9.13)."""
        ...


class SnapshotStore(Protocol):
    """Where rollout snapshots live: below an anchor, a checkpoint or the bootstrap (SC-1.66 to 1.68)."""

    def anchor_of(self, bundle: Bundle | None) -> Path:
        """Where snapshots on top of a bundle are; without one, those before the first."""
        ...

    def stage(self, anchor: Path) -> Path:
        """An empty folder to write a snapshot into. Raises CheckpointFailed when the anchor is gone."""
        ...

    def publish(self, anchor: Path, staged: Path, facts: Mapping[str, object]) -> Snapshot:
        """Digest, sync, rename. Raises CheckpointFailed or Fenced: nothing is selectable then."""
        ...

    def snapshots(self, anchor: Path) -> list[Snapshot]:
        """Committed snapshots, newest first. Reads names only, changes nothing."""
        ...

    def verify(self, snapshot: Snapshot) -> Mapping[str, object]:
        """The manifest. Raises BundleDamaged unless every file is there and has its digest."""
        ...

    def prune(self, anchor: Path, keep: int) -> None:
        """Remove all but the newest."""
        ...
