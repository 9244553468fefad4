"""The scripted engines keep the contracts of the ports that they stand in for."""

import asyncio

import pytest
from adapters.torch_bench import columns_of, meta_of
from ports.generator_contract import GeneratorContract
from ports.trainer_contract import TrainerContract
from ports.weight_sync_contract import WeightSyncContract

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.scripted import ScriptedTrainer
from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator, ScriptedSync


class TestScriptedGenerator(GeneratorContract):
    @pytest.fixture
    async def generator(self):
        return ScriptedGenerator(
            index=0, seconds=lambda request: 0.001 * request.sampling.max_new_tokens, weight_version=3
        )


class TestScriptedTrainer(TrainerContract):
    @pytest.fixture
    async def plane(self):
        return InProcessPlane(1000)

    @pytest.fixture
    async def batch(self, plane):
        columns = columns_of(8)
        meta = meta_of(columns)
        await plane.put(meta.sample_ids, columns)
        return meta

    @pytest.fixture
    async def trainer(self, plane):
        return ScriptedTrainer(plane=plane)


class TestScriptedSync(WeightSyncContract):
    @pytest.fixture
    async def shards(self):
        return [ScriptedGenerator(index=n, seconds=lambda request: 0.0) for n in range(2)]

    @pytest.fixture
    def failing(self):
        return asyncio.Event()

    @pytest.fixture
    async def sync(self, shards, failing):
        return ScriptedSync(shards=shards, failing=lambda version: failing.is_set())

    @pytest.fixture
    def break_sync(self, failing):
        return failing.set
