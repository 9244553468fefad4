"""Checkpoints: when one is due, what is in it, what must not become one."""

import asyncio
import json
import os
from dataclasses import replace

import pytest
from support.groups import group
from support.runs import Run, Script

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.core.restore import RestoreRefused
from asyncrl_runtime.core.retention import Retention
from asyncrl_runtime.ports.checkpoints import BundleDamaged, CheckpointFailed
from asyncrl_runtime.pumps.checkpoint import InventoryMismatch, MetricMissing, read_cut
from asyncrl_runtime.pumps.wakeup import BarrierTimeout


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def bench(folder=None, settings=None, **choices):
    """A run that saves into `folder`, with these settings of the checkpointer changed."""
    run = Run(Script(checkpoints=folder, **choices))
    run.checkpointer.settings = replace(run.checkpointer.settings, **(settings or {}))
    return run


def finish(run):
    async def main():
        return await run.go()

    run.outcome = run_virtual(main())
    return run


# ── when ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"save_period": 1}, [1, 2, 3, 4, 5, 6, 7]),
        ({"save_period": 3}, [3, 6, 7]),
        ({"save_period": 100}, [7]),
        ({"save_period": 4, "ft_save_period": 3}, [3, 4, 6, 7]),
        ({"enabled": False}, []),
    ],
)
def test_sc_9_20_when_a_checkpoint_is_due(settings, due, tmp_path):
    async def main():
        run = bench(tmp_path, settings)
        seen = []
        for steps in range(1, 8):
            run.progress.steps = steps
            if run.checkpointer.due(last=steps == 7):
                seen.append(steps)
        return seen

    assert run_virtual(main()) == due


@pytest.mark.parametrize("period", [1, 4, 100])
@pytest.mark.parametrize("first_step", [0, 100])
def test_sc_9_21_the_save_by_deadline_fires_once_and_stops_the_run(tmp_path, period, first_step):
    # A step takes 10 s; after the seventh, another one would reach 80 s.
    async def main():
        run = bench(tmp_path, {"save_period": period, "must_save_by_seconds": 80.0})
        run.checkpointer.first_step, seen = first_step, []
        for steps in range(first_step + 1, first_step + 10):
            await asyncio.sleep(10)
            run.progress.steps = steps
            if run.checkpointer.due(last=False):
                seen.append(steps - first_step)
            if run.checkpointer.stop_after_save:
                return seen
        raise AssertionError(seen)

    seen = run_virtual(main())
    assert seen[-1] == 7
    assert period == 1 or seen == [step for step in (4,) if step % period == 0] + [7]


def test_a_run_ends_after_the_save_that_its_deadline_asked_for(tmp_path):
    run = bench(
        tmp_path,
        {"save_period": 1, "must_save_by_seconds": 8.0},
        prompts=40,
        train_seconds=lambda step: 1.0,
    )
    finish(run)
    assert run.outcome == "deadline"
    assert run.checkpointer.last_saved_step == run.progress.steps < 20


def test_sc_14_171_the_last_step_is_saved_when_the_data_runs_out(tmp_path):
    run = finish(bench(tmp_path, prompts=10, save_period=100, settings={"save_period": 100}))
    assert run.outcome == "data_exhausted"
    assert [bundle.step for bundle in run.store.bundles()] == [5]


# ── what ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bundle_holds_what_the_layout_says(tmp_path):
    finish(bench(tmp_path, prompts=4))
    files = {str(p.relative_to(tmp_path / "step_2")) for p in (tmp_path / "step_2").rglob("*") if p.is_file()}
    assert files == {
        "config.yaml",
        "data_plane/rows.json",
        "manifest.json",
        "policy/optimizer/state.json",
        "policy/tokenizer/tokenizer.json",
        "policy/weights/state.json",
        "replay_index.json",
        "rollout_recovery.json",
        "train_dataloader.json",
        "training_info.json",
    }
    cut, extra = read_cut(tmp_path / "step_2")
    assert (cut.steps, cut.trainer_version, cut.consumed_groups) == (2, 2, 4)
    assert extra == {"metric_name": None, "metric": None}
    assert json.loads((tmp_path / "latest_checkpoint_status.json").read_text()) == {
        "step": 2,
        "status": "saved",
    }


