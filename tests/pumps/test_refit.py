"""The refit: gate, aborts, drain, transfer, stamp."""

import asyncio
from dataclasses import replace

import pytest
from support.runs import Run, Script

from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator
from asyncrl_runtime.core.errors import RefitAborted
from asyncrl_runtime.core.fleet import FleetLedger
from asyncrl_runtime.core.metric_names import check_name
from asyncrl_runtime.core.samplers.windowed import Windowed

pytestmark = pytest.mark.looptime


class Transfer:
    """A weight sync that notes what it meets."""

    is_stale = True

    def __init__(self, run, *, seconds=0.0, error=None):
        self.run, self.seconds, self.error, self.seen = run, seconds, error, []

    async def reconcile(self, absent, *, force=False):
        return await self.run.sync.reconcile(absent, force=force)

    def stand_down(self):
        self.run.sync.stand_down()

    async def sync_weights(self, version, *, kv_scales=None):
        versions = self.run.versions
        self.seen.append((self.run.gate.is_open, versions.stamp, versions.arriving))
        await asyncio.sleep(self.seconds)
        self.seen.append((self.run.gate.is_open, versions.stamp, versions.arriving))
        if self.error:
            raise self.error
        return await self.run.sync.sync_weights(version)


def bench(transfer=None, **choices):
    """A run whose train pump does not run."""
    run = Run(Script(**choices))
    run.transfer = run.refit.transfer.sync = Transfer(run, **(transfer or {}))
    return run


def replace_settings(run, **changes):
    run.refit.transfer.settings = replace(run.refit.transfer.settings, **changes)


async def test_the_first_refit_stamps_version_0_and_opens_the_gate():
    run = bench()
    assert (run.versions.stamp, run.gate.is_open) == (-1, False)
    metrics = await run.refit.run()
    assert (run.versions.stamp, run.gate.is_open, run.refit.transfer.counters.landed) == (0, True, 1)
    assert [shard.weight_version for shard in run.shards] == [0, 0]
    assert metrics["timing/train/weight_sync"] == 0


async def test_the_stamp_moves_after_the_transfer_and_before_the_gate_opens(looptime):
    run = bench({"seconds": 3.0})
    run.versions.trainer = run.versions.content = 4
    stamps = []

    async def first_through():
        await run.gate.until_open()
        stamps.append(run.versions.stamp)

    waiting = asyncio.create_task(first_through())
    metrics = await run.refit.run()
    await waiting
    assert run.transfer.seen == [(False, -1, 4), (False, -1, 4)]
    assert run.versions.arriving is None
    assert stamps == [4]
    assert looptime == 3
    assert metrics["timing/train/weight_sync/transfer"] == 3


async def test_a_refit_may_leave_the_gate_closed():
    run = bench()
    await run.refit.run(keep_closed=True)
    assert (run.versions.stamp, run.gate.is_open) == (0, False)


async def test_a_failing_transfer_leaves_gate_and_stamp_alone():
    run = bench({"error": RefitAborted(1, "shard 0 is gone")})
    await run.sync.sync_weights(0)
    run.versions.stamp, run.versions.trainer = 0, 1
    run.gate.open()
    with pytest.raises(RefitAborted, match="weights of version 1 did not land: shard 0 is gone"):
        await run.refit.run()
    assert (
        run.gate.is_open,
        run.versions.stamp,
        run.versions.arriving,
        run.refit.transfer.counters.landed,
    ) == (
        False,
        0,
        None,
        0,
    )


async def test_a_cache_that_cannot_be_recomputed_leaves_the_gate_closed(monkeypatch):
    run = bench()
    replace_settings(run, recompute_kv_cache=True)

    async def broken(shard):
        raise RefitAborted(0, "no answer")

    monkeypatch.setattr(ScriptedGenerator, "invalidate_kv_cache", broken)
    with pytest.raises(RefitAborted):
        await run.refit.run()
    assert (run.gate.is_open, run.versions.stamp) == (False, -1)


async def test_caches_of_the_shards_that_took_part_are_recomputed_before_the_gate_opens(monkeypatch):
    run = bench()
    replace_settings(run, recompute_kv_cache=True)
    done = []

    async def note(shard):
        done.append((shard.index, run.versions.stamp, run.gate.is_open))

    monkeypatch.setattr(ScriptedGenerator, "invalidate_kv_cache", note)
    await run.refit.run()
    assert done == [(0, -1, False), (1, -1, False)]


