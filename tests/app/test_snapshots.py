"""Rollout snapshots: when they are taken, what is in them, which one a run comes back from."""

import json
import os
import random
import shutil
from zlib import crc32

import pytest
from support.jobs import ScriptedStart, job_spec, run_until_killed

from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.app.resume import NothingUsable, OnlyBootstrap, OtherLineage, newest_usable
from asyncrl_runtime.core.errors import DataFailure, InfraFailure
from asyncrl_runtime.core.fingerprint import identity_of

PROMPTS = 14
SAMPLERS = {
    "in_order": {"sampler": {"name": "in_order", "maxLookaheadVersions": 2}},
    "weight_fifo": {"sampler": {"name": "weight_fifo", "maxStalenessVersions": 1}},
    "windowed": {"sampler": {"name": "windowed", "maxStalenessVersions": 2}, "maxBufferedRollouts": 8},
}
SNAPSHOTS = {
    "tokenCapture": {"enabled": True},
    "rolloutCheckpointing": {"snapshotAttemptIntervalSeconds": 0.4},
}


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """Nothing here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def draw(seed, text):
    return crc32(f"{seed}/{text}".encode()) / 2**32


def spec_of(sampler="in_order", *, async_rl=None, rollouts=None, recovery=None, checkpointing=None, **grpo):
    more = {
        **SNAPSHOTS,
        "rolloutCheckpointing": {**SNAPSHOTS["rolloutCheckpointing"], **(rollouts or {})},
        "rolloutRecovery": recovery or {},
    }
    return job_spec(
        async_rl={**SAMPLERS[sampler], "finalPartialStep": "discard", **(async_rl or {})},
        checkpointing=checkpointing,
        more=more,
        **grpo,
    )


def start_of(spec, folder, seed=0, **choices):
    def failing(request):
        return InfraFailure("lost") if draw(seed, request.request_id + "!") < 0.05 else None

    choices.setdefault("failing", failing)
    return ScriptedStart(
        spec,
        folder,
        prompts=PROMPTS,
        seconds=lambda request: 0.2 + 3.0 * draw(seed, request.request_id),
        train_seconds=lambda step: 2.0 * draw(seed, step),
        **choices,
    )


def usable(folder, mode="latest", identity=None):
    store = DirectoryStore(folder)
    return newest_usable(
        store, snapshots=DirectorySnapshots(store), mode=mode, identity=identity or identity_of({})
    )


def interrupted(folder, turns, spec=None, seed=0):
    """A start that was killed after so many turns of its loop."""
    start = start_of(spec or spec_of(), folder, seed)
    assert run_until_killed(start, turns) is None
    return start


# ── nothing is lost ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("granularity", ["sibling", "prompt_group"])
def test_sc_9_93_killed_anywhere_a_run_goes_on_from_its_newest_snapshot(sampler, granularity, tmp_path):
    bootstraps = snapshots = 0
    spec = spec_of(sampler, recovery={"defaultGranularity": granularity})
    for seed in range(10):
        rng = random.Random(f"{sampler}/{granularity}/{seed}")
        folder = tmp_path / str(seed)
        for turns in [*(rng.randint(1, 400) for _ in range(rng.randint(1, 4))), 10**9]:
            start = start_of(spec, folder, seed)
            end = run_until_killed(start, turns)
            found = start.found
            bootstraps += found is not None and found.bundle is None
            snapshots += (
                found is not None and found.bundle is not None and found.rollouts != found.bundle.path
            )
        assert end is not None
        trained, counts = start.trained_positions(), start.counts()
        assert len(trained) == len(set(trained)) == counts.trained, seed
        assert (counts.admitted, counts.balanced, counts.live) == (PROMPTS, True, 0), seed
        if sampler != "windowed":
            assert sorted(trained) == list(range(PROMPTS)), seed
        assert start.parts.plane.usage().keys_outstanding == 0
        assert start.parts.buffer.free == start.parts.buffer.capacity
    assert bootstraps > 1
    assert snapshots > 3


@pytest.mark.parametrize("policy", ["shrink", "replace"])
def test_sc_8_33_drops_and_budgets_survive_kills(policy, tmp_path):
    spec = spec_of(
        async_rl={
            "rolloutFailure": {
                "maxDataAttemptsPerPrompt": 1,
                "maxSkippedPrompts": 50,
                "minStepBatchFraction": 0.01,
                "onDroppedPrompt": policy,
            }
        }
    )

    def failing(request):
        return DataFailure("bad") if request.request_id.startswith("e0p3_") else None

    for seed in range(10):
        rng = random.Random(f"{policy}/{seed}")
        folder = tmp_path / str(seed)
        for turns in [*(rng.randint(1, 400) for _ in range(3)), 10**9]:
            start = start_of(spec, folder, seed, failing=failing)
            run_until_killed(start, turns)
        counts, parts = start.counts(), start.parts
        trained = start.trained_positions()
        assert len(trained) == len(set(trained)) == counts.trained, seed
        assert counts.balanced
        assert counts.live == len(parts.ledger.reserve)
        assert counts.dropped == parts.budgets.skipped == 1
        assert 3 not in trained
        assert parts.buffer.free == parts.buffer.capacity


def test_sc_9_67_finished_siblings_are_not_generated_again_after_a_restart(tmp_path):
    asked = []

    def listening(request):
        asked.append(request.request_id)

    spec = spec_of(checkpointing={"savePeriod": 100}, groups_per_step=2, generations=4)
    interrupted_at = start_of(spec, tmp_path, 3, failing=listening)
    assert run_until_killed(interrupted_at, 60) is None
    found = usable(tmp_path, identity=interrupted_at.identity)
    sealed = {(group["group_id"], i) for group in found.cut.ledger["entries"] for i in group["sealed"]}
    assert sealed
    asked.clear()
    second = start_of(spec, tmp_path, 3, failing=listening)
    run_virtual(second.run())
    again = {(name.split("_")[0], name.split("_g")[1].split("_")[0]) for name in asked}
    assert not sealed & again
    assert sorted(second.trained_positions()) == list(range(PROMPTS))


def test_sc_9_74_a_sibling_whose_row_is_gone_is_generated_again(tmp_path):
    spec = spec_of(checkpointing={"savePeriod": 100}, generations=4)
    first = interrupted(tmp_path, 60, spec, 3)
    found = usable(tmp_path, identity=first.identity)
    path = found.rollouts / "rollout_recovery.json"
    ledger = json.loads(path.read_text())
    entry = next(entry for entry in ledger["entries"] if entry["sealed"])
    entry["sealed"] = {i: {**done, "attempt": 77} for i, done in entry["sealed"].items()}
    path.write_text(json.dumps(ledger))
    reseal(found.rollouts)
    second = start_of(spec, tmp_path, 3)
    run_virtual(second.run())
    assert second.found.rollouts == found.rollouts
    assert sorted(second.trained_positions()) == list(range(PROMPTS))
    assert second.parts.plane.usage().keys_outstanding == 0


def reseal(folder):
    """Write the manifest anew, as if the files had been written this way."""
    from asyncrl_runtime.adapters.sealed_folder import seal

    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").unlink()
    seal(folder, {k: v for k, v in manifest.items() if k not in ("files", "digest")})


# ── attempts ────────────────────────────────────────────────────────────────────────────────────────


def reasons(start):
    return [event["reason"] for event in start.events.of("snapshot_attempt")]


def test_sc_14_174_every_attempt_is_told_with_its_reason(tmp_path):
    start = start_of(spec_of(checkpointing={"savePeriod": 2}), tmp_path)
    run_virtual(start.run())
    seen = set(reasons(start))
    assert {"saved", "anchor_not_durable"} <= seen
    assert start.parts.snapshots.attempts.total() == len(reasons(start))
    saved = next(e for e in start.events.of("snapshot_attempt") if e["reason"] == "saved")
    assert {"seconds", "mutation_version", "replay_rows", "staging_rows", "rolled_back_groups"} <= set(saved)


async def attempt_twice(start):
    import asyncio

    running = asyncio.ensure_future(start.run())
    await asyncio.sleep(0.35)
    pump = start.parts.snapshots
    first, second, forced = await pump.attempt(), await pump.attempt(), await pump.attempt(force=True)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return first, second, forced


def test_sc_9_52_an_attempt_without_a_change_does_nothing_unless_it_is_forced(tmp_path):
    start = start_of(spec_of(rollouts={"snapshotAttemptIntervalSeconds": 1000}), tmp_path)
    assert run_virtual(attempt_twice(start)) == ("saved", "no_mutation", "saved")


def test_sc_8_66_a_failing_attempt_ends_nothing(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DirectorySnapshots, "stage", full)
    start = start_of(spec_of(), tmp_path)
    assert run_virtual(start.run()) == "max_steps"
    assert set(reasons(start)) <= {"save_failed", "anchor_not_durable", "trainer_checkpoint_in_progress"}
    assert "No space left" in start.events.of("snapshot_attempt")[0]["problem"]


def test_sc_14_162_groups_of_the_open_step_are_in_the_snapshot_and_untouched_live(tmp_path):
    spec = spec_of(
        "windowed",
        async_rl={"minGroupsForStreamingTrain": 1},
        rollouts={"snapshotAttemptIntervalSeconds": 0.1, "keepLatestK": 100},
    )
    start = start_of(spec, tmp_path)
    run_virtual(start.run())
    saved = [e for e in start.events.of("snapshot_attempt") if e["reason"] == "saved"]
    assert any(event["rolled_back_groups"] for event in saved)
    assert len(set(start.trained_positions())) == start.counts().trained


def test_sc_9_43_so_many_snapshots_are_kept_below_a_checkpoint_and_all_go_with_it(tmp_path):
    spec = spec_of(
        rollouts={"snapshotAttemptIntervalSeconds": 0.1, "keepLatestK": 2}, checkpointing={"keepTopK": 1}
    )
    start = start_of(spec, tmp_path)
    run_virtual(start.run())
    store = DirectoryStore(tmp_path)
    snapshots = DirectorySnapshots(store)
    kept = [snapshots.snapshots(bundle.path) for bundle in store.bundles()]
    assert all(len(found) <= 2 for found in kept)
    assert {path.name for path in tmp_path.glob("step_*")} == {b.path.name for b in store.bundles()}
    assert snapshots.snapshots(snapshots.bootstrap) == []


def test_sc_9_58_a_stop_takes_a_last_snapshot(tmp_path):
    spec = spec_of(rollouts={"snapshotAttemptIntervalSeconds": 1000}, checkpointing={"savePeriod": 1})
    start = start_of(spec, tmp_path, 5, stop_after=1.0)
    assert run_virtual(start.run()) == "stopped"
    store = DirectoryStore(tmp_path)
    anchors = [None, *store.bundles()]
    snapshots = DirectorySnapshots(store)
    taken = [s for anchor in anchors for s in snapshots.snapshots(snapshots.anchor_of(anchor))]
    assert len(taken) + len(store.bundles()) >= 1
    second = start_of(spec, tmp_path, 5)
    run_virtual(second.run())
    assert second.found is not None
    assert sorted(second.trained_positions()) == list(range(PROMPTS))


# ── SC-9.81, row by row ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Folders of killed runs: before the first step, and with a checkpoint and snapshots on top of it."""
    root = tmp_path_factory.mktemp("states")
    before = interrupted(root / "before", 70, spec_of(rollouts={"keepLatestK": 5}))
    assert not list((root / "before").glob("step_*"))
    spec = spec_of(rollouts={"snapshotAttemptIntervalSeconds": 0.05, "keepLatestK": 5})
    for turns in range(150, 500, 5):
        shutil.rmtree(root / "after", ignore_errors=True)
        after = interrupted(root / "after", turns, spec)
        newest = DirectoryStore(root / "after").bundles()[:1]
        if newest and len(list((newest[0].path / "rollout_snapshots").glob("snapshot_*"))) >= 2:
            break
    return root, before.identity, after.identity


