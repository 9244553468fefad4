"""Probing at a fixed rate, deaths heard of at once, restarts in the background."""

import asyncio

import pytest
from support.fleets import Watched, request

from asyncrl_runtime.core.errors import FleetExhausted, InfraFailure, ShardUnavailable
from asyncrl_runtime.pumps.supervisor import cause_of

pytestmark = pytest.mark.looptime


async def test_sc_7_50_probes_come_at_a_fixed_rate_however_long_a_round_takes():
    bench = Watched(shards=2, interval=5.0, timeout=2.0)
    bench.generators[1].frozen = True  # every round takes its whole time-out
    async with bench.pumps():
        await asyncio.sleep(9.5)
        assert bench.generators[0].probes == 2
        await asyncio.sleep(1.0)
        assert bench.generators[0].probes == 3


async def test_sc_14_70_a_round_takes_one_timeout_whatever_the_size_of_the_fleet(looptime):
    bench = Watched(shards=8, timeout=2.0, thresholds={"min_healthy_shards": 8})
    for shard in bench.generators:
        shard.frozen = True
    await bench.probe.round()
    assert looptime == 2
    assert bench.states == ["SUSPECT"] * 8


async def test_a_shard_that_ignores_the_end_of_its_probe_does_not_hold_the_round_up(looptime):
    bench = Watched(shards=2, timeout=2.0)

    class Stubborn:
        async def probe(self):
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    await asyncio.sleep(500)
                    raise

    bench.fleet.shards = [bench.generators[0], Stubborn()]
    await bench.probe.round()
    assert looptime == 2
    assert bench.states == ["HEALTHY", "SUSPECT"]
    await asyncio.sleep(600)


async def test_sc_7_53_a_frozen_shard_is_found_within_interval_times_threshold_plus_timeout(looptime):
    bench = Watched(shards=2, interval=5.0, timeout=2.0)
    async with bench.pumps():
        await asyncio.sleep(5.5)
        bench.generators[1].frozen = True
        began = asyncio.get_running_loop().time()
        await bench.fleet.changed.until(lambda: bench.states[1] == "DEAD")
        assert asyncio.get_running_loop().time() - began <= 5.0 * 3 + 2.0
    assert bench.moves(1) == ["SUSPECT", "DEAD"]
    assert bench.ledger.last_error == "no answer within 2 s"


async def test_a_shard_that_answers_and_makes_no_token_is_found():
    bench = Watched(shards=2, seconds=lambda r: 1.0)
    bench.generators[0].hung = True
    calls = [asyncio.create_task(bench.fleet.generate(request(name))) for name in "ab"]
    async with bench.pumps():
        await asyncio.sleep(16)
        assert bench.states == ["DEAD", "HEALTHY"]
    assert "it runs 1 requests, and made no token in 5 s" in bench.ledger.last_error
    with pytest.raises(ShardUnavailable):
        await calls[0]
    await calls[1]


async def test_an_idle_shard_that_makes_no_token_is_well():
    bench = Watched(shards=1)
    bench.generators[0].hung = True
    async with bench.pumps():
        await asyncio.sleep(60)
    assert bench.moves(0) == []


async def test_sc_14_60_clean_probes_do_not_save_a_wedged_shard():
    bench = Watched(shards=2, failing=lambda r: InfraFailure("lost") if r.seed == 1 else None)
    async with bench.pumps():
        for _ in range(3):
            await asyncio.sleep(12)  # two clean probes in between
            with pytest.raises(ShardUnavailable):
                await bench.fleet.generate(request("a", seed=1))
    assert bench.states == ["DEAD", "HEALTHY"]
    assert bench.ledger.shards[0].probe_failures == 0


async def test_sc_7_18_the_end_of_an_engine_is_heard_of_at_once_without_a_request_or_a_probe():
    bench = Watched(shards=2, interval=1000.0)
    async with bench.pumps():
        await asyncio.sleep(10)
        bench.generators[1].die()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.states == ["HEALTHY", "DEAD"]


async def test_sc_7_51_a_stale_shard_is_asked_and_only_its_death_counts():
    bench = Watched(shards=2, timeout=2.0)
    bench.ledger.partial(1, "aborted")
    bench.generators[1].frozen = True
    for _ in range(5):
        await bench.probe.round()
    assert bench.generators[1].probes == 5
    assert bench.states == ["HEALTHY", "STALE"]
    bench.generators[1].die()
    await bench.probe.round()
    assert bench.states == ["HEALTHY", "DEAD"]


async def test_sc_14_64_dead_shards_are_not_asked():
    bench = Watched(shards=2)
    bench.ledger.condemn(1, "silent")
    await bench.probe.round()
    assert bench.generators[1].probes == 0
    assert bench.states == ["HEALTHY", "DEAD"]


async def test_sc_7_52_an_exception_is_a_failed_probe_with_its_text(monkeypatch):
    bench = Watched(shards=1)

    async def broken():
        raise RuntimeError("no such method")

    monkeypatch.setattr(type(bench.generators[0]), "probe", lambda shard: broken())
    await bench.probe.round()
    assert bench.ledger.shards[0].last_error == "no such method"


