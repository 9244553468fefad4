"""The control groups that hold every process of the cluster, whatever started it. Versions 1 and 2."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from asyncrl_cluster.errors import NotInTime, Unmet
from asyncrl_cluster.layout import CGROUP
from asyncrl_cluster.shell import wait_until

ROOT = Path("/sys/fs/cgroup")
FROZEN_SECONDS = 10.0


def hierarchies() -> list[Path]:
    """Roots under which a group must be made: one in version 2, one per controller in version 1."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    roots = [
        root
        for root in sorted(ROOT.iterdir())
        if root.is_dir() and not root.is_symlink() and (root / "cgroup.procs").exists()
    ]
    if not {"memory", "cpu", "freezer", "pids"} <= {part for root in roots for part in root.name.split(",")}:
        raise Unmet(
            f"{ROOT} has no control groups to limit pods with",
            "mount cgroup v2 there, or the version 1 controllers",
        )
    return roots


def make(*parts: str) -> None:
    """Make the group and its parents, with all controllers on."""
    for root in hierarchies():
        folder = root
        for part in (CGROUP, *parts):
            _enable_controllers(folder)
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if root != ROOT and (folder / name).exists() and not (folder / name).read_text().strip():
                    (folder / name).write_text((parent / name).read_text())


def _enable_controllers(folder: Path) -> None:
    """In version 2 a group hands its controllers to its children one by one."""
    switch = folder / "cgroup.subtree_control"
    if not (ROOT / "cgroup.controllers").exists() or not switch.exists():
        return
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            switch.write_text(f"+{controller}")


def joining(*parts: str) -> list[str]:
    """Files that take a process into the group when 0 is written to them."""
    return [str(root.joinpath(CGROUP, *parts, "cgroup.procs")) for root in hierarchies()]


def processes(*parts: str) -> list[int]:
    """Ids of all processes in the group and below."""
    found: set[int] = set()
    for root in hierarchies():
        for folder, _, _ in os.walk(root.joinpath(CGROUP, *parts), topdown=False):
            with contextlib.suppress(OSError):
                found |= {int(line) for line in (Path(folder) / "cgroup.procs").read_text().split()}
    return sorted(found - {0})


def freeze(*parts: str, frozen: bool) -> None:
    """Stop or resume all processes of the group at once."""
    if (ROOT / "cgroup.controllers").exists():
        folder = ROOT.joinpath(CGROUP, *parts)
        (folder / "cgroup.freeze").write_text("1" if frozen else "0")
        return
    state = ROOT.joinpath("freezer", CGROUP, *parts, "freezer.state")
    wanted = "FROZEN" if frozen else "THAWED"
    state.write_text(wanted)
    wait_until(
        f"{'/'.join(parts)} to be {wanted.lower()}",
        lambda: state.read_text().strip() == wanted,
        timeout=FROZEN_SECONDS,
    )


def is_frozen(*parts: str) -> bool:
    with contextlib.suppress(OSError):
        if (ROOT / "cgroup.controllers").exists():
            return ROOT.joinpath(CGROUP, *parts, "cgroup.freeze").read_text().strip() == "1"
        return ROOT.joinpath("freezer", CGROUP, *parts, "freezer.state").read_text().strip() != "THAWED"
    return False


def kill(*parts: str, seconds: float = 20) -> None:
    """End every process of the group, frozen or not, and return once they are gone."""
    if is_frozen(*parts):
        freeze(*parts, frozen=False)
    ends = time.monotonic() + seconds
    while found := processes(*parts):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > ends:
            raise NotInTime(
                f"{len(found)} processes of {'/'.join(parts) or 'the cluster'} to end",
                seconds,
                seen=str(found[:10]),
            )
        time.sleep(0.02)


def remove(*parts: str, seconds: float = 10) -> None:
    """Remove the group and all below. Its processes must have ended."""

    def gone() -> bool | str:
        left = [folder for folder in _folders(*parts) if not _removed(folder)]
        return not left or str(left[0])

    wait_until(f"control group {'/'.join((CGROUP, *parts))} to go", gone, timeout=seconds, interval=0.05)


def existing() -> list[Path]:
    """Every folder that the cluster's groups have now."""
    return list(_folders())


def _folders(*parts: str) -> Iterator[Path]:
    for root in hierarchies():
        for folder, _, _ in os.walk(root.joinpath(CGROUP, *parts), topdown=False):
            yield Path(folder)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
