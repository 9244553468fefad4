"""A Ray cluster for the tests of a module, and what one leaves behind."""

import asyncio
from contextlib import contextmanager
from pathlib import Path

from asyncrl_runtime.adapters.ray.cluster import GENERATION, TRAINING, Cluster, Role
from asyncrl_runtime.adapters.ray.sessions import processes_of, sessions_folder


@contextmanager
def local_cluster(*, shards=2, start_seconds=120.0):
    """Started and ended outside the tests' loops."""
    cluster = Cluster(
        {GENERATION: Role(shards), TRAINING: Role(1)},
        num_cpus=4,
        start_seconds=start_seconds,
        setting="spec.lifecycle.startupDeadlineSeconds",
    )
    asyncio.run(cluster.start())
    try:
        yield cluster
    finally:
        asyncio.run(cluster.close())


def ray_processes():
    """Of every cluster that this product started."""
    return set(processes_of(sessions_folder()))


def shared_memory():
    """Files that a cluster, or a weight sync, could have left."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}
