"""The data plane on a real TransferQueue, in a real Ray cluster on this machine."""

import asyncio
import os
import signal

import pytest
import pytest_asyncio
from ports.data_plane_contract import DataPlaneContract, rows_of
from support.ray_clusters import local_cluster

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.transfer_queue.plane import PlaneNotStarted, TransferQueuePlane
from asyncrl_runtime.core.errors import DeadlinePassed, WorkerDied

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def cluster():
    with local_cluster() as cluster:
        yield cluster


class Planes:
    """Planes of two partitions: the queue lives as long as its first client, so they stay."""

    def __init__(self, cluster):
        self.cluster, self.planes = cluster, {}

    async def get(self, index):
        plane = self.planes.get(index)
        if plane is None or plane._worker is None or not plane._worker.alive:
            plane = TransferQueuePlane(host=self.cluster.shard(index), partition=f"rows-{index}")
            await plane.start()
            self.planes[index] = plane
        await plane.clear(sorted(await plane.keys()))
        for counts in (plane._operations, plane._bytes, plane._keys, plane._seconds):
            counts.clear()
        plane._peak = plane._largest = 0
        return plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def planes(cluster):
    planes = Planes(cluster)
    yield planes
    for index in (1, 0):
        if index in planes.planes:
            await planes.planes[index].close()


@pytest_asyncio.fixture(loop_scope="module")
async def plane(planes):
    return await planes.get(0)


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(planes, plane):
    other = await planes.get(1)
    return lambda: other


class TestTransferQueuePlane(DataPlaneContract):
    async def test_close_is_idempotent(self, planes):
        plane = TransferQueuePlane(host=planes.cluster.data_plane(), partition="closed")
        await planes.get(0)
        await plane.start()
        await plane.close()
        await plane.close()


async def test_a_snapshot_is_one_that_the_in_process_plane_reads(plane, tmp_path):
    await plane.put(["a", "b"], {"tokens": rows_of([2, 3])})
    await plane.put(["b"], {"late": rows_of([1])})
    await (await plane.snapshot(tmp_path / "rows"))()
    other = InProcessPlane(100)
    await other.restore(tmp_path / "rows")
    assert await other.keys() == {"a", "b"}
    columns = await other.get(["b", "a"], ["tokens"])
    assert [row.tolist() for row in columns["tokens"].rows()] == [[2, 3, 4], [0, 1]]


async def test_a_plane_that_was_not_started_says_so(cluster):
    with pytest.raises(PlaneNotStarted):
        await TransferQueuePlane(host=cluster.shard(0)).keys()


async def test_a_frozen_client_costs_the_deadline_and_a_dead_one_is_named(planes):
    await planes.get(0)
    plane = TransferQueuePlane(host=planes.cluster.data_plane(), partition="frozen", call_seconds=1.0)
    await plane.start()
    await plane.put(["a"], {"tokens": rows_of([2])})
    os.kill(plane._worker.pid, signal.SIGSTOP)
    with pytest.raises(DeadlinePassed, match="get of data plane did not answer within 1 s"):
        await plane.get(["a"], ["tokens"])
    plane._worker.kill()
    await asyncio.wait_for(plane._worker.ended.wait(), 30)
    with pytest.raises(WorkerDied):
        await plane.get(["a"], ["tokens"])
