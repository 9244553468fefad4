"""Programs of the system, installed where this is Debian and they are missing; and a shell for an image."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from asyncrl_cluster.components import CNI_PLUGINS
from asyncrl_cluster.errors import Unmet
from asyncrl_cluster.layout import CACHE
from asyncrl_cluster.shell import Phases, run

PROVIDERS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "socat": "socat",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
"""Program to the package that brings it. A program that is there, from wherever, is left alone."""

INSTALL_SECONDS = 600.0
BUSYBOX = CACHE / "busybox" / "busybox"


def missing() -> list[str]:
    """Packages to install, each once."""
    lacking = [package for program, package in PROVIDERS.items() if shutil.which(program) is None]
    lacking += [] if (CNI_PLUGINS / "ptp").exists() else ["containernetworking-plugins"]
    return list(dict.fromkeys(lacking))


def ensure(phases: Phases) -> None:
    """Install what is missing, and fetch the static shell of the test image."""
    lacking = missing()
    if lacking:
        phases.note(f"installing {', '.join(lacking)}")
        install(lacking)
    if not BUSYBOX.exists():
        _fetch_busybox()


def install(names: list[str]) -> None:
    _require_apt(names)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq", timeout=INSTALL_SECONDS, environment=quiet)
    run(
        "apt-get",
        "install",
        "-y",
        "-qq",
        "--no-install-recommends",
        *names,
        timeout=INSTALL_SECONDS,
        environment=quiet,
    )


def _fetch_busybox() -> None:
    """Taken out of its package: installing it would replace a busybox that is there."""
    _require_apt(["busybox-static"])
    BUSYBOX.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        run("apt-get", "download", "-qq", "busybox-static", folder=Path(folder), timeout=120)
        package = next(Path(folder).glob("busybox-static_*.deb"))
        run("dpkg-deb", "-x", package, f"{folder}/out")
        found = next(path for path in Path(folder).glob("out/**/bin/busybox") if path.is_file())
        shutil.copy2(found, BUSYBOX)


def _require_apt(names: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise Unmet(
            f"this machine lacks {', '.join(names)} and has no apt-get",
            "install them by its own package manager",
        )
