"""What every host of the torch backend is tested with, around the `trainer` and `shards` of each module."""

import pytest
from adapters.torch_bench import columns_of, meta_of

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.torch.entry import Bound
from asyncrl_runtime.adapters.torch.shared_memory_sync import SharedMemorySync


@pytest.fixture
async def plane():
    return InProcessPlane(1000)


@pytest.fixture
async def batch(plane):
    columns = columns_of(8)
    meta = meta_of(columns)
    await plane.put(meta.sample_ids, columns)
    return meta


@pytest.fixture
async def sync(trainer, shards):
    sync = SharedMemorySync(lambda: trainer.worker, lambda: shards, bound=Bound(5.0, "spec.refit"))
    yield sync
    await sync.shutdown()


@pytest.fixture
def break_sync(shards):
    return shards[1].kill
