"""Container images of one layer, written as archives that every container runtime loads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

NONROOT = "65532:65532"


def write_archive(
    path: Path,
    reference: str,
    *,
    files: Mapping[str, Path],
    entrypoint: Sequence[str],
    links: Mapping[str, str] | None = None,
    user: str = NONROOT,
) -> None:
    """An image with these files (path in it to path here) and symbolic links, the same bytes each time."""
    layer = path.with_suffix(f".layer.{os.getpid()}")
    try:
        _write_layer(layer, files, links or {})
        digest = _digest(layer)
        config = json.dumps(
            {
                "architecture": _architecture(),
                "os": "linux",
                "created": "1970-01-01T00:00:00Z",
                "config": {
                    "User": user,
                    "Entrypoint": list(entrypoint),
                    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                "history": [{"created": "1970-01-01T00:00:00Z", "comment": "asyncrl-cluster"}],
            },
            sort_keys=True,
        ).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = json.dumps(
            [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
        ).encode()
        fresh = path.with_suffix(f".fresh.{os.getpid()}")
        with tarfile.open(fresh, "w") as archive:
            _add_bytes(archive, name, config)
            _add_bytes(archive, "manifest.json", manifest)
            archive.add(layer, f"{digest}/layer.tar", filter=_plain)
        fresh.replace(path)
    finally:
        layer.unlink(missing_ok=True)


def _write_layer(path: Path, files: Mapping[str, Path], links: Mapping[str, str]) -> None:
    with tarfile.open(path, "w") as layer:
        for name in ("tmp", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            layer.addfile(folder)
        _add_bytes(
            layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n"
        )
        for name, source in sorted(files.items()):
            layer.add(source, name.lstrip("/"), filter=_plain)
        for name, target in sorted(links.items()):
            link = tarfile.TarInfo(name.lstrip("/"))
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, target, 0o777
            layer.addfile(link)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