@pytest.fixture
def before(states, tmp_path):
    shutil.copytree(states[0] / "before", tmp_path / "run")
    return tmp_path / "run", states[1]


@pytest.fixture
def after(states, tmp_path):
    shutil.copytree(states[0] / "after", tmp_path / "run")
    return tmp_path / "run", states[2]


def snapshot_folders(folder):
    return sorted(folder.glob("*/rollout_snapshots/snapshot_*"))


def damage(snapshot):
    (snapshot / "replay_index.json").write_text("[]x")


def test_sc_9_81_a_nothing_is_a_fresh_start(tmp_path):
    assert usable(tmp_path) is usable(tmp_path, "trainer_checkpoint") is None


def test_sc_9_81_b_before_the_first_step_the_newest_snapshot_counts(before):
    folder, identity = before
    found = usable(folder, identity=identity)
    assert (found.bundle, found.rollouts) == (None, snapshot_folders(folder)[-1])


def test_sc_9_81_b_sc_14_166_a_trainer_checkpoint_cannot_be_had_there_and_nothing_is_deleted(before):
    folder, identity = before
    content = {path: path.stat().st_mtime for path in folder.rglob("*")}
    with pytest.raises(OnlyBootstrap, match="restoreMode is trainer_checkpoint"):
        usable(folder, "trainer_checkpoint", identity)
    assert {path: path.stat().st_mtime for path in folder.rglob("*")} == content


