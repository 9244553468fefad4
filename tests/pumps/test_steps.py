"""A step while it is open: its target, its chunks, its rows, and the instant at which it closes."""

import asyncio
from dataclasses import replace

import pytest
from support.groups import group
from support.runs import Run, Script, run_script

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.scripted import ScriptedAdvantages, ScriptedTrainer
from asyncrl_runtime.core.errors import DataExhausted, DataFailure
from asyncrl_runtime.core.records import BatchMeta, Completion
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.windowed import Windowed
from asyncrl_runtime.ports.trainer import StepReport
from asyncrl_runtime.pumps.commit import rollout_metrics
from asyncrl_runtime.pumps.step import OpenStep, over_updates

pytestmark = pytest.mark.looptime


def position(request):
    return int(request.request_id.split("p")[1].split("_")[0])


def one_after_the_other(request):
    return 1.0 + position(request)


async def test_sc_14_4_a_target_that_falls_while_the_step_waits_asks_for_no_empty_batch():
    # One group is trained on at 1 s. The other is given up at 5 s, behind a cut, and ahead of the step.
    run = Run(
        Script(
            prompts=2,
            smallest_chunk=1,
            fraction=0.5,
            data_attempts=1,
            max_skipped=1,
            generation_seconds=lambda request: 1.0 + 4.0 * position(request),
            failing=lambda request: DataFailure("bad") if position(request) == 1 else None,
        )
    )
    going = asyncio.create_task(run.go())
    await asyncio.sleep(4.5)
    async with run.barrier.cut(timeout_seconds=1):
        await asyncio.sleep(1)
        run.changed.notify()
        await asyncio.sleep(0.5)
        assert (run.train.step.groups, run.accounts.shortfall.total()) == (1, 0)
    assert await going == "data_exhausted"
    assert [step["train/groups_trained"] for step in run.records.steps] == [1]


class Withholding(InOrder):
    """Loses a group of each selection, as no built-in sampler does."""

    def _take(self, current, minimum, maximum):
        return super()._take(current, minimum, maximum)[1:]


async def test_sc_14_5_a_step_that_lacks_groups_is_measured_by_its_own_target():
    with pytest.raises(DataExhausted, match="step 0 with 2/3 prompt groups"):
        await run_script(
            prompts=4,
            groups_per_step=4,
            fraction=0.5,
            data_attempts=1,
            max_skipped=1,
            failing=lambda request: DataFailure("bad") if position(request) == 3 else None,
            sampler=lambda buffer: Withholding(buffer, window=0),
        )


class Watched(ScriptedTrainer):
    """Notes what its optimizer steps open with, and which rows there are when they end."""

    def __init__(self, run):
        super().__init__(plane=run.plane)
        self.run, self.opened, self.held = run, [], []

    async def begin(self, *, positive_tokens=None):
        self.opened.append(positive_tokens)
        await super().begin(positive_tokens=positive_tokens)

    async def finish(self):
        self.held.append((set(self.run.train.step.batch.sample_ids), await self.run.plane.keys()))
        return await super().finish()


class FirstChunkMasked(ScriptedAdvantages):
    """Nothing of the first chunk counts in the loss."""

    async def run(self, meta, columns):
        result = await super().run(meta, columns)
        if "e0p0" in meta.group_ids:
            return replace(
                result,
                row_valid_tokens=0 * result.row_valid_tokens,
                row_positive_tokens=0 * result.row_positive_tokens,
            )
        return result


async def test_sc_14_117_a_chunk_without_a_valid_token_opens_no_step_and_a_later_one_does():
    run = Run(Script(prompts=2, smallest_chunk=1, generation_seconds=one_after_the_other))
    run.train.advantages = FirstChunkMasked()
    watch = run.train.trainer = Watched(run)
    assert await run.go() == "data_exhausted"
    assert watch.trained == ["e0p1_a0_g0", "e0p1_a0_g1"]
    assert len(watch.opened) == 1
    assert watch.opened[0] > 0
    assert run.records.steps[0]["train/chunks"] == 2
    assert run.progress.consumed_groups == 2


async def test_sc_14_163_rows_of_all_chunks_are_there_until_the_step_closes():
    run = Run(Script(prompts=4, groups_per_step=4, smallest_chunk=1, generation_seconds=one_after_the_other))
    watch = run.train.trainer = Watched(run)
    await run.go()
    ((claimed, rows),) = watch.held
    assert claimed == rows
    assert len(rows) == 8
    assert run.records.steps[0]["train/chunks"] == 4


