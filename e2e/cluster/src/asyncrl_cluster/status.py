"""What runs, for a person."""

from __future__ import annotations

import os
import time
from pathlib import Path

from asyncrl_cluster import cgroups
from asyncrl_cluster.components import Component
from asyncrl_cluster.errors import ClusterError
from asyncrl_cluster.local import Local


def show(cluster: Local) -> None:
    """Components, nodes, add-ons, and what this cluster does not do."""
    print(f"{'COMPONENT':<26} {'MACHINE':<14} {'PID':>7} {'AGE':>8} {'MEMORY':>8}")
    for component in cluster.components():
        print(_row(component))
    try:
        print(cluster.kubectl("get", "nodes", "--output=wide"), end="")
        print(cluster.kubectl("get", "storageclass"), end="")
        operators = ("get", "deployments", "--all-namespaces", "--output=wide")
        print(cluster.kubectl(*operators), end="")
    except ClusterError as error:
        print(f"The API server does not answer: {error}")
    print("Network policies are accepted and not enforced: the pods' network has no filter.")
    print("Pods reach each other, services and DNS, and nothing outside.")
    print(f"{cluster.disk_bytes() / 1e9:.1f} GB on disk.")


def _row(component: Component) -> str:
    machine = component.machine
    state = "frozen" if cgroups.is_frozen(machine.name) else ""
    pid = component.process()
    if pid is None:
        return f"{component.name:<26} {machine.name:<14} {'-':>7} {'ended' if machine.is_on() else 'off':>8}"
    facts = f"{pid:>7} {_age(pid):>8} {_memory(pid):>5} MB {state}".rstrip()
    return f"{component.name:<26} {machine.name:<14} {facts}"


def _age(pid: int) -> str:
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000
