"""Handing requests to shards that are watched, and what their outcomes say."""

import asyncio

import pytest
from support.fleets import Watched, request

from asyncrl_runtime.core.errors import (
    DataFailure,
    DeadlinePassed,
    FleetExhausted,
    InfraFailure,
    NoServingShard,
    ShardUnavailable,
    WorkerDied,
)
from asyncrl_runtime.core.failures import is_infra
from asyncrl_runtime.core.fleet import FleetRequestRefused
from asyncrl_runtime.pumps.fleet import Fleet

pytestmark = pytest.mark.looptime


def start(bench, *names, **options):
    return [asyncio.create_task(bench.fleet.generate(request(name), **options)) for name in names]


async def test_sc_7_47_the_least_busy_shard_takes_the_request_ties_by_index():
    bench = Watched(shards=3, seconds=lambda r: 9.0 if r.request_id == "b" else 2.0)
    calls = start(bench, *"abcdef")
    await asyncio.sleep(1)
    assert [shard.started for shard in bench.generators] == [["a", "d"], ["b", "e"], ["c", "f"]]
    assert bench.fleet.outstanding == [2, 2, 2]
    await asyncio.sleep(2)  # b still runs
    await bench.fleet.generate(request("g"))
    await bench.fleet.generate(request("h"))
    assert bench.generators[1].started == ["b", "e"]
    await asyncio.gather(*calls)
    assert bench.fleet.outstanding == [0, 0, 0]


async def test_sc_14_79_outstanding_counts_come_back_however_a_request_ends():
    outcomes = {"bad": DataFailure("bad"), "lost": InfraFailure("lost")}
    bench = Watched(
        shards=1, failing=lambda r: outcomes.get(r.request_id), thresholds={"unhealthy_threshold": 9}
    )
    calls = start(bench, "good", "bad", "lost", "gone", "late")
    await asyncio.sleep(0.5)
    assert bench.fleet.outstanding == [5]
    calls[3].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(r).__name__ for r in results] == [
        "GenerationResult",
        "DataFailure",
        "ShardUnavailable",
        "CancelledError",
        "GenerationResult",
    ]
    assert bench.fleet.outstanding == [0]
    assert bench.fleet._calls == [{}]


async def test_sc_7_60_a_failure_of_the_shard_is_reported_and_raised_as_unavailable():
    bench = Watched(shards=1, failing=lambda r: InfraFailure("lost"))
    with pytest.raises(ShardUnavailable, match=r"generation shard 0 \(SUSPECT\): lost") as caught:
        await bench.fleet.generate(request("a"))
    assert is_infra(caught.value)
    assert not caught.value.uncharged
    assert bench.ledger.shards[0].reported_failures == 1


async def test_the_prompts_own_fault_says_nothing_about_the_shard():
    bench = Watched(shards=1, failing=lambda r: DataFailure("too long"))
    with pytest.raises(DataFailure, match="too long"):
        await bench.fleet.generate(request("a"))
    assert bench.states == ["HEALTHY"]
    assert bench.ledger.shards[0].reported_failures == 0


async def test_sc_14_63_a_generation_timeout_is_typed_and_reported(looptime):
    bench = Watched(shards=2, seconds=lambda r: 99.0, thresholds={"unhealthy_threshold": 1})
    with pytest.raises(
        ShardUnavailable, match=r"generation a did not answer within 4 s; raise .*generationTimeoutSeconds"
    ) as caught:
        await bench.fleet.generate(request("a"), timeout_seconds=4.0)
    assert isinstance(caught.value.__cause__, DeadlinePassed)
    assert looptime == 4
    assert bench.generators[0].aborted == ["a"]
    # With nothing outstanding it would be the preferred pick, were it not out of service.
    start(bench, "b")
    await asyncio.sleep(1)
    assert bench.generators[1].started == ["b"]


async def test_sc_7_62_a_cancelled_caller_cancels_the_request_and_reports_nothing():
    bench = Watched(shards=1)
    (call,) = start(bench, "a")
    await asyncio.sleep(0.5)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert bench.generators[0].aborted == ["a"]
    assert bench.ledger.shards[0].reported_failures == 0