async def test_sc_6_41_a_transfer_is_bounded_by_deadline_and_unwind_grace(looptime):
    run = bench({"seconds": 1000.0})
    replace_settings(run, deadline_seconds=20.0, unwind_grace_seconds=5.0)
    with pytest.raises(RefitAborted, match=r"no end within 25 s \(spec\.asyncRL\.refit\.deadlineSeconds"):
        await run.refit.run()
    assert looptime == 25
    assert not run.gate.is_open


async def test_sc_14_48_a_time_out_inside_the_transfer_is_its_own():
    run = bench({"error": TimeoutError("a socket")})
    replace_settings(run, deadline_seconds=20.0)
    with pytest.raises(TimeoutError, match="a socket"):
        await run.refit.run()


async def start_rollouts(run, seconds):
    """Let the rollout pump run for a while."""
    pump = asyncio.create_task(run.rollout.run())
    await asyncio.sleep(seconds)
    return pump


async def stop(pump):
    pump.cancel()
    await asyncio.wait([pump])


async def test_sc_1_15_rollouts_that_meet_newer_content_straddle():
    run = bench(prompts=4, generation_seconds=lambda request: 10.0)
    await run.refit.run()
    pump = await start_rollouts(run, 5)
    run.versions.trainer = 1
    await run.refit.run()
    assert not any(attempt.straddled for attempt in run.rollout.inflight.values())
    run.versions.trainer = run.versions.content = 2
    await run.refit.run()
    assert all(attempt.straddled for attempt in run.rollout.inflight.values())
    await asyncio.sleep(6)
    metas = [slot.meta for slot in run.buffer]
    assert [(meta.start_weight, meta.end_weight, meta.straddled) for meta in metas] == [(0, 2, True)] * 4
    await stop(pump)


async def test_stale_rollouts_are_aborted_before_the_transfer(looptime):
    run = bench(
        prompts=4, sampler=lambda buffer: Windowed(buffer, window=1), generation_seconds=lambda request: 100.0
    )
    await run.refit.run()
    pump = await start_rollouts(run, 5)
    run.versions.trainer = run.versions.content = 1
    assert (await run.refit.run())["train/aborted_stale_inflight_groups"] == 0
    run.versions.trainer = run.versions.content = 2
    assert (await run.refit.run())["train/aborted_stale_inflight_groups"] == 4
    await asyncio.sleep(0)
    assert run.rollout.inflight == {}
    assert sum(shard.running for shard in run.shards) == 0
    await stop(pump)


async def test_sc_5_35_an_abort_waits_no_longer_than_its_grace_and_detaches_the_rest(looptime):
    run = bench(
        prompts=2, sampler=lambda buffer: Windowed(buffer, window=0), generation_seconds=lambda request: 500.0
    )
    inner = run.groups.rollouts
    late = []

    class Stubborn:
        async def roll_group(self, prompt, **rest):
            try:
                return await inner.roll_group(prompt, **rest)
            except asyncio.CancelledError:
                await asyncio.sleep(300)
                late.append(rest["group_id"])
                raise

    run.groups.rollouts = Stubborn()
    await run.refit.run()
    pump = await start_rollouts(run, 5)
    run.versions.trainer = run.versions.content = 1
    metrics = await run.refit.run()
    assert metrics["timing/train/weight_sync/abort"] == 30
    assert run.rollout.counters.detached == 2
    await asyncio.wait_for(pump, 1)
    assert (run.buffer.launched, len(run.buffer), run.buffer.free) == (0, 0, run.buffer.capacity)
    assert run.ledger.discarded["aborted"] == 2
    await asyncio.sleep(400)
    assert late == ["e0p0", "e0p1"]
    assert await run.plane.keys() == frozenset()


async def test_sc_5_36_other_errors_of_aborted_rollouts_surface():
    run = bench(
        prompts=2, sampler=lambda buffer: Windowed(buffer, window=0), generation_seconds=lambda request: 500.0
    )

    class Breaking:
        async def roll_group(self, prompt, **rest):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                raise KeyError(rest["group_id"]) from None

    run.groups.rollouts = Breaking()
    await run.refit.run()
    pump = await start_rollouts(run, 5)
    run.versions.trainer = run.versions.content = 1
    with pytest.raises(ExceptionGroup, match="while they were aborted") as caught:
        await run.refit.run()
    assert {str(error) for error in caught.value.exceptions} == {"'e0p0'", "'e0p1'"}
    await stop(pump)


