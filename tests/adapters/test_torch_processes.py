"""Shards, trainer, weight sync and advantage workers in real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adapters import torch_services
from adapters.torch_bench import ENGINE, MODEL, SHAPE, TRAINER, meta_of
from adapters.torch_running import serving, training
from ports.generator_contract import GeneratorContract, request, running
from ports.trainer_contract import TrainerContract
from ports.weight_sync_contract import WeightSyncContract

from asyncrl_runtime.adapters.torch import generator as generator_module
from asyncrl_runtime.adapters.torch.advantage_worker import AdvantageWorkers
from asyncrl_runtime.adapters.torch.entry import Bound
from asyncrl_runtime.adapters.torch.errors import BadRequest, EngineFailure, IncompleteModelFolder
from asyncrl_runtime.adapters.torch.generator import TorchGenerator
from asyncrl_runtime.adapters.torch.settings import OptimizerSettings, TorchModelSettings
from asyncrl_runtime.adapters.torch.shared_memory_sync import SharedMemorySync
from asyncrl_runtime.adapters.torch.trainer import TorchTrainer
from asyncrl_runtime.algorithms.settings import GrpoSettings, MaskSettings, RewardSettings, StageSettings
from asyncrl_runtime.algorithms.stage import StageInput
from asyncrl_runtime.core.errors import (
    DeadlinePassed,
    NonFiniteStep,
    RefitAborted,
    RefitIncomplete,
    TrainerFailure,
    WorkerDied,
)
from asyncrl_runtime.core.failures import is_infra
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.advantage import AdvantageFailure
from asyncrl_runtime.ports.columns import Jagged

LONG = replace(
    ENGINE, max_sequence_tokens=60_000, model=replace(MODEL, shape=replace(SHAPE, max_positions=60_000))
)


@pytest.fixture
async def generator():
    shard = TorchGenerator(0, replace(LONG, max_running_requests=8), probe_bound=Bound(5.0, "p"))
    async with serving([shard]):
        yield shard


@pytest.fixture
async def shards():
    shards = [TorchGenerator(n, replace(LONG, max_running_requests=8)) for n in range(2)]
    async with serving(shards):
        yield shards


@pytest.fixture
async def trainer(plane):
    async with training(TorchTrainer(TRAINER, plane)) as trainer:
        yield trainer


class TestGenerator(GeneratorContract):
    long_tokens = 50_000


class TestTrainer(TrainerContract):
    pass


class TestSync(WeightSyncContract):
    pass


async def train_once(trainer, batch):
    await trainer.begin()
    await trainer.accumulate(batch)
    return await trainer.finish()


def leftovers():
    return list(Path("/dev/shm").glob("asyncrl-*"))


# ── shards ──────────────────────────────────────────────────────────────────────────────────────────


async def test_sc_14_43_a_killed_shard_fails_its_requests_at_once(generator):
    call = asyncio.ensure_future(generator.generate(request("a", max_new_tokens=50_000)))
    await running(generator, 1)
    killed = time.monotonic()
    os.kill(generator.worker.pid, signal.SIGKILL)

    with pytest.raises(WorkerDied, match=r"generation shard 0 .* SIGKILL") as caught:
        await call
    assert is_infra(caught.value)
    assert time.monotonic() - killed < 1.0
    assert not generator.alive

    await generator.start()
    assert (await generator.generate(request("a"))).token_ids


async def test_a_frozen_shard_meets_its_deadline():
    shard = TorchGenerator(
        0, ENGINE, probe_bound=Bound(0.2, "spec.probe"), request_bound=Bound(0.3, "spec.roll")
    )
    await shard.start()
    os.kill(shard.worker.pid, signal.SIGSTOP)
    with pytest.raises(DeadlinePassed, match=r"within 0\.2 s; raise spec\.probe"):
        await shard.probe()
    with pytest.raises(DeadlinePassed, match=r"within 0\.3 s; raise spec\.roll"):
        await shard.generate(request("a"))
    shard.kill()
    await shard.close()


async def test_a_frozen_shard_is_started_anew_without_waiting_for_it():
    shard = TorchGenerator(0, ENGINE)
    await shard.start()
    end = asyncio.ensure_future(shard.until_ended())
    await asyncio.sleep(0)
    os.kill(shard.worker.pid, signal.SIGSTOP)
    began = time.monotonic()
    await shard.start()
    assert time.monotonic() - began < 4.0  # the grace of a shard that could close is 5 s
    assert "SIGKILL" in await end
    assert (await shard.generate(request("a"))).token_ids
    await shard.close()


async def test_an_engine_whose_loop_hangs_answers_as_busy_and_makes_no_token(monkeypatch):
    monkeypatch.setattr(generator_module, "shard_service", torch_services.hanging_shard)
    shard = TorchGenerator(0, LONG)
    await shard.start()
    call = asyncio.ensure_future(shard.generate(request("a", max_new_tokens=50_000)))
    await running(shard, 1)
    await shard.worker.call("hang")
    states = [await shard.probe() for _ in range(3)]
    assert [state.busy for state in states] == [True] * 3
    assert len({state.generated_tokens for state in states}) == 1
    call.cancel()
    shard.kill()
    await shard.close()


async def test_a_prompt_that_is_too_long_is_the_prompts_fault():
    shard = TorchGenerator(0, replace(ENGINE, max_sequence_tokens=8))
    await shard.start()
    with pytest.raises(BadRequest, match="a prompt of 9 tokens leaves no room below the limit of 8"):
        await shard.generate(request("a", prompt=[1] * 9))
    await shard.close()


async def test_a_folder_that_lacks_a_file_fails_the_start_with_its_name(tmp_path):
    settings = replace(ENGINE, model=TorchModelSettings(folder=str(tmp_path)))
    with pytest.raises(IncompleteModelFolder, match=r"lacks config\.json"):
        await TorchGenerator(0, settings).start()


async def test_sc_14_43_an_engine_that_fails_fails_its_requests_and_every_later_call(monkeypatch):
    monkeypatch.setattr(generator_module, "shard_service", torch_services.poisonable_shard)
    shard = TorchGenerator(0, LONG)
    await shard.start()
    call = asyncio.ensure_future(shard.generate(request("a", max_new_tokens=50_000)))
    await running(shard, 1)
    await shard.worker.call("poison")

    with pytest.raises(EngineFailure, match="logits are not finite under weights of version -1") as caught:
        await call
    assert is_infra(caught.value)
    for later in (shard.probe(), shard.generate(request("b"))):
        with pytest.raises(EngineFailure, match="not finite"):
            await later
    await shard.close()


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────


async def test_engine_and_trainer_agree_on_logprobs_after_an_update_between_two_tokens(
    sync, shards, trainer, plane, batch
):
    """B11: at most 1e-5 in float32, with every token judged by the weights that made it."""
    await sync.init_communicator()
    await sync.sync_weights(0)
    first, second = shards
    short = await first.generate(request("short", max_new_tokens=40, seed=3))
    call = asyncio.ensure_future(second.generate(request("long", max_new_tokens=400, seed=4)))
    await running(second, 1)
    await train_once(trainer, batch)
    report = await sync.sync_weights(1)
    long = await call

    assert report.bytes > 4 * SHAPE.vocab_size * SHAPE.hidden_size
    assert set(report.pause_seconds) == {0, 1}
    assert long.weight_versions == tuple(sorted(long.weight_versions))
    assert set(long.weight_versions) == {0, 1}
    after = await first.generate(request("after", max_new_tokens=40, seed=5))
    assert set(after.weight_versions) == {1}
    new = await trainer_logprobs(trainer, plane, [after])
    np.testing.assert_allclose(new, after.logprobs, atol=1e-5)
    fresh = TorchTrainer(TRAINER, plane)
    await fresh.start()
    np.testing.assert_allclose(await trainer_logprobs(fresh, plane, [short]), short.logprobs, atol=1e-5)
    await fresh.close()


@pytest.mark.parametrize("blocked", ["weights/model.safetensors", "optimizer/state.safetensors", "weights"])
async def test_weights_that_cannot_be_written_are_an_error_of_the_disk(blocked, trainer, tmp_path):
    if blocked == "weights":
        (tmp_path / blocked).write_text("")
    else:
        (tmp_path / blocked).mkdir(parents=True)

    with pytest.raises(OSError, match=r"os error 21|File exists"):
        await trainer.save(tmp_path, optimizer=True)


async def trainer_logprobs(trainer, plane, results, prompt=(1, 2, 3)):
    rows = [[*prompt, *result.token_ids] for result in results]
    columns = {
        col.TOKEN_IDS: Jagged.of(rows, np.int64),
        col.TOKEN_MASK: Jagged.of(
            [[0] * len(prompt) + [1] * (len(row) - len(prompt)) for row in rows], np.int8
        ),
    }
    meta = meta_of(columns)
    await plane.put(meta.sample_ids, columns)
    await trainer.logprobs(meta, models=frozenset({"policy"}))
    written = (await plane.get(meta.sample_ids, [col.PREVIOUS_LOGPROBS]))[col.PREVIOUS_LOGPROBS]
    await plane.clear(meta.sample_ids)
    return np.concatenate([row[len(prompt) :] for row in written.rows()])


async def test_a_frozen_shard_is_found_by_the_deadline_and_the_others_are_whole(trainer, shards):
    sync = SharedMemorySync(lambda: trainer.worker, lambda: shards, bound=Bound(0.5, "spec.refit"))
    await sync.init_communicator()
    await sync.sync_weights(0)
    os.kill(shards[1].worker.pid, signal.SIGSTOP)
    with pytest.raises(
        RefitIncomplete, match=r"generation shard 1: load_weights .* within 0\.5 s; raise spec\.refit"
    ) as caught:
        await sync.sync_weights(1)
    assert (caught.value.acknowledged, caught.value.died) == ((0,), ())
    assert (await shards[0].probe()).weight_version == 1
    shards[1].kill()
    with pytest.raises(WorkerDied):
        await shards[1].probe()

    assert await sync.reconcile(frozenset({1})) == "rebuilt"
    assert (await sync.sync_weights(2)).participants == (0,)
    await shards[1].start()
    assert await sync.reconcile(frozenset()) == "rebuilt"
    assert (await sync.sync_weights(3)).participants == (0, 1)
    assert (await shards[1].probe()).weight_version == 3


async def test_a_shard_that_ends_during_a_transfer_is_named_and_the_others_are_whole(sync, shards):
    await sync.init_communicator()
    os.kill(shards[1].worker.pid, signal.SIGKILL)
    assert shards[1].alive  # nobody has heard of it yet
    with pytest.raises(RefitIncomplete, match="generation shard 1 ended") as caught:
        await sync.sync_weights(2)
    assert (caught.value.acknowledged, caught.value.died) == ((0,), (1,))
    assert sync.is_stale
    assert (await shards[0].probe()).weight_version == 2

    os.kill(shards[0].worker.pid, signal.SIGKILL)
    with pytest.raises(RefitIncomplete, match="weights of version 3 did not land: generation shard 0 ended"):
        await sync.sync_weights(3)


async def test_a_new_engine_is_attached_though_the_absent_shards_are_the_same(sync, shards):
    await sync.init_communicator()
    await sync.sync_weights(0)
    assert await sync.reconcile(frozenset()) == "unchanged"
    await shards[1].start()
    assert (await shards[1].probe()).weight_version == -1
    assert await sync.reconcile(frozenset()) == "rebuilt"
    assert (await sync.sync_weights(1)).participants == (0, 1)


async def test_a_shard_that_is_frozen_while_buffers_are_made_fails_the_transfer_alone(trainer, shards):
    sync = SharedMemorySync(lambda: trainer.worker, lambda: shards, bound=Bound(0.5, "spec.refit"))
    await sync.init_communicator()
    os.kill(shards[1].worker.pid, signal.SIGSTOP)
    assert await sync.reconcile(frozenset(), force=True) == "rebuilt"
    with pytest.raises(
        RefitIncomplete, match=r"generation shard 1: attach_weights .* within 0\.5 s"
    ) as caught:
        await sync.sync_weights(1)
    assert caught.value.acknowledged == (0,)
    os.kill(shards[1].worker.pid, signal.SIGCONT)
    assert await sync.reconcile(frozenset()) == "rebuilt"  # it is not attached yet
    assert (await sync.sync_weights(2)).participants == (0, 1)


async def test_a_transfer_whose_buffers_were_replaced_meanwhile_loads_nothing(trainer, shards):
    sync = SharedMemorySync(lambda: trainer.worker, lambda: shards, bound=Bound(5.0, "spec.refit"))
    await sync.init_communicator()
    os.kill(trainer.worker.pid, signal.SIGSTOP)
    late = asyncio.ensure_future(sync.sync_weights(1))
    await asyncio.sleep(0.05)
    rebuilding = asyncio.ensure_future(sync.reconcile(frozenset(), force=True))
    await asyncio.sleep(0.05)
    os.kill(trainer.worker.pid, signal.SIGCONT)
    with pytest.raises(RefitAborted, match="buffers were replaced"):
        await late
    assert await rebuilding == "rebuilt"
    assert {(await shard.probe()).weight_version for shard in shards} == {-1}


async def test_a_trainer_that_ended_ends_the_run(sync, trainer):
    await sync.init_communicator()
    trainer.worker.kill()
    with pytest.raises(TrainerFailure, match="publish_weights"):
        await sync.sync_weights(1)


async def test_a_shard_with_half_loaded_weights_generates_nothing(monkeypatch, trainer):
    monkeypatch.setattr(generator_module, "shard_service", torch_services.misreading_shard)
    shard = TorchGenerator(0, LONG)
    await shard.start()
    sync = SharedMemorySync(lambda: trainer.worker, lambda: [shard], bound=Bound(5.0, "spec.refit"))
    await sync.init_communicator()
    await sync.sync_weights(0)
    call = asyncio.ensure_future(shard.generate(request("a", max_new_tokens=300)))
    await running(shard, 1)
    await shard.worker.call("misread", True)
    with pytest.raises(RefitIncomplete, match="the weights have digest"):
        await sync.sync_weights(1)
    first = await shard.probe()
    await asyncio.sleep(0.2)
    second = await shard.probe()
    assert (first.running, first.busy, first.weight_version) == (1, False, -1)
    assert first.generated_tokens == second.generated_tokens
    assert not call.done()

    await shard.worker.call("misread", False)
    await sync.sync_weights(2)
    assert set((await call).weight_versions) <= {0, 2}
    await shard.close()


async def test_all_shards_hold_the_trainers_very_bytes(sync, shards, trainer, batch):
    await sync.init_communicator()
    await train_once(trainer, batch)
    await sync.sync_weights(7)
    published = await trainer.worker.call("publish_weights")

    assert {await shard.worker.call("weights_digest") for shard in shards} == {published[2]}


async def test_another_models_weights_are_refused(trainer):
    shape = replace(SHAPE, hidden_size=16)
    shard = TorchGenerator(0, replace(ENGINE, model=replace(MODEL, shape=shape)))
    await shard.start()
    sync = SharedMemorySync(lambda: trainer.worker, lambda: [shard])
    with pytest.raises(RefitAborted, match="layout"):
        await sync.init_communicator()
    assert not leftovers()
    await shard.close()


async def test_nothing_stays_in_shared_memory_and_old_files_are_swept(sync):
    dead = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220
    dead.wait()
    Path(f"/dev/shm/asyncrl-weights-{dead.pid}-ab-0").write_bytes(b"x")
    await sync.init_communicator()
    await sync.sync_weights(0)

    assert not leftovers()


# ── the trainer ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_killed_trainer_fails_its_call_at_once(trainer, batch):
    await trainer.begin()
    trainer.worker.kill()
    with pytest.raises(TrainerFailure, match="SIGKILL"):
        await trainer.accumulate(batch)


async def test_a_frozen_trainer_meets_its_deadline(plane):
    trainer = TorchTrainer(TRAINER, plane, call_bound=Bound(0.2, "spec.step"))
    await trainer.start()
    os.kill(trainer.worker.pid, signal.SIGSTOP)
    with pytest.raises(TrainerFailure, match=r"0\.2 s; raise spec\.step"):
        await trainer.begin()
    trainer.worker.kill()
    await trainer.close()


async def test_a_nan_advantage_changes_nothing(trainer, plane, batch, tmp_path):
    await trainer.save(tmp_path / "before", optimizer=True)
    advantages = (await plane.get(batch.sample_ids, [col.ADVANTAGES]))[col.ADVANTAGES]
    await plane.put(
        batch.sample_ids,
        {col.ADVANTAGES: Jagged(np.full_like(advantages.values, np.nan), advantages.lengths)},
    )
    with pytest.raises(NonFiniteStep, match="was not applied and the parameters are unchanged"):
        await train_once(trainer, batch)
    await trainer.save(tmp_path / "after", optimizer=True)

    assert same_files(tmp_path / "before", tmp_path / "after")
    await plane.put(batch.sample_ids, {col.ADVANTAGES: advantages})
    assert np.isfinite((await train_once(trainer, batch)).metrics["loss"])


def same_files(first, second):
    files = [path.relative_to(first) for path in sorted(first.rglob("*")) if path.is_file()]
    assert len(files) >= 4
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in files)


async def test_a_resumed_trainer_goes_on_bit_for_bit(plane, batch, tmp_path):
    optimizer = OptimizerSettings(lr=0.01, schedule="linear", total_steps=10, warmup_steps=2)
    settings = replace(TRAINER, optimizer=optimizer)
    first, second = TorchTrainer(settings, plane), TorchTrainer(settings, plane)
    await asyncio.gather(first.start(), second.start())
    for _ in range(3):
        await train_once(first, batch)
    await first.save(tmp_path / "mid", optimizer=True)
    assert await second.load(tmp_path / "mid", optimizer=True)
    reports = [await train_once(trainer, batch) for trainer in (first, second)]
    await first.save(tmp_path / "a", optimizer=True)
    await second.save(tmp_path / "b", optimizer=True)

    assert reports[0].metrics == reports[1].metrics
    assert reports[0].metrics["lr"] == pytest.approx(0.01 * (1 - 1 / 8))
    assert same_files(tmp_path / "a", tmp_path / "b")
    await asyncio.gather(first.close(), second.close())


# ── advantages ──────────────────────────────────────────────────────────────────────────────────────

STAGE = StageSettings(
    rewards=RewardSettings(scaling=None, shaping=None),
    masks=MaskSettings(overlong_filtering=False, mask_env_flagged=False, seq_error_threshold=None),
    estimator=GrpoSettings(leave_one_out=False, normalize=False, exclude_masked=False),
    clip_low=None,
    clip_high=None,
    invalid_tool_call_advantage=None,
    malformed_thinking_advantage=None,
)


def stage_input():
    return StageInput(
        group_ids=["a", "a", "b", "b"],
        rewards=np.array([1.0, 0.0, 2.0, 2.0]),
        token_mask=np.array([[0, 1, 1]] * 4, np.int8),
        sample_mask=np.ones(4, np.float32),
        truncated=np.zeros(4, np.int8),
        flagged=np.zeros(4, np.int8),
        response_tokens=np.full(4, 2),
    )


@pytest.mark.parametrize("count", [0, 2])
async def test_the_stage_runs_in_workers_or_a_thread(count):
    workers = AdvantageWorkers(count, call_bound=Bound(10.0, "spec.advantage"))
    await workers.start()
    outputs = await asyncio.gather(*(workers(stage_input(), STAGE) for _ in range(3)))
    await workers.close()

    for output in outputs:
        np.testing.assert_allclose(output.advantages[:, 1], [0.5, -0.5, 0, 0])
        assert output.stats["reward"].value == 5.0


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "advantage worker 0 ended with exit code -9: killed by SIGKILL"),
        (signal.SIGSTOP, "run of advantage worker 0 did not answer within 0.5 s; raise spec.advantage"),
    ],
)
async def test_a_worker_of_the_stage_that_ends_or_hangs_fails_its_chunk_and_is_replaced(number, words):
    workers = AdvantageWorkers(1, call_bound=Bound(0.5, "spec.advantage"))
    await workers.start()
    (first,) = workers._workers
    call = asyncio.create_task(workers(stage_input(), STAGE))
    os.kill(first.pid, number)
    with pytest.raises(AdvantageFailure, match=f"{words}.*trainStepRetries") as failure:
        await call
    again = await workers(stage_input(), STAGE)
    await asyncio.wait_for(first.ended.wait(), 5)
    await workers.close()

    assert isinstance(failure.value, TrainerFailure), "the step may be tried again (SC-5.75)"
    assert again.has_valid_tokens


async def test_a_worker_of_the_stage_that_does_not_come_up_names_the_bound():
    workers = AdvantageWorkers(1, start_bound=Bound(1e-6, "spec.lifecycle.startupDeadlineSeconds"))
    with pytest.raises(AdvantageFailure, match=r"advantage worker 0 .*startupDeadlineSeconds"):
        await workers.start()
    await workers.close()


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────

PARENT = """
import asyncio
from adapters import torch_services
from adapters.torch_bench import ENGINE, TRAINER
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.torch.generator import TorchGenerator
from asyncrl_runtime.adapters.torch.shared_memory_sync import SharedMemorySync
from asyncrl_runtime.adapters.torch.trainer import TorchTrainer
from ports.generator_contract import request

async def main():
    shard, trainer = TorchGenerator(0, ENGINE), TorchTrainer(TRAINER, InProcessPlane(1000))
    await asyncio.gather(shard.start(), trainer.start())
    sync = SharedMemorySync(lambda: trainer.worker, lambda: [shard])
    await sync.init_communicator()
    await sync.sync_weights(0)
    print(shard.worker.pid, trainer.worker.pid, flush=True)
    while True:
        await shard.generate(request("a", max_new_tokens=200))

asyncio.run(main())
"""


async def test_a_killed_controller_leaves_neither_processes_nor_shared_memory():
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environ)  # noqa: ASYNC220
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    async with asyncio.timeout(10):
        while any(Path(f"/proc/{pid}").exists() for pid in pids):  # noqa: ASYNC110 - other processes' state
            await asyncio.sleep(0.02)

    assert not leftovers()


async def test_the_controllers_process_needs_no_torch():
    modules = "entry generator trainer shared_memory_sync advantage_worker settings"
    imports = "; ".join(f"import asyncrl_runtime.adapters.torch.{name}" for name in modules.split())
    code = f"{imports}; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: ASYNC221

    assert done.stdout == "False\n"