def test_sc_14_161_index_ledger_and_rows_of_every_bundle_agree(tmp_path, monkeypatch):
    keys = InProcessPlane.keys

    async def slow(plane):
        await asyncio.sleep(0.9)
        return await keys(plane)

    monkeypatch.setattr(InProcessPlane, "keys", slow)
    run = bench(
        tmp_path,
        prompts=40,
        groups_per_step=4,
        capacity=16,
        generation_seconds=lambda r: 1.0 + int(r.request_id.split("p")[1].split("_")[0]) % 5,
        train_seconds=lambda step: 0.7,
    )
    run.checkpointer.retention = Retention(
        save_period=1, keep_top_k=None, by_metric=False, higher_is_better=True, ft_keep_latest_k=None
    )
    finish(run)
    held = 0
    for bundle in run.store.bundles():
        cut, _ = read_cut(bundle.path)
        pieces = json.loads((bundle.path / "data_plane" / "rows.json").read_text())
        rows = [sample for piece in pieces for sample in piece["samples"]]
        assert set(rows) == {sample for meta in cut.index for sample in meta.sample_ids}
        owned = len(cut.index) + len(cut.ledger["entries"])
        assert cut.ledger["taken"] == owned + cut.ledger["trained"]
        assert cut.ledger["trained"] == 4 * cut.steps
        taken = 4 * (10 * cut.data["epoch"] + cut.data["next_batch"])
        assert cut.ledger["taken"] == taken
        held += len(cut.index)
    assert held > 0


def test_sc_9_55_sc_14_162_groups_of_an_open_step_are_in_the_bundle_and_stay_claimed(tmp_path):
    async def main():
        run = bench(tmp_path, prompts=8, groups_per_step=4, smallest_chunk=1, generation_seconds=by_place)
        going = asyncio.create_task(run.go())
        await asyncio.sleep(2.5)
        claimed = [meta.group_id for meta in run.train.claims]
        await run.checkpointer.save()
        cut, _ = read_cut(tmp_path / "step_0")
        assert [meta.group_id for meta in cut.index][: len(claimed)] == claimed
        assert cut.rolled_back_groups == len(claimed) == 2
        assert [meta.group_id for meta in run.train.claims] == claimed
        await going
        return run

    run = run_virtual(main())
    assert sorted(run.trained_prompts()) == list(range(8))
    assert run.balanced


def by_place(request):
    return 1.0 + int(request.request_id.split("p")[1].split("_")[0])


def test_a_sampler_that_cannot_restore_saves_prompts_and_no_rows(tmp_path):
    async def main():
        run = bench(tmp_path, {"save_data_plane": False}, prompts=8, train_seconds=lambda step: 5.0)
        going = asyncio.create_task(run.go())
        await asyncio.sleep(4)
        await run.checkpointer.save()
        cut, _ = read_cut(tmp_path / "step_0")
        assert (cut.has_rollouts, cut.index, cut.rolled_back_groups) == (False, (), 0)
        assert not (tmp_path / "step_0" / "data_plane").exists()
        owned = len(cut.ledger["entries"])
        assert owned == cut.ledger["taken"] == run.ledger.taken
        await going

    run_virtual(main())


# ── metrics ─────────────────────────────────────────────────────────────────────────────────────────


def test_sc_14_173_a_metric_that_the_step_lacks_fails_the_save(tmp_path):
    async def main():
        run = bench(tmp_path, {"metric_name": "train:rewart"})
        with pytest.raises(MetricMissing, match=r"metricName train:rewart .* there are loss, reward"):
            await run.checkpointer.save(metrics={"train/reward": 1.0, "train/loss": 0.0, "val/accuracy": 1.0})
        return run

    assert run_virtual(main()).store.bundles() == []


