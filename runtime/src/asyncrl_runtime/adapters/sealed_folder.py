"""A folder with a manifest of its files: written once, verified before use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from asyncrl_runtime.ports.checkpoints import BundleDamaged

MANIFEST = "manifest.json"


def seal(folder: Path, facts: Mapping[str, object]) -> None:
    """Digest every file, write the manifest with these facts, and bring all of it to disk. Raises OSError."""
    files = {
        str(path.relative_to(folder)): file_facts(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = {**facts, "files": files, "digest": _digest(files)}
    write_atomically(folder / MANIFEST, json.dumps(manifest))
    for inside in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync(inside)


def verified(folder: Path) -> dict[str, object]:
    """The manifest of a folder in which every file is what was written. Raises BundleDamaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        digest = _digest(files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleDamaged(str(folder), f"its {MANIFEST} cannot be read ({error})") from error
    if digest != manifest.get("digest"):
        raise BundleDamaged(str(folder), f"its {MANIFEST} does not match its own digest")
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            raise BundleDamaged(str(folder), f"{name} is missing")
        try:
            unchanged = file_facts(path, on_disk=False) == facts
        except OSError as error:
            raise BundleDamaged(str(folder), f"{name} cannot be read ({error})") from error
        if not unchanged:
            raise BundleDamaged(str(folder), f"{name} is not what was written")
    return manifest


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see the old or the new content, also after a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def file_facts(path: Path, *, on_disk: bool = True) -> dict[str, object]:
    """Size and digest of a file, which is on disk afterwards if asked."""
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        if on_disk:
            os.fsync(file.fileno())
        size = file.tell()
    return {"bytes": size, "sha256": digest.hexdigest()}


def sync(folder: Path) -> None:
    """Bring a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(files: Mapping[str, object]) -> str:
    return sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
