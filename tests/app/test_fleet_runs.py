"""Whole runs whose shards die, freeze and come back, on loop time."""

import pytest
from support.fleets import WatchedRun
from support.jobs import job_spec

from asyncrl_runtime.core.errors import FleetExhausted, RefitFailed
from asyncrl_runtime.core.fleet import FleetLedger
from asyncrl_runtime.pumps.checkpoint import read_cut

pytestmark = pytest.mark.looptime


def spec_of(*, shards=2, lookahead=1, health=None, refit=None, rollout=None, checkpointing=None):
    spec = job_spec(
        async_rl={
            "generationFleetHealth": {"enabled": True, "onDeadShard": "restart", **(health or {})},
            "refit": {"deadlineSeconds": 20.0, **(refit or {})},
            "rolloutFailure": rollout or {},
            "sampler": {"name": "in_order", "maxLookaheadVersions": lookahead},
        },
        checkpointing=checkpointing or {"enabled": False},
    )
    return spec.model_copy(update={"generation": spec.generation.model_copy(update={"shards": shards})})


def at_step(number, happen):
    """A hook that lets something happen once, after a step."""

    def finished(parts, step, metrics):
        if step.version == number:
            happen(parts)

    return finished


async def test_a_killed_shard_comes_back_at_the_weights_of_then(tmp_path):
    versions = []

    def kill(parts):
        parts.shards[1].die()

    def look(parts, step, metrics):
        at_step(2, kill)(parts, step, metrics)
        versions.append((parts.shards[1].weight_version, parts.versions.stamp))

    run = WatchedRun(
        spec_of(health={"restartBackoffBaseSeconds": 1.0}),
        tmp_path,
        prompts=40,
        restart_seconds=3.0,
        finished=look,
    )
    assert await run.run() == "max_steps"
    assert run.whole
    assert run.moves(1) == ["DEAD", "RESTARTING", "STALE", "HEALTHY"]
    assert run.moves(0) == []
    back = versions[-1]
    assert back[0] == back[1] == run.parts.versions.trainer
    assert run.parts.fleet.ledger.stale_serving == ()
    excluded = [event["excluded"] for event in run.events.of("refit")]
    assert [1] in excluded
    assert excluded[-1] == []


async def test_a_frozen_shard_is_found_and_its_groups_are_rolled_out_elsewhere(tmp_path):
    run = WatchedRun(
        spec_of(),
        tmp_path,
        prompts=40,
        restart_seconds=30.0,
        finished=at_step(2, lambda parts: setattr(parts.shards[1], "frozen", True)),
    )
    assert await run.run() == "max_steps"
    assert run.whole
    assert run.moves(1)[:2] == ["SUSPECT", "DEAD"]
    assert run.moves(0) == []


@pytest.mark.parametrize(("lookahead", "readmissions"), [(0, 1), (1, 0)])
async def test_the_only_shard_is_taken_in_again_although_no_step_can_complete_without_it(
    tmp_path, lookahead, readmissions
):
    # With a step ahead in the buffer the next refit takes it in; without one there is no next refit.
    run = WatchedRun(
        spec_of(shards=1, lookahead=lookahead, health={"restartGraceSeconds": 300.0}),
        tmp_path,
        prompts=20,
        restart_seconds=30.0,
        finished=at_step(2, lambda parts: parts.shards[0].die()),
    )
    assert await run.run() == "max_steps"
    assert run.whole
    assert run.moves(0) == ["DEAD", "RESTARTING", "STALE", "HEALTHY"]
    readmitted = [event["version"] for event in run.events.of("refit") if event.get("readmission")]
    assert readmitted == [3] * readmissions
    landed = [event["version"] for event in run.events.of("refit")]
    assert landed == sorted(landed)


async def test_sc_7_75_the_only_shard_may_freeze_and_be_found_by_the_probe_whose_round_looks_at_the_fleet(
    tmp_path,
):
    run = WatchedRun(
        spec_of(shards=1, health={"restartGraceSeconds": 300.0}),
        tmp_path,
        prompts=20,
        restart_seconds=30.0,
        finished=at_step(2, lambda parts: setattr(parts.shards[0], "frozen", True)),
    )
    assert await run.run() == "max_steps"
    assert run.whole
    assert run.moves(0) == ["SUSPECT", "DEAD", "RESTARTING", "STALE", "HEALTHY"]