async def test_sc_7_61_sc_14_61_successes_on_the_native_path_clear_the_reported_streak():
    outcomes = iter([InfraFailure("1"), None, InfraFailure("2"), None, InfraFailure("3"), None])
    bench = Watched(shards=1, failing=lambda r: next(outcomes))
    for _ in range(3):
        with pytest.raises(ShardUnavailable):
            await bench.fleet.generate(request("a"))
        await bench.fleet.generate(request("b"))
    assert bench.ledger.shards[0].reported_failures == 0
    assert bench.states == ["SUSPECT"]


async def test_sc_7_9_leaving_service_cancels_the_shards_requests_which_are_not_its_failures():
    bench = Watched(shards=2, seconds=lambda r: 50.0)
    calls = start(bench, *"abcd")
    await asyncio.sleep(1)
    bench.fleet.quarantine(0)
    results = await asyncio.gather(calls[0], calls[2], return_exceptions=True)
    assert all(isinstance(result, ShardUnavailable) and is_infra(result) for result in results)
    assert not any(result.uncharged for result in results)
    assert bench.generators[0].aborted == ["a", "c"]
    assert bench.ledger.shards[0].reported_failures == 0
    assert not calls[1].done()
    for call in calls:
        call.cancel()


async def test_sc_6_52_what_is_cancelled_by_a_partial_refit_costs_its_prompt_nothing():
    bench = Watched(shards=1, seconds=lambda r: 50.0)
    (call,) = start(bench, "a")
    await asyncio.sleep(1)
    bench.fleet.open_recovery()
    bench.ledger.partial(0, "aborted")
    with pytest.raises(ShardUnavailable) as caught:
        await call
    assert caught.value.uncharged


async def test_a_result_that_comes_in_the_moment_of_the_loss_is_not_used():
    bench = Watched(shards=1, seconds=lambda r: 1.0)
    (call,) = start(bench, "a")
    asyncio.get_running_loop().call_later(1.0, bench.ledger.partial, 0, "aborted")
    with pytest.raises(ShardUnavailable):
        await call


async def test_a_death_that_a_request_finds_needs_no_threshold():
    bench = Watched(shards=2, seconds=lambda r: 50.0)
    calls = start(bench, *"ab")
    await asyncio.sleep(1)
    bench.generators[0].die()
    with pytest.raises(ShardUnavailable, match="killed by SIGKILL") as caught:
        await calls[0]
    assert isinstance(caught.value.__cause__, WorkerDied)
    assert bench.states == ["DEAD", "HEALTHY"]
    calls[1].cancel()


async def test_a_dead_shards_engine_is_ended_so_that_a_frozen_one_holds_nobody_up():
    bench = Watched(shards=1)
    bench.generators[0].frozen = True
    bench.ledger.condemn(0, "silent")
    assert not bench.generators[0].alive


async def test_sc_7_48_without_a_serving_shard_requests_fail_with_the_state_of_the_fleet():
    bench = Watched(shards=2)
    bench.ledger.died(0, "killed")
    bench.ledger.partial(1, "aborted")
    with pytest.raises(
        NoServingShard, match=r"no generation shard serves \(1 DEAD, 1 STALE\).*killed"
    ) as caught:
        await bench.fleet.generate(request("a"))
    assert is_infra(caught.value)


async def test_sc_7_76_inside_the_recovery_window_requests_wait_with_their_clock_stopped(looptime):
    bench = Watched(shards=1, seconds=lambda r: 3.0)
    bench.fleet.open_recovery()
    bench.ledger.partial(0, "aborted")
    (call,) = start(bench, "a", timeout_seconds=4.0)
    await asyncio.sleep(100)
    bench.ledger.landed(1, [0])
    await call
    assert looptime == 103


async def test_sc_7_76_while_exhaustion_is_deferred_requests_wait():
    bench = Watched(shards=1, thresholds={"restart_grace_seconds": 60.0})
    bench.ledger.died(0, "killed")
    bench.ledger.restarting(0)
    (call,) = start(bench, "a")
    await asyncio.sleep(30)
    assert not call.done()
    await bench.generators[0].start()
    bench.ledger.loaded(0)
    bench.ledger.landed(1, [0])
    await call