@pytest.mark.parametrize(
    ("name", "metrics", "validation", "value"),
    [
        ("train:reward", {"train/reward": 0.5}, {}, 0.5),
        ("train:reward", None, {}, None),
        ("val:accuracy", {}, {"accuracy": 0.25}, 0.25),
        ("val:accuracy", {}, {}, None),
        (None, {"train/reward": 0.5}, {}, None),
    ],
)
def test_sc_9_26_the_value_that_ranks_a_bundle_is_stored_with_it(tmp_path, name, metrics, validation, value):
    async def main():
        run = bench(tmp_path, {"metric_name": name})
        await run.checkpointer.save(metrics=metrics, validation=validation)
        return run

    run = run_virtual(main())
    assert read_cut(tmp_path / "step_0")[1] == {"metric_name": name, "metric": value}
    assert [saved.metric for saved in run.checkpointer.saved] == [value]


def test_a_stop_saves_also_where_a_train_metric_ranks_bundles(tmp_path):
    async def main():
        run = bench(tmp_path, {"metric_name": "train:reward", "save_period": 100}, prompts=40)
        asyncio.get_running_loop().call_later(5, run.ask_to_stop)
        return run, await run.go()

    run, end = run_virtual(main())
    assert end == "stopped"
    assert [bundle.step for bundle in run.store.bundles()] == [run.progress.steps]


def test_ex_9_1_retention_deletes_what_no_rule_keeps(tmp_path):
    rewards = {2: 0.3, 4: 0.9, 6: 0.9, 8: 0.5}

    async def main():
        run = bench(tmp_path, {"metric_name": "train:reward"})
        run.checkpointer.retention = Retention(
            save_period=2, keep_top_k=2, by_metric=True, higher_is_better=True, ft_keep_latest_k=None
        )
        for steps, reward in rewards.items():
            run.progress.steps = steps
            await run.checkpointer.save(metrics={"train/reward": reward})
        return run

    run = run_virtual(main())
    assert [bundle.step for bundle in run.store.bundles()] == [8, 6, 4]
    assert [saved.step for saved in run.checkpointer.saved] == [4, 6, 8]


def test_a_step_that_is_saved_again_counts_once(tmp_path):
    async def main():
        run = bench(tmp_path)
        run.checkpointer.retention = Retention(
            save_period=1, keep_top_k=2, by_metric=False, higher_is_better=True, ft_keep_latest_k=None
        )
        for steps in (1, 2, 3, 3, 3):
            run.progress.steps = steps
            await run.checkpointer.save()
        return run

    assert [bundle.step for bundle in run_virtual(main()).store.bundles()] == [3, 2]


def test_sc_8_65_a_bundle_that_cannot_be_deleted_is_only_reported(tmp_path, monkeypatch):
    async def main():
        run = bench(tmp_path)
        run.checkpointer.retention = Retention(
            save_period=1, keep_top_k=1, by_metric=False, higher_is_better=True, ft_keep_latest_k=None
        )

        def refuse(store, bundle):
            raise PermissionError("read-only")

        monkeypatch.setattr(type(run.store), "delete", refuse)
        for steps in (1, 2):
            run.progress.steps = steps
            await run.checkpointer.save()
        return run

    run = run_virtual(main())
    assert run.events.of("checkpoint_not_deleted") == [{"path": "step_1", "reason": "read-only"}]
    assert [bundle.step for bundle in run.store.bundles()] == [2, 1]


# ── failures ────────────────────────────────────────────────────────────────────────────────────────


def test_sc_9_57_sc_14_161_a_bundle_whose_rows_and_index_differ_is_never_published(tmp_path):
    async def main():
        run = bench(tmp_path)
        run.buffer.restore(group("ghost", generations=2))
        with pytest.raises(InventoryMismatch, match="lacks 2 rows of the replay index and holds 0"):
            await run.checkpointer.save()
        return run

    run = run_virtual(main())
    assert run.store.bundles() == []
    assert run.checkpointer.last_saved_step == -1