def test_sc_9_81_c_other_settings_are_refused_and_named(before):
    folder, _ = before
    other = identity_of({"generation": {"sampling": {"temperature": 0.5}}})
    with pytest.raises(OtherLineage, match=r"generation.sampling.temperature: 1 → 0.5") as refused:
        usable(folder, identity=other)
    assert str(folder / "bootstrap") in str(refused.value)


def test_sc_9_81_c1_a_damaged_newest_makes_way_and_none_is_an_error(before):
    folder, identity = before
    *_, older, newest = snapshot_folders(folder)
    damage(newest)
    found = usable(folder, identity=identity)
    assert found.rollouts == older
    assert newest.name in found.skipped[0]
    for snapshot in snapshot_folders(folder):
        damage(snapshot)
    with pytest.raises(NothingUsable, match=r"replay_index\.json"):
        usable(folder, identity=identity)


def test_sc_9_81_c2_a_bootstrap_without_snapshots_is_a_fresh_start(before):
    folder, identity = before
    shutil.rmtree(folder / "bootstrap" / "rollout_snapshots")
    assert usable(folder, identity=identity) is None
    with pytest.raises(OnlyBootstrap):
        usable(folder, "trainer_checkpoint", identity)


def test_sc_9_81_d_e_the_newest_snapshot_on_top_of_the_newest_checkpoint(after):
    folder, identity = after
    found = usable(folder, identity=identity)
    newest = DirectoryStore(folder).bundles()[0]
    assert found.bundle == newest
    assert found.rollouts == sorted((newest.path / "rollout_snapshots").glob("snapshot_*"))[-1]
    assert usable(folder, "trainer_checkpoint", identity).rollouts == newest.path
    shutil.rmtree(newest.path / "rollout_snapshots")
    assert usable(folder, identity=identity).rollouts == newest.path


