"""A Ray cluster for the tests of a module, and what one leaves behind."""

import asyncio
import ipaddress
import os
from contextlib import contextmanager, suppress
from pathlib import Path

from asyncrl_runtime.adapters.ray.cluster import GENERATION, TRAINING, Cluster, Role


@contextmanager
def local_cluster(*, shards=2, ranks=1, start_seconds=120.0):
    """Started and ended outside the tests' loops."""
    cluster = Cluster(
        {GENERATION: Role(shards), TRAINING: Role(ranks)},
        num_cpus=4,
        start_seconds=start_seconds,
        setting="spec.lifecycle.startupDeadlineSeconds",
    )
    asyncio.run(cluster.start())
    try:
        yield cluster
    finally:
        asyncio.run(cluster.close())


def listening_addresses(pids):
    """Addresses on which processes take TCP connections."""
    inodes = {
        link.removeprefix("socket:[").removesuffix("]")
        for pid in pids
        for link in _links(Path("/proc") / str(pid) / "fd")
        if link.startswith("socket:[")
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(_address(fields[1].partition(":")[0]))
    return found


def _links(folder):
    for name in os.listdir(folder):
        with suppress(OSError):
            yield os.readlink(folder / name)


def _address(words):
    """From the kernel's words of four bytes, lowest first; IPv4 in IPv6 as IPv4."""
    raw = b"".join(bytes.fromhex(words[k : k + 8])[::-1] for k in range(0, len(words), 8))
    address = ipaddress.ip_address(raw)
    return str(getattr(address, "ipv4_mapped", None) or address)


def shared_memory():
    """Files that a cluster, or a weight sync, could have left."""
    return {
        path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("asyncrl", "plasma", "ray"))
    }
