"""What the cluster changes on the host and what it must find there; and the proof that nothing is left."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
from collections.abc import Iterator
from pathlib import Path

from asyncrl_cluster import cgroups, layout
from asyncrl_cluster.errors import ClusterError, LeftBehind, Unmet
from asyncrl_cluster.machines import remove_bridge
from asyncrl_cluster.shell import free_gigabytes, run, wait_until

STATE_GIGABYTES = 3.0
LOCK_SECONDS = 1800.0

KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""What a kubelet sets for the whole machine."""


@contextlib.contextmanager
def exclusively() -> Iterator[None]:
    """One command at a time changes the cluster. The lock goes with the process that holds it."""
    layout.LOCK.parent.mkdir(parents=True, exist_ok=True)
    with layout.LOCK.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("  another command works on the cluster; waiting for it", flush=True)
            wait_until("the other command to end", lambda: _locked(file.fileno()), timeout=LOCK_SECONDS)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def require_root() -> None:
    if os.geteuid() != 0:
        raise Unmet(
            "a cluster on this machine needs root", "run it as root, or use --provider kind or existing"
        )


def check() -> None:
    """Refuse before anything is touched."""
    require_root()
    cgroups.hierarchies()
    free = free_gigabytes(layout.STATE)
    if free < STATE_GIGABYTES:
        raise Unmet(f"{layout.STATE} needs {STATE_GIGABYTES:g} GB, and {free:.1f} GB are free", "make room")
    _refuse_taken_networks()


def _refuse_taken_networks() -> None:
    ours = [
        ipaddress.ip_network(text)
        for text in (layout.NODE_NETWORK, layout.POD_NETWORK, layout.SERVICE_NETWORK)
    ]
    for route in json.loads(run("ip", "-json", "-4", "route", "show")):
        if route["dst"] == "default" or route.get("dev") == layout.BRIDGE:
            continue
        theirs = ipaddress.ip_network(route["dst"])
        for network in ours:
            if network.overlaps(theirs):
                raise Unmet(
                    f"this machine routes {theirs} to {route.get('dev')}, and the cluster needs {network}",
                    "another cluster or network has it: take that down, or use --provider existing",
                )


def remember_settings() -> None:
    """Keep the kernel settings as they were before the first kubelet."""
    path = layout.STATE / "kernel-settings.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {
            name: _setting(name).read_text().strip() for name in KERNEL_SETTINGS if _setting(name).exists()
        }
        path.write_text(json.dumps(values))


def restore_settings() -> None:
    path = layout.STATE / "kernel-settings.json"
    if path.exists():
        for name, value in json.loads(path.read_text()).items():
            _setting(name).write_text(value)


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name


def clear() -> None:
    """End and remove everything of the cluster, whatever state it is in."""
    cgroups.kill()
    for link in _links():
        if link != layout.BRIDGE:
            run("ip", "link", "delete", link)
    remove_bridge()
    cgroups.remove()
    restore_settings()
    for folder in (layout.RUN, layout.STATE):
        run("rm", "-rf", "--one-file-system", folder, timeout=300)


def prove_clear() -> None:
    """Look for everything that a cluster could leave; its cached binaries stay, they are no part of it."""
    found: list[str] = []

    def nothing() -> bool | str:
        found[:] = leftovers()
        return not found

    try:
        wait_until("nothing of the cluster to be left", nothing, timeout=5)
    except ClusterError as error:
        raise LeftBehind(found) from error


def leftovers() -> list[str]:
    found = [f"process {pid} ({name})" for pid, name in _processes()]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in mounts]
    found += [f"mount {point}" for point in points if point.startswith((str(layout.STATE), str(layout.RUN)))]
    found += [f"network link {link}" for link in _links()]
    found += [f"control group {folder}" for folder in cgroups.existing()]
    found += [f"folder {folder}" for folder in (layout.STATE, layout.RUN) if folder.exists()]
    return found


def _links() -> list[str]:
    return [
        path.name
        for path in Path("/sys/class/net").iterdir()
        if path.name == layout.BRIDGE or path.name.startswith("asyncrl-")
    ]


def _processes() -> Iterator[tuple[int, str]]:
    """Processes of the cluster's control groups: every one starts in them, and none can leave."""
    for pid in cgroups.processes():
        with contextlib.suppress(OSError):
            yield pid, os.readlink(f"/proc/{pid}/exe")