async def test_without_a_grace_the_loss_of_the_only_shard_ends_the_run(tmp_path):
    run = WatchedRun(
        spec_of(shards=1),
        tmp_path,
        prompts=20,
        finished=at_step(2, lambda parts: parts.shards[0].die()),
    )
    with pytest.raises(FleetExhausted, match=r"0 of 1 generation shards serve \(1 RESTARTING\)"):
        await run.run()


async def test_fail_fast_goes_on_with_who_is_left_and_ends_when_nobody_is(tmp_path):
    def lose(parts, step, metrics):
        at_step(2, lambda parts: parts.shards[1].die())(parts, step, metrics)
        at_step(6, lambda parts: parts.shards[0].die())(parts, step, metrics)

    run = WatchedRun(spec_of(health={"onDeadShard": "fail_fast"}), tmp_path, prompts=40, finished=lose)
    with pytest.raises(FleetExhausted, match=r"0 of 2 generation shards serve \(2 DEAD\)"):
        await run.run()
    assert 7 <= run.parts.progress.steps < 20
    assert run.balanced


async def test_sc_6_52_an_aborted_refit_costs_no_attempt_and_no_wrong_version(tmp_path):
    tries = []

    def fail_once(version):
        tries.append(version)
        return tries.count(version) == 1 and version in (3, 7)

    run = WatchedRun(
        spec_of(rollout={"maxInfraAttemptsPerPrompt": 1}),
        tmp_path,
        prompts=40,
        sync_failing=fail_once,
        seconds=lambda request: 4.0,
    )
    assert await run.run() == "max_steps"
    assert run.whole
    assert len(run.events.of("refit_failed")) == 2
    assert run.moves(0) == ["STALE", "HEALTHY"] * 2
    assert run.parts.rollout.counters.redispatched.total() == 0
    assert run.parts.refit.metrics()["refit/retries"] == 2
    assert not run.parts.fleet.recovering
    for slot in run.parts.buffer:
        assert min(slot.meta.weight_versions) >= 0


async def test_a_refit_that_cannot_be_repaired_ends_the_run(tmp_path):
    run = WatchedRun(spec_of(), tmp_path, prompts=40, sync_failing=lambda version: version == 3)
    with pytest.raises(RefitFailed, match="weights of version 3 did not land in 2 attempts"):
        await run.run()
    assert not run.parts.gate.is_open


async def test_sc_8_33_restart_attempts_are_part_of_a_checkpoint(tmp_path):
    spec = spec_of(
        health={"restartBackoffBaseSeconds": 0.1}, checkpointing={"enabled": True, "savePeriod": 1}
    )
    run = WatchedRun(spec, tmp_path, finished=at_step(2, lambda parts: parts.shards[1].die()))
    await run.run()
    assert run.moves(1) == ["DEAD", "RESTARTING", "STALE", "HEALTHY"]
    newest = run.store.bundles()[0]
    cut, _ = read_cut(newest.path)
    after = FleetLedger(num_shards=2, clock=lambda: 0.0)
    after.restore_counters(cut.fleet)
    assert [shard.restart_attempts for shard in after.shards] == [0, 1]


async def test_quarantine_and_release_by_hand_in_a_run(tmp_path):
    def by_hand(parts, step, metrics):
        at_step(2, lambda parts: parts.fleet.quarantine(1))(parts, step, metrics)
        at_step(5, lambda parts: parts.fleet.release(1))(parts, step, metrics)

    run = WatchedRun(
        spec_of(health={"onDeadShard": "quarantine", "restartBackoffBaseSeconds": 0.5}),
        tmp_path,
        prompts=40,
        finished=by_hand,
    )
    assert await run.run() == "max_steps"
    assert run.whole
    assert run.moves(1) == ["DEAD", "RESTARTING", "STALE", "HEALTHY"]
    reasons = [event["reason"] for event in run.events.of("shard_state") if event["shard"] == 1]
    assert reasons[0] == "it was taken out by hand"
