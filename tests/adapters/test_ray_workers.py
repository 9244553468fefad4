"""Worker services in the actors of a real Ray cluster on this machine."""

import pytest
from ports.worker_contract import WorkerContract
from support.ray_clusters import local_cluster


@pytest.fixture(scope="module")
def cluster():
    with local_cluster() as cluster:
        yield cluster


@pytest.fixture
def host(cluster):
    return cluster.shard(0)


class TestRayHost(WorkerContract):
    pass
