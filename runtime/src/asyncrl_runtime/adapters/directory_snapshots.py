"""Rollout snapshots in the checkpoint directory, below the checkpoint or bootstrap that they belong to."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.sealed_folder import MANIFEST, seal, sync, verified, write_atomically
from asyncrl_runtime.ports.checkpoints import Bundle, BundleDamaged, CheckpointFailed, Snapshot

BOOTSTRAP, FOLDER = "bootstrap", "rollout_snapshots"
_SNAPSHOT = re.compile(r"snapshot_(\d{6,})")


@dataclass(slots=True)
class DirectorySnapshots:
    """`<anchor>/rollout_snapshots/snapshot_NNNNNN`, written like bundles: stage, digest, sync, rename."""

    store: DirectoryStore

    @property
    def bootstrap(self) -> Path:
        """The anchor before the first trainer checkpoint: the initial model and an identity."""
        return self.store.root / BOOTSTRAP

    def bootstrap_identity(self) -> Mapping[str, object] | None:
        """The identity that snapshots before the first step belong to. Raises BundleDamaged."""
        path = self.bootstrap / MANIFEST
        try:
            return json.loads(path.read_text(encoding="utf-8"))["identity"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleDamaged(str(path), f"it cannot be read ({error})") from error

    def write_bootstrap(self, identity: Mapping[str, object]) -> None:
        """Begin a lineage. Raises CheckpointFailed."""
        self.store.check_owner()
        try:
            self.bootstrap.mkdir(parents=True, exist_ok=True)
            write_atomically(self.bootstrap / MANIFEST, json.dumps({"identity": identity}))
            sync(self.store.root)
        except OSError as error:
            raise CheckpointFailed(str(self.bootstrap), str(error)) from error

    def stage(self, anchor: Path) -> Path:
        """An empty folder to write a snapshot into; the anchor itself is never created (SC-9.42)."""
        self.store.check_owner()
        if not anchor.is_dir():
            raise CheckpointFailed(str(anchor), "it is gone")
        folder = anchor / FOLDER
        folder.mkdir(exist_ok=True)
        staged = folder / "tmp_snapshot"
        if staged.exists():
            shutil.rmtree(staged)
        staged.mkdir()
        return staged

    def publish(self, anchor: Path, staged: Path, facts: Mapping[str, object]) -> Snapshot:
        """Digest, sync, rename to the next number. Raises CheckpointFailed, Fenced."""
        number = max((snapshot.number for snapshot in self.snapshots(anchor)), default=0) + 1
        final = staged.with_name(f"snapshot_{number:06d}")
        try:
            seal(staged, {"number": number, "anchor": anchor.name, "start": self.store.token, **facts})
            self.store.check_owner()
            staged.rename(final)
            sync(final.parent)
        except OSError as error:
            raise CheckpointFailed(str(staged), str(error)) from error
        return Snapshot(number, final)

    def snapshots(self, anchor: Path) -> list[Snapshot]:
        """Committed snapshots of an anchor, newest first."""
        folder = anchor / FOLDER
        if not folder.is_dir():
            return []
        found = [(match, path) for path in folder.iterdir() if (match := _SNAPSHOT.fullmatch(path.name))]
        return sorted((Snapshot(int(match[1]), path) for match, path in found), key=lambda s: -s.number)

    def verify(self, snapshot: Snapshot) -> Mapping[str, object]:
        """The manifest, if every file is what was written. Raises BundleDamaged."""
        manifest = verified(snapshot.path)
        if manifest.get("number") != snapshot.number:
            raise BundleDamaged(str(snapshot.path), f"it was written as number {manifest.get('number')}")
        return manifest

    def prune(self, anchor: Path, keep: int) -> None:
        """Remove all but the newest; one that goes stops being selectable in one rename."""
        self.store.check_owner()
        for snapshot in self.snapshots(anchor)[keep:]:
            doomed = snapshot.path.with_name(f"tmp_deleted_{snapshot.path.name}")
            snapshot.path.rename(doomed)
            shutil.rmtree(doomed)

    def sweep(self) -> None:
        """Remove what an interrupted writer left; only the owner may."""
        self.store.check_owner()
        for path in self.store.root.glob(f"*/{FOLDER}/tmp_*"):
            shutil.rmtree(path, ignore_errors=True)

    def anchor_of(self, bundle: Bundle | None) -> Path:
        """Where snapshots on top of a bundle are; without one, those before the first."""
        return self.bootstrap if bundle is None else bundle.path
