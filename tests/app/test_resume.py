"""A job that is killed anywhere and started again trains on every prompt once (SC-9.93)."""

import asyncio
import json
import os
import random
from zlib import crc32

import pytest
from support.jobs import ScriptedStart, job_spec, run_until_killed

from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.app.resume import NothingUsable, newest_usable
from asyncrl_runtime.core.errors import DataFailure, InfraFailure
from asyncrl_runtime.core.fingerprint import identity_of
from asyncrl_runtime.core.restore import RestoreRefused

PROMPTS = 14
SAMPLERS = {
    "sync": {"sampler": {"name": "in_order", "maxLookaheadVersions": 0}},
    "in_order": {"sampler": {"name": "in_order", "maxLookaheadVersions": 2}},
    "weight_fifo": {"sampler": {"name": "weight_fifo", "maxStalenessVersions": 1}},
    "ready_first": {"sampler": {"name": "ready_first", "maxStalenessVersions": 1}},
    "windowed": {"sampler": {"name": "windowed", "maxStalenessVersions": 2}, "maxBufferedRollouts": 8},
}


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """Nothing here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def usable(folder, mode="latest", identity=None):
    store = DirectoryStore(folder)
    return newest_usable(
        store, snapshots=DirectorySnapshots(store), mode=mode, identity=identity or identity_of({})
    )


def draw(seed, text):
    """A number in [0, 1) for a request, the same in every process."""
    return crc32(f"{seed}/{text}".encode()) / 2**32


def spec_of(sampler, seed, **changes):
    rng = random.Random(seed)
    async_rl = {
        **SAMPLERS[sampler],
        "minGroupsForStreamingTrain": rng.choice([1, 2]),
        "inFlightWeightUpdates": rng.choice([True, True, False]),
        "drainTimeoutSeconds": 1.0,
        "requeueAbortedPrompts": rng.choice([True, False]),
        "finalPartialStep": "discard",
    }
    checkpointing = {"savePeriod": rng.choice([1, 1, 2, 3]), **changes.pop("checkpointing", {})}
    return job_spec(async_rl=async_rl, checkpointing=checkpointing, **changes)


def start_of(spec, folder, seed, **choices):
    def failing(request):
        return InfraFailure("lost") if draw(seed, request.request_id + "!") < 0.05 else None

    def balanced(parts, step, metrics):
        parts.ledger.check(buffered=parts.buffer.ready, claimed=0)

    return ScriptedStart(
        spec,
        folder,
        prompts=PROMPTS,
        seconds=lambda request: 0.2 + 3.0 * draw(seed, request.request_id),
        failing=failing,
        train_seconds=lambda step: 2.0 * draw(seed, step),
        finished=balanced,
        **choices,
    )


def run_with_kills(spec, folder, seed, kills):
    """Start again after each kill; the last start, and how many bundles were resumed from."""
    resumed = 0
    for turns in [*kills, 10**9]:
        start = start_of(spec, folder, seed)
        end = run_until_killed(start, turns)
        resumed += start.found is not None
        if end is not None:
            return start, resumed
    raise AssertionError("the last start was not to be killed")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sc_9_93_killed_between_any_two_awaits_no_prompt_is_lost_or_trained_twice(sampler, tmp_path):
    resumed = 0
    for seed in range(44):
        rng = random.Random(f"{sampler}/{seed}")
        kills = [rng.randint(1, 320) for _ in range(rng.randint(1, 3))]
        spec = spec_of(sampler, seed)
        start, bundles = run_with_kills(spec, tmp_path / str(seed), seed, kills)
        resumed += bundles

        trained, counts = start.trained_positions(), start.counts()
        assert len(trained) == len(set(trained)) == counts.trained, (seed, kills)
        assert counts.admitted == PROMPTS, (seed, kills)
        assert counts.balanced, (seed, kills)
        assert counts.live == 0, (seed, kills)
        if sampler != "windowed":
            assert sorted(trained) == list(range(PROMPTS)), (seed, kills)
            assert start.parts.progress.steps == PROMPTS // 2
        assert start.parts.plane.usage().keys_outstanding == 0
        assert start.parts.buffer.free == start.parts.buffer.capacity
    assert resumed > 30


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sc_9_91_a_stopped_run_goes_on_to_the_same_number_of_steps(sampler, tmp_path):
    for seed in range(6):
        spec, folder = spec_of(sampler, seed), tmp_path / str(seed)
        first = start_of(spec, folder, seed, stop_after=1.0 + seed)
        end = run_virtual(first.run())
        if end != "stopped":
            continue
        assert first.parts.checkpointer.last_saved_step == first.parts.progress.steps
        second = start_of(spec, folder, seed)
        run_virtual(second.run())
        assert second.found.bundle.step == first.parts.progress.steps
        trained = second.trained_positions()
        assert trained[: len(first.trained_positions())] == first.trained_positions()
        assert len(trained) == len(set(trained)) == second.counts().trained
        assert second.counts().live == 0


def test_sc_14_32_no_row_of_one_attempt_is_written_by_another_even_after_a_restart(tmp_path, monkeypatch):
    written, put = set(), InProcessPlane.put

    async def watch(plane, sample_ids, columns, tags=None):
        if "token_ids" in columns:
            assert not await plane.keys() & set(sample_ids)
            written.update(sample_ids)
        await put(plane, sample_ids, columns, tags)

    monkeypatch.setattr(InProcessPlane, "put", watch)
    spec = spec_of("in_order", 1)
    run_with_kills(spec, tmp_path, 1, [120, 90])
    assert len(written) >= 2 * PROMPTS


# ── which bundle ────────────────────────────────────────────────────────────────────────────────────


def finished_run(folder, **checkpointing):
    spec = spec_of("in_order", 0, checkpointing={"savePeriod": 1, **checkpointing})
    start = start_of(spec, folder, 0)
    run_virtual(start.run())
    return spec, start


def test_sc_9_83_a_damaged_bundle_makes_way_for_the_next_older_one(tmp_path):
    spec, _ = finished_run(tmp_path, keepTopK=3)
    newest = tmp_path / "step_7"
    (newest / "replay_index.json").write_text("[ ]")
    second = start_of(spec, tmp_path, 0)
    assert run_virtual(second.run()) == "max_steps"
    assert second.found.bundle.step == 6
    assert "step_7" in second.found.skipped[0]
    assert "replay_index.json is not what was written" in second.found.skipped[0]
    (event,) = second.events.of("resumed")
    assert event["skipped"] == list(second.found.skipped)
    assert sorted(second.trained_positions()) == list(range(PROMPTS))
    store = DirectoryStore(tmp_path)
    assert [bundle.step for bundle in store.bundles()] == [7, 6, 5]
    for bundle in store.bundles():
        store.verify(bundle)


def test_sc_9_83_bundles_none_of_which_is_usable_are_an_error_not_step_0(tmp_path):
    spec, _ = finished_run(tmp_path, keepTopK=2)
    for bundle in DirectoryStore(tmp_path).bundles():
        (bundle.path / "manifest.json").unlink()
    with pytest.raises(
        NothingUsable, match=r"none of the checkpoints.*step_7.*step_6.*start anew with --fresh"
    ):
        run_virtual(start_of(spec, tmp_path, 0).run())


def test_sc_14_165_looking_for_a_bundle_changes_nothing(tmp_path):
    finished_run(tmp_path)
    (tmp_path / "step_7" / "config.yaml").write_text("changed")
    (tmp_path / "tmp_step_8").mkdir()
    before = {p: p.read_bytes() if p.is_file() else None for p in sorted(tmp_path.rglob("*"))}
    assert usable(tmp_path).bundle.step == 6
    assert {p: p.read_bytes() if p.is_file() else None for p in sorted(tmp_path.rglob("*"))} == before


def test_an_empty_folder_is_a_fresh_start(tmp_path):
    assert usable(tmp_path / "none") is None


def test_sc_14_156_a_changed_step_size_is_refused_before_anything_is_touched(tmp_path):
    finished_run(tmp_path)
    start = start_of(job_spec(groups_per_step=7, async_rl=SAMPLERS["in_order"]), tmp_path, 0)
    with pytest.raises(RestoreRefused, match="numPromptsPerStep was 2 when it was saved and is 7 now"):
        run_virtual(start.run())
    assert start.parts.trainer.trained == []
    assert start.parts.progress.steps == 0


@pytest.mark.parametrize("after", ["windowed", "ready_first", "sync"])
def test_sc_9_86_another_sampler_generates_unfinished_prompts_again(after, tmp_path):
    for turns in (150, 200):
        folder = tmp_path / str(turns)
        run_until_killed(start_of(spec_of("in_order", 3), folder, 3), turns)
        if usable(folder) is None:
            continue
        second = start_of(spec_of(after, 3), folder, 3)
        run_virtual(second.run())
        trained = second.trained_positions()
        assert len(trained) == len(set(trained))
        assert second.counts().balanced
        assert second.counts().live == 0
        if after == "ready_first":
            assert sorted(trained) == list(range(PROMPTS))


def test_sc_9_85_without_the_rows_every_prompt_is_generated_again(tmp_path):
    spec = spec_of("in_order", 5, checkpointing={"savePeriod": 1})
    without = spec.checkpointing.model_copy(update={"save_data_plane": False})
    spec = spec.model_copy(update={"checkpointing": without})
    run_until_killed(start_of(spec, tmp_path, 5), 150)
    assert usable(tmp_path).cut.index == ()
    second = start_of(spec, tmp_path, 5)
    run_virtual(second.run())
    assert sorted(second.trained_positions()) == list(range(PROMPTS))


def test_what_the_first_steps_of_a_resumed_run_report_continues_the_counters(tmp_path):
    spec = spec_of("in_order", 0, checkpointing={"savePeriod": 1})
    run_until_killed(start_of(spec, tmp_path, 0), 170)
    second = start_of(spec, tmp_path, 0)
    run_virtual(second.run())
    step = second.found.bundle.step
    assert step > 0
    assert [record["train/trainer_version"] for record in second.records.steps] == list(range(step + 1, 8))
    assert second.records.steps[0]["train/consumed_groups"] == 2 * (step + 1)
    info = json.loads((tmp_path / "step_7" / "training_info.json").read_text())
    assert (info["steps"], info["consumed_groups"], info["policy_optimizer_steps"]) == (7, 14, 7)


def test_a_killed_loop_is_really_cut_short():
    async def forever():
        for _ in range(1000):
            await asyncio.sleep(1)

    class Start:
        run = staticmethod(forever)

    assert run_until_killed(Start(), 50) is None


def test_sc_14_157_room_of_restored_groups_comes_back_as_they_are_trained(tmp_path):
    spec = spec_of("weight_fifo", 4, checkpointing={"savePeriod": 1})
    restored = 0
    for turns in range(100, 220, 20):
        folder = tmp_path / str(turns)
        run_until_killed(start_of(spec, folder, 4), turns)
        second = start_of(spec, folder, 4)
        run_virtual(second.run())
        restored += sum(event["restored_groups"] for event in second.events.of("resumed"))
        assert second.parts.buffer.free == second.parts.buffer.capacity
        assert sorted(second.trained_positions()) == list(range(PROMPTS))
    assert restored > 0


def test_sc_14_178_a_step_that_lost_a_group_does_not_wait_for_it_after_a_restart(tmp_path):
    # A prompt of the second step fails for good; of the runs that are killed, some die before that step.
    failure = {"maxSkippedPrompts": 1, "maxDataAttemptsPerPrompt": 1, "minStepBatchFraction": 0.5}
    spec = job_spec(async_rl={**SAMPLERS["in_order"], "rolloutFailure": failure})
    lost = []

    def start(folder):
        def failing(request):
            return DataFailure("bad") if request.request_id.startswith(f"e0p{lost[0]}_") else None

        made = start_of(spec, folder, 0)
        made.failing, made.seconds, made.train_seconds = failing, lambda r: 0.5, lambda step: 20.0
        return made

    order = ScriptedStart(spec, tmp_path, prompts=PROMPTS)
    lost.append(run_virtual(second_batch(order))[0])
    resumed = 0
    for turns in range(60, 200, 10):
        folder = tmp_path / str(turns)
        run_until_killed(start(folder), turns)
        second = start(folder)
        run_virtual(second.run())
        resumed += second.found is not None and bool(second.found.cut.accounts["shortfall"])
        assert second.parts.progress.steps == PROMPTS // 2
        assert sorted([*second.trained_positions(), *lost]) == list(range(PROMPTS))
        assert second.counts().dropped == 1
    assert resumed > 0


async def second_batch(start):
    """Positions of the second dispatch batch of a job."""
    cursor = start._connect(DirectoryStore(start.folder)).rollout.cursor
    cursor.take()
    return [ref.position for ref in cursor.take()]
