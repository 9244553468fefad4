"""The images that the cluster itself needs, and bringing images onto nodes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl_cluster import archives, layout
from asyncrl_cluster.binaries import INIT, KUBERAY, LOCAL_PATH
from asyncrl_cluster.components import PAUSE_IMAGE, Node
from asyncrl_cluster.errors import ClusterError, CommandFailed, Unmet
from asyncrl_cluster.packages import BUSYBOX
from asyncrl_cluster.shell import run, succeeds

BUSYBOX_IMAGE = "localhost/asyncrl-cluster/busybox:1"
LOCAL_PATH_IMAGE = f"localhost/asyncrl-cluster/local-path-provisioner:{LOCAL_PATH.version}"
APPLETS = """
    sh cat chmod cp date dd df echo env expr false find grep head hostname httpd id kill ln ls mkdir mv
    nc nslookup ping ps pwd rm sed seq sleep sort stat sync tail tar test touch tr true wc wget
"""
SAVE_SECONDS = 900.0
IMPORT_SECONDS = 900.0


def kuberay_image(version: str) -> str:
    return f"localhost/asyncrl-cluster/kuberay-operator:v{version}"


@dataclass(frozen=True)
class Archive:
    """An image of the cluster's own, written when it is first needed."""

    reference: str
    write: Callable[[Path], None]

    def path(self) -> Path:
        """The archive; one that is older than what it holds is never kept, since its name has the version."""
        path = layout.ARCHIVES / f"{self.reference.rpartition('/')[2].replace(':', '-')}.tar"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.write(path)
        return path


def pause() -> Archive:
    def write(path: Path) -> None:
        archives.write_archive(path, PAUSE_IMAGE, files={"/pause": INIT.path("init")}, entrypoint=["/pause"])

    return Archive(PAUSE_IMAGE, write)


def busybox() -> Archive:
    """A shell with the usual programs, for helper pods and tests."""

    def write(path: Path) -> None:
        links = {f"/bin/{name}": "busybox" for name in APPLETS.split()}
        archives.write_archive(
            path,
            BUSYBOX_IMAGE,
            files={"/bin/busybox": BUSYBOX},
            entrypoint=["/bin/sh"],
            links=links,
            user="0:0",
        )

    return Archive(BUSYBOX_IMAGE, write)


def local_path() -> Archive:
    program = "local-path-provisioner"

    def write(path: Path) -> None:
        archives.write_archive(
            path,
            LOCAL_PATH_IMAGE,
            files={f"/usr/bin/{program}": LOCAL_PATH.path(program)},
            entrypoint=[program],
        )

    return Archive(LOCAL_PATH_IMAGE, write)


def kuberay(version: str) -> Archive:
    reference = kuberay_image(version)

    def write(path: Path) -> None:
        files = {"/manager": KUBERAY[version].path("kuberay-operator")}
        archives.write_archive(path, reference, files=files, entrypoint=["/manager"])

    return Archive(reference, write)


def import_archive(nodes: Sequence[Node], archive: Path) -> None:
    """Bring an archive onto all nodes at once."""
    failures: list[ClusterError] = []

    def bring(node: Node) -> None:
        try:
            words = ["ctr", f"--address={node.socket}", "--namespace=k8s.io", "images", "import", archive]
            node.machine.inside(*words, timeout=IMPORT_SECONDS)
        except ClusterError as error:
            failures.append(error)

    threads = [threading.Thread(target=bring, args=[node]) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def references(node: Node) -> set[str]:
    """Names of the images on a node."""
    listed = node.machine.inside(
        "ctr", f"--address={node.socket}", "--namespace=k8s.io", "images", "list", "--quiet"
    )
    return set(listed.split())


def save(image: str, path: Path) -> None:
    """Write an image as an archive, from whichever builder has it."""
    for tool, command in _savers(image, path):
        if shutil.which(tool) and succeeds(tool, "inspect", "--type=image", image):
            run(*command, timeout=SAVE_SECONDS)
            return
    raise Unmet(
        f"no image {image} in buildah, docker or podman here",
        "build it with `make images`, or give the path of an archive",
    )


def _savers(image: str, path: Path) -> list[tuple[str, list[str]]]:
    return [
        ("buildah", ["buildah", "push", "--quiet", image, f"docker-archive:{path}:{image}"]),
        ("podman", ["podman", "save", "--quiet", "--output", str(path), image]),
        ("docker", ["docker", "save", "--output", str(path), image]),
    ]


def load(nodes: Sequence[Node], image: str) -> None:
    """Bring an image, or an archive of one, onto nodes; the archive made on the way is deleted."""
    given = Path(image)
    if given.is_file():
        import_archive(nodes, given)
        return
    path = layout.STATE / f"loading-{os.getpid()}.tar"
    try:
        save(image, path)
        import_archive(nodes, path)
    except CommandFailed as error:
        if "no space left" in error.output:
            raise Unmet(
                f"no space left for {image}", "make room, or load it on one node only (--node 1)"
            ) from error
        raise
    finally:
        path.unlink(missing_ok=True)
