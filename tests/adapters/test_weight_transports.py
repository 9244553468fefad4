"""Weight sync by broadcast and by files, between processes of this machine."""

import os
import signal
import time

import pytest
from adapters.torch_bench import ENGINE, TRAINER
from adapters.torch_running import serving, training
from ports.weight_sync_contract import WeightSyncContract

from asyncrl_runtime.adapters.torch.broadcast_sync import BroadcastSync
from asyncrl_runtime.adapters.torch.entry import Bound
from asyncrl_runtime.adapters.torch.files_sync import FilesSync
from asyncrl_runtime.adapters.torch.generator import TorchGenerator
from asyncrl_runtime.adapters.torch.trainer import TorchTrainer
from asyncrl_runtime.core.errors import RefitAborted, RefitIncomplete, TrainerFailure

SHARDS = 3


@pytest.fixture
async def shards():
    async with serving([TorchGenerator(n, ENGINE) for n in range(SHARDS)]) as shards:
        yield shards


@pytest.fixture
async def trainer(plane):
    async with training(TorchTrainer(TRAINER, plane)) as trainer:
        yield trainer


def broadcast(trainer, shards, seconds=20.0):
    return BroadcastSync(lambda: trainer.worker, lambda: shards, bound=Bound(seconds, "spec.refit"))


@pytest.fixture
async def sync(request, trainer, shards, tmp_path):
    bound = Bound(20.0, "spec.refit")
    if request.param == "broadcast":
        sync = broadcast(trainer, shards)
    else:
        sync = FilesSync(lambda: trainer.worker, lambda: shards, directory=tmp_path / "refit", bound=bound)
    yield sync
    await sync.shutdown()
    assert not (tmp_path / "refit").exists() or not any((tmp_path / "refit").iterdir())


both = pytest.mark.parametrize("sync", ["broadcast", "files"], indirect=True)


@both
class TestTransports(WeightSyncContract):
    pass


async def digests(trainer, shards):
    """Of the trainer's published weights and of each shard's."""
    _, _, checksum = await trainer.worker.call("publish_weights")
    return checksum, [await shard.worker.call("weights_digest") for shard in shards]


@both
async def test_all_shards_hold_the_trainers_very_bytes(sync, trainer, shards, batch):
    await sync.init_communicator()
    await trainer.begin()
    await trainer.accumulate(batch)
    await trainer.finish()
    await sync.sync_weights(1)
    expected, found = await digests(trainer, shards)

    assert found == [expected] * SHARDS


@both
async def test_a_new_engine_is_linked_though_the_absent_shards_are_the_same(sync, shards):
    await sync.init_communicator()
    await sync.sync_weights(0)
    assert await sync.reconcile(frozenset()) == "unchanged"
    await shards[1].start()
    assert await sync.reconcile(frozenset()) == "rebuilt"
    assert (await sync.sync_weights(1)).participants == (0, 1, 2)


@both
async def test_a_trainer_that_ended_ends_the_run(sync, trainer):
    await sync.init_communicator()
    trainer.worker.kill()
    with pytest.raises(TrainerFailure, match="trainer ended"):
        await sync.sync_weights(1)


@both
async def test_the_last_shards_end_is_told(sync, shards):
    await sync.init_communicator()
    for shard in shards:
        os.kill(shard.worker.pid, signal.SIGKILL)
    with pytest.raises(RefitIncomplete, match="generation shard 0 ended") as caught:
        await sync.sync_weights(1)
    assert (caught.value.acknowledged, sorted(caught.value.died)) == ((), [0, 1, 2])


@pytest.mark.parametrize("victim", range(SHARDS))
async def test_a_shard_that_ends_costs_a_broadcast_one_round_and_no_deadline(trainer, shards, victim):
    sync = broadcast(trainer, shards, seconds=60.0)
    await sync.init_communicator()
    await sync.sync_weights(0)
    began = time.monotonic()
    os.kill(shards[victim].worker.pid, signal.SIGKILL)
    with pytest.raises(RefitIncomplete) as caught:
        await sync.sync_weights(1)
    left = [index for index in range(SHARDS) if index != victim]

    assert time.monotonic() - began < 15
    assert (list(caught.value.acknowledged), caught.value.died) == (left, (victim,))
    assert await sync.reconcile(frozenset({victim}), force=True) == "rebuilt"
    assert list((await sync.sync_weights(2)).participants) == left


async def test_a_frozen_shard_cuts_a_broadcast_off_and_nobody_has_new_weights(trainer, shards):
    sync = broadcast(trainer, shards, seconds=1.5)
    await sync.init_communicator()
    await sync.sync_weights(0)
    os.kill(shards[1].worker.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(RefitAborted) as caught:
        await sync.sync_weights(1)
    assert time.monotonic() - began < 1.5 + 1
    assert not isinstance(caught.value, RefitIncomplete)
    assert {(await shards[n].probe()).weight_version for n in (0, 2)} == {0}

    assert await sync.reconcile(frozenset({1}), force=True) == "rebuilt"
    assert (await sync.sync_weights(2)).participants == (0, 2)
    os.kill(shards[1].worker.pid, signal.SIGCONT)
    assert await sync.reconcile(frozenset()) == "rebuilt"
    assert (await sync.sync_weights(3)).participants == (0, 1, 2)
    expected, found = await digests(trainer, shards)
    assert found == [expected] * SHARDS


async def test_a_shard_that_is_frozen_while_the_group_meets_fails_the_transfer_alone(trainer, shards):
    sync = broadcast(trainer, shards, seconds=1.5)
    os.kill(shards[1].worker.pid, signal.SIGSTOP)
    await sync.init_communicator()
    with pytest.raises(
        RefitIncomplete, match=r"generation shard 1: stage_weights .* within 1\.5 s"
    ) as caught:
        await sync.sync_weights(0)
    assert caught.value.acknowledged == (0, 2)
    os.kill(shards[1].worker.pid, signal.SIGCONT)
    assert await sync.reconcile(frozenset()) == "rebuilt"
    assert (await sync.sync_weights(1)).participants == (0, 1, 2)


@pytest.mark.parametrize("sync", ["files"], indirect=True)
async def test_a_folder_that_cannot_be_written_is_named(sync, tmp_path):
    (tmp_path / "refit").write_text("")
    with pytest.raises(RefitAborted, match=str(tmp_path / "refit")):
        await sync.init_communicator()
    (tmp_path / "refit").unlink()


@pytest.mark.parametrize("sync", ["files"], indirect=True)
async def test_what_a_killed_controller_left_in_the_folder_is_removed(sync, tmp_path):
    await sync.init_communicator()
    (tmp_path / "refit" / "weights-7-0a1b2c3d").write_bytes(b"old")
    await sync.reconcile(frozenset(), force=True)
    assert not list((tmp_path / "refit").iterdir())