@pytest.mark.parametrize("part", ["trainer", "plane", "tokenizer"])
def test_sc_14_160_a_part_that_fails_leaves_no_bundle(tmp_path, monkeypatch, part):
    async def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    def fail_now(*args):
        raise OSError(28, "No space left on device")

    async def main():
        run = bench(tmp_path)
        if part == "trainer":
            monkeypatch.setattr(type(run.trainer), "save", fail)
        elif part == "plane":
            monkeypatch.setattr(InProcessPlane, "snapshot", fail)
        else:
            run.checkpointer.write_tokenizer = fail_now
        with pytest.raises(CheckpointFailed, match=r"tmp_step_0 could not be written: .*No space left"):
            await run.checkpointer.save()
        async with asyncio.timeout(1), run.barrier.mutation():
            pass
        return run

    assert run_virtual(main()).store.bundles() == []


def test_a_stage_that_fails_names_its_step(tmp_path, monkeypatch):
    async def main():
        run = bench(tmp_path)
        run.progress.steps = 3

        def refuse(store, step):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(type(run.store), "stage", refuse)
        with pytest.raises(CheckpointFailed, match=r"checkpoint of step 3 could not be written: .*denied"):
            await run.checkpointer.save()

    run_virtual(main())


def test_a_save_is_bounded(tmp_path, monkeypatch):
    async def main():
        run = bench(tmp_path, {"timeout_seconds": 30.0})

        async def hang(*args, **kwargs):
            await asyncio.sleep(1e6)

        monkeypatch.setattr(type(run.trainer), "save", hang)
        with pytest.raises(CheckpointFailed, match=r"no end within spec\.checkpointing\.timeoutSeconds 30"):
            await run.checkpointer.save()
        assert asyncio.get_running_loop().time() == 30

    run_virtual(main())


def test_sc_4_75_a_save_whose_cut_cannot_begin_fails(tmp_path):
    async def main():
        run = bench(tmp_path, {"barrier_timeout_seconds": 4.0})
        async with run.barrier.mutation():
            with pytest.raises(BarrierTimeout):
                await run.checkpointer.save()
        return run

    assert run_virtual(main()).store.bundles() == []


def test_sc_14_150_commits_wait_for_the_cut_and_generation_does_not(tmp_path, monkeypatch):
    snapshot = InProcessPlane.snapshot

    async def slow(plane, directory):
        await asyncio.sleep(5)
        return await snapshot(plane, directory)

    monkeypatch.setattr(InProcessPlane, "snapshot", slow)

    async def main():
        run = bench(tmp_path, prompts=8, max_inflight=4, train_seconds=lambda step: 1000.0)
        going = asyncio.create_task(run.go())
        await asyncio.sleep(0.5)
        saving = asyncio.create_task(run.checkpointer.save())
        await asyncio.sleep(2)
        assert not saving.done()
        assert run.buffer.ready == 0
        assert all(attempt.task.done() for attempt in run.rollout.inflight.values())
        assert sum(len(shard.started) for shard in run.shards) == 8
        await saving
        assert run.checkpointer.pause_seconds == 5
        await asyncio.sleep(0.1)
        assert run.buffer.ready + len(run.train.claims) == 4
        going.cancel()
        await asyncio.wait([going])

    run_virtual(main())


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_bundle_without_a_part_is_damaged(tmp_path):
    finish(bench(tmp_path, prompts=4))
    for name in ("training_info.json", "replay_index.json", "rollout_recovery.json", "train_dataloader.json"):
        path = tmp_path / "step_2" / name
        text = path.read_text()
        path.unlink()
        with pytest.raises(BundleDamaged, match=name):
            read_cut(tmp_path / "step_2")
        path.write_text(text[:-1])
        with pytest.raises(BundleDamaged):
            read_cut(tmp_path / "step_2")
        path.write_text(text)
    info = tmp_path / "step_2" / "training_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "schema_version": 99}))
    with pytest.raises(RestoreRefused, match="schema version is 99"):
        read_cut(tmp_path / "step_2")