async def test_the_drain_waits_for_what_is_in_flight_and_lets_nothing_start(looptime):
    run = bench(prompts=6, in_flight=False, max_inflight=2, generation_seconds=lambda request: 10.0)
    await run.refit.run()
    pump = await start_rollouts(run, 4)
    run.versions.trainer = run.versions.content = 1
    metrics = await run.refit.run()
    assert metrics["timing/train/weight_sync/drain"] == 6
    assert len([name for shard in run.shards for name in shard.started]) == 4
    assert {slot.meta.start_weight for slot in run.buffer if slot.ready} == {0}
    await stop(pump)


# ── a fleet that is watched ─────────────────────────────────────────────────────────────────────────


def watched(**choices):
    """A bench whose fleet has a health ledger."""
    run = bench(**choices)
    run.health = FleetLedger(num_shards=len(run.shards), clock=asyncio.get_running_loop().time)
    run.fleet.ledger = run.health
    run.fleet.__post_init__()
    return run


async def test_sc_6_24_a_drain_does_not_wait_for_rollouts_that_wait_for_this_refit(looptime):
    run = watched(prompts=4, in_flight=False, generation_seconds=lambda request: 10.0, infra_attempts=1)
    await run.refit.run()
    pump = await start_rollouts(run, 4)
    run.fleet.open_recovery()
    for shard in range(2):
        run.health.partial(shard, "aborted")
    await asyncio.sleep(1)
    assert run.rollout.inflight
    run.versions.trainer = run.versions.content = 1
    metrics = await run.refit.run()
    assert metrics["timing/train/weight_sync/drain"] == 0
    assert looptime == 5
    await asyncio.sleep(11)
    assert run.rollout.counters.committed == 4
    await stop(pump)


def settled(run, versions=3):
    run.versions.trainer = run.versions.stamp = versions
    run.refit.between_updates = lambda: True
    for shard in range(len(run.shards)):
        run.health.partial(shard, "aborted")


async def test_a_readmission_carries_the_current_version_once_more():
    run = watched()
    settled(run)
    await run.refit.readmit()
    assert [shard.weight_version for shard in run.health.shards] == [3, 3]
    assert run.health.serving == (0, 1)
    assert run.versions.stamp == 3
    (told,) = run.events.of("refit")
    assert (told["version"], told["readmission"]) == (3, True)


@pytest.mark.parametrize("unsettled", ["training", "not yet refit"])
async def test_a_readmission_never_carries_parameters_of_another_version(unsettled):
    run = watched()
    settled(run)
    if unsettled == "training":
        run.refit.between_updates = lambda: False
    else:
        run.versions.trainer = 4
    await run.refit.readmit()
    assert run.transfer.seen == []
    assert run.health.serving == ()


async def test_a_readmission_that_the_trainer_overtakes_is_nobodys(looptime):
    run = watched(transfer={"seconds": 10.0})
    settled(run)
    asyncio.get_running_loop().call_later(5.0, setattr, run.refit, "between_updates", lambda: False)
    await run.refit.readmit()
    assert looptime == 10
    assert run.health.serving == ()
    assert run.events.of("refit") == []


async def test_sc_6_71_one_refit_at_a_time(looptime):
    run = watched(transfer={"seconds": 10.0})
    settled(run)
    readmission = asyncio.create_task(run.refit.readmit())
    await asyncio.sleep(1)
    await run.refit.readmit()  # one is at work
    assert looptime == 1
    run.versions.trainer = run.versions.content = 4
    await run.refit.run()
    await readmission
    assert looptime == 20
    assert [shard.weight_version for shard in run.health.shards] == [4, 4]
    assert run.versions.stamp == 4


async def test_sc_6_70_what_is_published_of_a_refit():
    run = watched()
    run.health.died(1, "killed")
    metrics = await run.refit.run()
    (told,) = run.events.of("refit")
    assert (told["participants"], told["excluded"], told["rebuilt"], told["retries"]) == ([0], [1], True, 0)
    assert told.keys() >= {"version", "seconds", "bytes", "aborted", "drain_seconds"}
    phases = {"abort", "drain", "reconcile", "transfer", "invalidate"}
    assert metrics.keys() >= {f"timing/train/weight_sync/{phase}" for phase in phases}
    run.fleet.open_recovery()
    assert run.refit.metrics() == {
        "refit/count": 1,
        "refit/failures": 0,
        "refit/retries": 0,
        "refit/rebuilds": 1,
        "refit/excluded_shards": 1,
        "refit/deadline_fired": 0,
        "refit/in_recovery": 1.0,
    }
    for name in {**metrics, **run.refit.metrics(), **run.fleet.metrics()}:
        check_name(name)