async def test_sc_7_76_when_the_grace_is_over_waiting_requests_fail():
    bench = Watched(
        shards=1,
        interval=5.0,
        start_seconds=1000.0,
        on_dead="restart",
        thresholds={"restart_grace_seconds": 12.0},
    )
    bench.ledger.died(0, "killed")
    bench.ledger.restarting(0)
    (call,) = start(bench, "a")
    with pytest.raises(BaseExceptionGroup) as caught:
        async with bench.pumps():
            await asyncio.sleep(30)
    assert caught.group_contains(FleetExhausted)
    with pytest.raises(NoServingShard):
        await call


async def test_sc_14_80_exhaustion_is_not_judged_inside_the_recovery_window():
    bench = Watched(shards=1)
    bench.fleet.open_recovery()
    bench.ledger.partial(0, "aborted")
    bench.fleet.check_exhausted()
    bench.fleet.close_recovery()
    with pytest.raises(FleetExhausted):
        bench.fleet.check_exhausted()


async def test_sc_7_97_every_transition_is_told():
    bench = Watched(shards=1)
    bench.ledger.probe_failed(0, "slow")
    assert bench.events.of("shard_state") == [
        {"shard": 0, "old": "HEALTHY", "new": "SUSPECT", "reason": "slow", "membership_epoch": 0}
    ]


async def test_sc_7_7_the_ledger_has_a_record_for_each_shard():
    bench = Watched(shards=2)
    with pytest.raises(ValueError, match="2 shards, the fleet 1"):
        Fleet(shards=bench.generators[:1], ledger=bench.ledger)


async def test_sc_12_53_the_numbers_of_a_tick():
    bench = Watched(shards=3)
    bench.ledger.landed(4, [0, 1, 2])
    bench.ledger.died(2, "killed")
    bench.ledger.restarting(2)
    bench.ledger.shards[1].weight_version = 3
    (call,) = start(bench, "a")
    await asyncio.sleep(0.5)
    values = bench.fleet.metrics()
    assert values["gen_fleet/shards/HEALTHY"] == 2
    assert values["gen_fleet/shards/RESTARTING"] == 1
    assert values["gen_fleet/serving_shards"] == 2
    assert values["gen_fleet/membership_epoch"] == 1
    assert values["gen_fleet/version_spread"] == 1
    assert values["gen_fleet/stale_serving_shards"] == 1  # SC-7.95: a defect that must show
    assert values["gen_fleet/restart_attempts/2"] == 1
    assert values["gen_fleet/shard_weight_version/0"] == 4
    assert values["gen_fleet/shard_outstanding/0"] == 1
    await call


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_shard_taken_out_by_hand_stays_out_until_it_is_released():
    bench = Watched(shards=2, on_dead="restart")
    bench.fleet.quarantine(1)
    assert bench.states == ["HEALTHY", "DEAD"]
    assert not bench.fleet.restart_due(1)
    with pytest.raises(FleetRequestRefused, match="shard 0 is HEALTHY: only a dead one"):
        bench.fleet.release(0)
    bench.fleet.release(1)
    assert bench.fleet.restart_due(1)
    assert bench.fleet.begin_restart(1)
    assert not bench.fleet.restart_due(1)


async def test_what_cannot_be_asked_of_a_shard_is_refused_with_the_reason():
    bench = Watched(shards=1)
    with pytest.raises(FleetRequestRefused, match="there is no shard 7: the fleet has 1"):
        bench.fleet.quarantine(7)
    bench.fleet.quarantine(0)
    with pytest.raises(FleetRequestRefused, match="shard 0 is DEAD already"):
        bench.fleet.quarantine(0)
    with pytest.raises(FleetRequestRefused, match="onDeadShard is fail_fast"):
        bench.fleet.release(0)
    unwatched = Fleet(shards=bench.generators)
    for ask in (unwatched.quarantine, unwatched.release):
        with pytest.raises(FleetRequestRefused, match="shards are not watched"):
            ask(0)


# ── without a watch ─────────────────────────────────────────────────────────────────────────────────


async def test_sc_7_49_unwatched_shards_take_requests_in_turn_and_nothing_is_reported():
    bench = Watched(shards=2)
    fleet = Fleet(shards=bench.generators)
    for name in "abc":
        await fleet.generate(request(name))
    assert [shard.started for shard in bench.generators] == [["a", "c"], ["b"]]
    assert fleet.metrics() == {}
    fleet.check_exhausted()