def test_sc_9_81_f_a_damaged_snapshot_makes_way_for_an_older_one_and_then_for_the_checkpoint(after):
    folder, identity = after
    newest = DirectoryStore(folder).bundles()[0]
    snapshots = sorted((newest.path / "rollout_snapshots").glob("snapshot_*"))
    damage(snapshots[-1])
    found = usable(folder, identity=identity)
    assert found.rollouts == snapshots[-2]
    assert snapshots[-1].name in found.skipped[0]
    for snapshot in snapshots:
        damage(snapshot)
    found = usable(folder, identity=identity)
    assert found.rollouts == newest.path
    assert len(found.skipped) == len(snapshots)


def test_sc_9_81_g_snapshots_of_older_checkpoints_do_not_count(after):
    folder, identity = after
    bundles = DirectoryStore(folder).bundles()
    shutil.rmtree(bundles[0].path / "rollout_snapshots")
    assert usable(folder, identity=identity).rollouts == bundles[0].path


def test_sc_9_81_h_sc_14_164_what_an_interrupted_writer_left_is_no_candidate(after):
    folder, identity = after
    newest = DirectoryStore(folder).bundles()[0]
    snapshots = newest.path / "rollout_snapshots"
    whole = sorted(snapshots.glob("snapshot_*"))[-1]
    for snapshot in snapshots.glob("snapshot_*"):
        snapshot.rename(snapshot.with_name(f"tmp_{snapshot.name}"))
    assert usable(folder, identity=identity).rollouts == newest.path
    assert not whole.exists()


def test_sc_9_83_rows_that_the_index_does_not_know_are_damage(after):
    folder, identity = after
    found = usable(folder, identity=identity)
    index = found.rollouts / "replay_index.json"
    groups = json.loads(index.read_text())
    index.write_text(json.dumps(groups[1:] if groups else [{}]))
    reseal(found.rollouts)
    again = usable(folder, identity=identity)
    assert again.rollouts != found.rollouts
    assert "the index does not know" in again.skipped[0]


def test_another_checkpoint_below_the_same_name_is_no_anchor(after):
    folder, identity = after
    found = usable(folder, identity=identity)
    info = found.rollouts / "training_info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "steps": 99}))
    reseal(found.rollouts)
    assert "its steps is 99" in usable(folder, identity=identity).skipped[0]