async def test_sc_7_54_whatever_ends_the_probe_task_reaches_the_run():
    bench = Watched(shards=1)
    bench.probe.after_round = lambda: 1 / 0
    with pytest.raises(BaseExceptionGroup) as caught:
        await bench.probe.run()
    assert isinstance(cause_of(caught.value), ZeroDivisionError)


async def test_sc_14_77_too_few_shards_end_the_run():
    bench = Watched(shards=2, thresholds={"min_healthy_shards": 2})
    with pytest.raises(BaseExceptionGroup) as caught:
        async with bench.pumps():
            bench.generators[0].die()
            await asyncio.sleep(30)
    error = cause_of(caught.value)
    assert isinstance(error, FleetExhausted)
    assert "1 of 2 generation shards serve (1 HEALTHY, 1 DEAD)" in str(error)


# ── restarts ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["fail_fast", "quarantine"])
async def test_sc_7_70_and_7_71_a_dead_shard_is_not_started_by_itself(policy):
    bench = Watched(shards=2, on_dead=policy)
    async with bench.pumps():
        bench.generators[1].die()
        await asyncio.sleep(1000)
    assert bench.moves(1) == ["DEAD"]


async def test_sc_7_71_a_release_starts_a_quarantined_shard_once():
    bench = Watched(shards=2, on_dead="quarantine", backoff=10.0, start_seconds=30.0)
    async with bench.pumps():
        bench.generators[1].die()
        await asyncio.sleep(100)
        bench.fleet.release(1)
        await asyncio.sleep(39)
        assert bench.states[1] == "RESTARTING"
        await asyncio.sleep(2)
        assert bench.states[1] == "STALE"
        bench.generators[1].die()
        await asyncio.sleep(1000)
    assert bench.moves(1) == ["DEAD", "RESTARTING", "STALE", "DEAD"]
    assert bench.ledger.shards[1].restart_attempts == 1


async def test_sc_7_72_a_restart_waits_for_its_backoff_and_its_engine_is_stale(looptime):
    bench = Watched(shards=2, on_dead="restart", backoff=10.0, start_seconds=30.0)
    bench.ledger.landed(3, [0, 1])
    async with bench.pumps():
        bench.generators[1].die()
        await bench.fleet.changed.until(lambda: bench.states[1] == "STALE")
        assert asyncio.get_running_loop().time() == pytest.approx(40)
        assert bench.versions == [3, -1]
        bench.generators[1].die()  # attempt 2 waits twice as long
        await bench.fleet.changed.until(lambda: bench.states[1] == "RESTARTING")
        await bench.fleet.changed.until(lambda: bench.states[1] == "STALE")
        assert asyncio.get_running_loop().time() == pytest.approx(40 + 20 + 30)


async def test_sc_7_73_a_restart_holds_no_probe_up():
    bench = Watched(shards=2, on_dead="restart", start_seconds=500.0)
    async with bench.pumps():
        bench.generators[1].die()
        await asyncio.sleep(101)
        assert bench.generators[0].probes == 21
        assert bench.states[1] == "RESTARTING"


async def test_an_engine_that_does_not_come_up_is_tried_again_until_the_attempts_are_spent():
    bench = Watched(
        shards=2,
        on_dead="restart",
        start_failing=lambda number: InfraFailure("no memory") if number > 1 else None,
        thresholds={"max_restart_attempts": 2},
    )
    async with bench.pumps():
        bench.generators[1].die()
        await asyncio.sleep(1000)
    assert bench.moves(1) == ["DEAD", "RESTARTING", "DEAD", "RESTARTING", "DEAD", "RETIRED"]
    assert bench.ledger.shards[1].restart_attempts == 3
    assert "no memory" in bench.ledger.shards[1].last_error


async def test_the_end_of_the_old_engine_is_not_the_death_of_the_new_one():
    bench = Watched(shards=2, on_dead="restart")
    async with bench.pumps():
        bench.generators[1].frozen = True
        await asyncio.sleep(200)
    assert bench.moves(1) == ["SUSPECT", "DEAD", "RESTARTING", "STALE"]


async def test_readmission_asks_only_when_nobody_serves_and_somebody_waits_for_weights():
    bench = Watched(shards=2)
    asked = []

    async def readmit():
        asked.append(bench.states)

    pump = asyncio.create_task(bench.readmission(readmit).run())
    await asyncio.sleep(1)
    bench.ledger.partial(0, "aborted")
    await asyncio.sleep(1)
    assert asked == []
    bench.ledger.died(1, "killed")
    await asyncio.sleep(1)
    assert asked == [["STALE", "DEAD"]]
    bench.fleet.changed.notify()  # as each round of probes does
    await asyncio.sleep(1)
    assert len(asked) == 2
    pump.cancel()
    await asyncio.wait([pump])
