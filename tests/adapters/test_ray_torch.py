"""Shards, trainer and weight sync of the torch backend in the actors of a real Ray cluster."""

from dataclasses import replace

import pytest
from adapters.torch_bench import ENGINE, MODEL, SHAPE, TRAINER
from adapters.torch_running import serving, training
from ports.generator_contract import GeneratorContract
from ports.trainer_contract import TrainerContract
from ports.weight_sync_contract import WeightSyncContract
from support.ray_clusters import local_cluster

from asyncrl_runtime.adapters.torch.entry import Bound
from asyncrl_runtime.adapters.torch.generator import TorchGenerator
from asyncrl_runtime.adapters.torch.trainer import TorchTrainer

LONG = replace(
    ENGINE,
    max_sequence_tokens=60_000,
    max_running_requests=8,
    model=replace(MODEL, shape=replace(SHAPE, max_positions=60_000)),
)


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(ranks=2) as cluster:
        yield cluster


@pytest.fixture
async def shards(cluster):
    shards = [TorchGenerator(n, LONG, host=cluster.shard(n), probe_bound=Bound(5.0, "p")) for n in range(2)]
    async with serving(shards):
        yield shards


@pytest.fixture
async def generator(cluster):
    shard = TorchGenerator(0, LONG, host=cluster.shard(0), probe_bound=Bound(5.0, "p"))
    async with serving([shard]):
        yield shard


@pytest.fixture
def ranks():
    return 1


@pytest.fixture
async def trainer(cluster, plane, ranks):
    trainer = TorchTrainer(TRAINER, plane, hosts=[cluster.trainer(rank) for rank in range(ranks)])
    async with training(trainer):
        yield trainer


class TestGenerator(GeneratorContract):
    long_tokens = 50_000


class TestTrainer(TrainerContract):
    @pytest.fixture(params=[1, 2])
    def ranks(self, request):
        return request.param


class TestSync(WeightSyncContract):
    pass
