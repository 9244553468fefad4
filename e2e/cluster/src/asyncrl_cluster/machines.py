"""Machines made of namespaces: own processes, mounts, network and host name, which end together."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl_cluster import cgroups, layout
from asyncrl_cluster.binaries import INIT
from asyncrl_cluster.errors import ClusterError
from asyncrl_cluster.shell import run, succeeds, wait_until

SYSTEM = "system"
"""The control group of a machine's own processes; pods have another."""

_JOIN = 'IFS=:; for file in $1; do echo 0 > "$file" || exit 1; done; shift; exec "$@"'
_BOOT = 'mount -t proc proc /proc && mount --make-rshared / && hostname "$1" && exec "$2" machine "$1"'


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine. It is on while its first process lives; killing that one is a power failure."""

    name: str
    address: str

    @property
    def link(self) -> str:
        """The host's end of its cable; kernel names have at most 15 characters."""
        return f"asyncrl-{self.name.replace('control-plane', 'cp').replace('node-', 'n')}"

    def first_process(self) -> int | None:
        """Id of its first process, as the host sees it."""
        return self.running(INIT.path("init"))

    def is_on(self) -> bool:
        return self.first_process() is not None

    def is_connected(self) -> bool:
        """Whether it is on and its cable is plugged in."""
        return self.is_on() and Path("/sys/class/net", layout.BRIDGE, "brif", self.link).exists()

    def power_on(self) -> None:
        """Make its namespaces and its cable, after removing what an earlier one left."""
        self.power_off()
        cgroups.make(self.name, SYSTEM)
        cgroups.make(self.name, "pods")
        (layout.RUN / self.name).mkdir(parents=True, exist_ok=True)
        namespaces = ["--pid", "--mount", "--net", "--uts", "--ipc"]
        boot = ["sh", "-c", _BOOT, "sh", self.name, str(INIT.path("init"))]
        log = layout.LOGS / f"{self.name}.log"
        self._start(
            ["unshare", "--fork", "--kill-child", *namespaces, "--propagation", "private", *boot], log
        )
        wait_until(
            f"the first process of {self.name}",
            self.is_on,
            timeout=10,
            interval=0.02,
            log=lambda: log.read_text()[-500:],
        )
        self._connect()

    def power_off(self) -> None:
        """End all its processes at once; mounts, network and sockets go with them."""
        cgroups.kill(self.name)
        if Path("/sys/class/net", self.link).exists():
            succeeds("ip", "link", "delete", self.link)
        cgroups.remove(self.name)
        _remove_run_folder(layout.RUN / self.name)

    def spawn(self, argv: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start a program on it that outlives this process; its output goes to `log`."""
        self._start([*self._entering(), *argv], log, environment)

    def inside(self, *command: str | Path, timeout: float = 60, stdin: str | bytes | None = None) -> str:
        """Run a short program on it."""
        return run(*self._entering(), *command, timeout=timeout, stdin=stdin)

    def running(self, program: Path) -> int | None:
        """Id of its process that runs `program`, as the host sees it."""
        wanted = str(program)
        return next((pid for pid in cgroups.processes(self.name, SYSTEM) if _executable(pid) == wanted), None)

    def _entering(self) -> list[str]:
        init = self.first_process()
        if init is None:
            raise ClusterError(
                f"{self.name} is off; start it with `cluster up`, or `cluster node start` if it was stopped"
            )
        return [
            "nsenter",
            "--target",
            str(init),
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--wd=/",
            "--",
        ]

    def _start(self, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            subprocess.Popen(
                ["sh", "-c", _JOIN, "sh", ":".join(cgroups.joining(self.name, SYSTEM)), *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env={
                    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    **(environment or {}),
                },
            )

    def _connect(self) -> None:
        init = str(self.first_process())
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", init)
        run("ip", "link", "set", self.link, "master", layout.BRIDGE, "up")
        prefix = layout.NODE_NETWORK.partition("/")[2]
        self.inside("ip", "address", "add", f"{self.address}/{prefix}", "dev", "eth0")
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "link", "set", "eth0", "up")
        # What goes to a service is rewritten after routing, so there must be some route.
        self.inside("ip", "route", "add", layout.SERVICE_NETWORK, "dev", "eth0")
        for name in ("ip_forward", "conf/all/forwarding"):
            self.inside("tee", f"/proc/sys/net/ipv4/{name}", stdin="1")
        self.inside("tee", "/proc/sys/net/ipv4/conf/all/rp_filter", stdin="0")

    def route(self, network: str, via: str) -> None:
        """Reach `network` through another machine."""
        self.inside("ip", "route", "replace", network, "via", via)


def make_bridge() -> None:
    """The switch that the machines and the host are on."""
    prefix = layout.NODE_NETWORK.partition("/")[2]
    if not Path("/sys/class/net", layout.BRIDGE).exists():
        run("ip", "link", "add", layout.BRIDGE, "type", "bridge")
    run("ip", "address", "replace", f"{layout.HOST_ADDRESS}/{prefix}", "dev", layout.BRIDGE)
    run("ip", "link", "set", layout.BRIDGE, "up")


def route_from_host(network: str, via: str) -> None:
    """Let the host reach `network` through a machine; the route goes with the bridge."""
    run("ip", "route", "replace", network, "via", via)


def remove_bridge() -> None:
    if Path("/sys/class/net", layout.BRIDGE).exists():
        run("ip", "link", "delete", layout.BRIDGE)


def _executable(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    return ""


def _remove_run_folder(folder: Path) -> None:
    if folder.exists():
        run("rm", "-rf", "--one-file-system", folder)