async def test_sc_14_177_no_cut_falls_between_the_rows_of_a_step_and_its_version(monkeypatch):
    clear = InProcessPlane.clear

    async def slow(plane, samples):
        await clear(plane, samples)
        await asyncio.sleep(5)

    monkeypatch.setattr(InProcessPlane, "clear", slow)
    run = Run(Script(prompts=2))
    going = asyncio.create_task(run.go())
    await asyncio.sleep(3)
    assert (run.versions.trainer, await run.plane.keys()) == (0, frozenset())
    async with run.barrier.cut(timeout_seconds=60):
        assert (run.versions.trainer, run.progress.steps, run.ledger.trained) == (1, 1, 2)
        assert run.train.claims == ()
        assert not run.gate.is_open
    await going


async def test_sc_14_185_rollout_metrics_of_committed_groups_are_the_step_s():
    run = await run_script(prompts=4, generation_seconds=one_after_the_other, train_seconds=lambda step: 9.0)
    assert [step["timing/rollout/execution_mean"] for step in run.records.steps] == [1.5, 3.5]
    assert all(step["train/response_length/mean"] > 0 for step in run.records.steps)


async def test_sc_12_30_completions_end_by_a_limit_or_by_themselves():
    def done(**end):
        return Completion([1, 2], [0, 1], [0.0, 0.0], [-1, 0], 1, "", 1.0, **end)

    rows = (done(truncated=True), done(max_turns_reached=True), done(), done(), done())
    step = OpenStep(version=0)
    step.claim = [BatchMeta((replace(group("a", generations=5), metrics=rollout_metrics(rows)),))]
    metrics = step.rollout_metrics()
    assert metrics["train/rollout/truncation_rate"] == metrics["train/rollout/max_turns_rate"] == 0.2
    assert metrics["train/rollout/natural_termination_rate"] == pytest.approx(0.6)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────


async def test_sc_14_180_every_step_has_the_cost_of_its_own_calls_of_the_data_plane():
    run = await run_script(prompts=8, train_seconds=lambda step: 2.0)
    calls = ("put", "get", "clear")
    for step in run.records.steps:
        for name in ("ops", "keys", "bytes"):
            assert all(step[f"data_plane/driver/{name}/{call}"] > 0 for call in calls)
        assert step["data_plane/driver/ops"] == sum(step[f"data_plane/driver/ops/{call}"] for call in calls)
        assert step["data_plane/driver/wall_ms"] > 0
        assert 0 < step["data_plane/driver/share_of_step_time"] < 1
        assert step["data_plane/driver/max_bytes_per_key"] > 0
    usage = run.plane.usage()
    per_step = sum(step["data_plane/driver/ops"] for step in run.records.steps)
    assert per_step == sum(usage.operations.values())
    cleared = [step["data_plane/driver/keys/clear"] for step in run.records.steps]
    assert cleared == [4, 4, 4, 4]


async def test_sc_12_18_groups_discarded_in_each_step_are_counted_once_and_not_again_after_a_restart():
    run = Run(
        Script(
            prompts=24,
            capacity=4,
            sampler=lambda buffer: Windowed(buffer, window=0),
            train_seconds=lambda step: 4.0,
            final_partial_step="discard",
        )
    )
    run.ledger.discarded["evicted"] = run.ledger.taken = 100
    await run.go()
    per_step = [step["train/discarded_groups"] for step in run.records.steps]
    assert per_step == [step["train/evicted_stale_prompt_groups"] for step in run.records.steps]
    assert max(per_step) > 0


def test_sc_14_129_metrics_of_several_updates_are_of_all_of_them():
    reports = [
        StepReport({"total_flops": 10.0, "loss": 1.0, "probs_ratio_min": 0.5, "probs_ratio_max": 1.0}, 30, 3),
        StepReport({"total_flops": 10.0, "loss": 4.0, "probs_ratio_min": 0.9, "probs_ratio_max": 2.0}, 10, 1),
    ]
    assert over_updates(reports) == {
        "train/total_flops": 20.0,
        "train/loss": 1.75,
        "train/probs_ratio_min": 0.5,
        "train/probs_ratio_max": 2.0,
    }
    assert over_updates([]) == {}
