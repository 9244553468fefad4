"""A weight transfer until it has landed: who takes part, how long it may take, and how it is repaired."""

import asyncio
from dataclasses import replace

import pytest
from support.fleets import Watched, request

from asyncrl_runtime.adapters.scripted_fleet import MIXED, ScriptedSync
from asyncrl_runtime.core.errors import (
    FleetExhausted,
    InfraFailure,
    RefitAborted,
    RefitFailed,
    RefitIncomplete,
    ShardUnavailable,
    TrainerFailure,
)
from asyncrl_runtime.pumps.fleet import Fleet

pytestmark = pytest.mark.looptime


async def at(version, **options):
    """A fleet that serves `version`."""
    bench = Watched(**options)
    await bench.transport.init_communicator()
    await bench.transfer.land(version)
    bench.transport.built_without.clear()
    return bench


def later(seconds, call, *arguments):
    asyncio.get_running_loop().call_later(seconds, call, *arguments)


def causes(error):
    """Messages of an error and of every cause behind it."""
    found = []
    while error is not None:
        found.append(str(error))
        error = error.__cause__
    return found


# ── membership ──────────────────────────────────────────────────────────────────────────────────────


async def test_ex_6_1_sc_14_65_to_14_68_what_landed_is_stamped_on_who_took_part():
    bench = await at(6, shards=4, sync={"seconds": lambda version: 10.0})
    bench.ledger.probe_failed(1, "slow")
    bench.ledger.probe_failed(1, "slow")
    bench.ledger.died(2, "killed")
    bench.fleet.begin_restart(2)
    await bench.generators[2].start()
    bench.ledger.loaded(2)
    bench.ledger.died(3, "killed")
    bench.fleet.begin_restart(3)
    later(5.0, bench.ledger.loaded, 3)
    landed = await bench.transfer.land(7)
    assert landed.excluded == (3,)
    assert bench.states == ["HEALTHY", "SUSPECT", "HEALTHY", "STALE"]
    assert bench.versions == [7, 7, 7, -1]
    assert bench.ledger.shards[1].probe_failures == 2
    assert bench.fleet.metrics()["gen_fleet/stale_serving_shards"] == 0


async def test_sc_14_65_a_participant_that_was_restarted_meanwhile_stays_out():
    bench = await at(6, shards=2, sync={"seconds": lambda version: 10.0})

    def replaced():
        bench.fleet.died(1, "killed", engine=0)
        bench.fleet.begin_restart(1)
        bench.ledger.loaded(1)
        bench.generators[1]._ended = None  # a new engine answers for the old one

    later(5.0, replaced)
    await bench.transfer.land(7)
    assert (bench.states, bench.versions) == (["HEALTHY", "STALE"], [7, -1])


async def test_a_death_that_a_transfer_tells_late_is_not_that_of_the_new_engine():
    bench = await at(
        6,
        on_dead="restart",
        interval=1.0,
        timeout=0.5,
        start_seconds=5.0,
        sync={"seconds": lambda version: 8.0},
    )
    async with bench.pumps():
        await asyncio.sleep(1.5)
        bench.generators[1].frozen = True
        landed = await bench.transfer.land(7)
        assert landed.retries == 1
        assert bench.moves(1) == ["SUSPECT", "DEAD", "RESTARTING"]
        await asyncio.sleep(20)
    assert bench.moves(1) == ["SUSPECT", "DEAD", "RESTARTING", "STALE"]
    assert bench.ledger.shards[1].restart_attempts == 1


async def test_sc_6_31_sc_14_94_a_lost_shard_costs_one_rebuild_not_one_per_step():
    bench = await at(0, shards=3)
    bench.fleet.died(2, "killed", engine=0)
    for version in (1, 2, 3):
        landed = await bench.transfer.land(version)
        assert landed.rebuilt == (version == 1)
    assert bench.transport.built_without == [(2,)]
    assert bench.transfer.counters.rebuilds == 1
    assert bench.transfer.counters.excluded_shards == 1


async def test_a_shard_with_a_new_engine_is_built_in_though_the_absent_are_the_same():
    bench = await at(0, shards=2)
    bench.fleet.died(1, "killed", engine=0)
    bench.fleet.begin_restart(1)
    await bench.generators[1].start()
    bench.ledger.loaded(1)
    assert (await bench.transfer.land(1)).rebuilt
    assert (bench.states, bench.versions) == (["HEALTHY", "HEALTHY"], [1, 1])


async def test_a_refit_waits_for_a_shard_that_comes_back_while_exhaustion_is_deferred(looptime):
    bench = await at(
        0, shards=1, on_dead="restart", start_seconds=30.0, thresholds={"restart_grace_seconds": 90.0}
    )
    async with bench.pumps():
        bench.generators[0].die()
        await asyncio.sleep(1)
        await bench.transfer.land(1)
    assert looptime == pytest.approx(40, abs=1)
    assert (bench.states, bench.versions) == (["HEALTHY"], [1])


async def test_a_refit_for_nobody_is_an_exhausted_fleet():
    bench = await at(0, shards=1)
    bench.fleet.died(0, "killed", engine=0)
    with pytest.raises(FleetExhausted, match="0 of 1 generation shards serve"):
        await bench.transfer.land(1)


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────────


class Endless:
    """A transport whose transfer does not even end when it is cancelled, until its time."""

    is_stale = True

    def __init__(self, seconds):
        self.seconds, self.late = seconds, []

    async def reconcile(self, absent, *, force=False):
        return "rebuilt"

    async def sync_weights(self, version, *, kv_scales=None):
        end = asyncio.get_running_loop().time() + self.seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                self.late.append("cancelled")
        self.late.append(version)
        raise RuntimeError("a communicator that was replaced long ago")

    def stand_down(self):
        pass


async def test_sc_14_85_sc_6_44_an_abandoned_transfer_is_not_waited_for_and_changes_nothing(looptime):
    bench = await at(6, deadline=20.0, max_retries=0)
    bench.transfer.sync = Endless(500.0)
    with pytest.raises(RefitAborted, match=r"no end within 80 s \(spec.*deadlineSeconds plus"):
        await bench.transfer.land(7)
    assert looptime == 80
    before = (bench.states, bench.versions, bench.fleet.recovering, bench.transfer.counters)
    await asyncio.sleep(600)
    assert bench.transfer.sync.late == ["cancelled", 7]
    assert (bench.states, bench.versions, bench.fleet.recovering, bench.transfer.counters) == before
    assert bench.transfer.counters.deadline_fired == 1


async def test_without_a_deadline_there_is_no_bound(looptime):
    bench = await at(0, deadline=None, sync={"seconds": lambda version: 5000.0 * version})
    await bench.transfer.land(1)
    assert looptime == 5000


async def test_a_try_excuses_the_watchdog_for_its_bound():
    bench = await at(0, deadline=20.0)
    assert bench.transfer.busy.until == 80.0


# ── repair ──────────────────────────────────────────────────────────────────────────────────────────


async def test_ex_6_2_an_aborted_refit_is_repaired(looptime):
    bench = await at(6, shards=4, timeout=2.0, deadline=20.0)
    bench.generators[2].frozen = True
    seen = []

    async def note():
        while True:
            await bench.fleet.changed.since(bench.fleet.changed.count)
            seen.append((tuple(bench.states), bench.fleet.recovering))
            bench.fleet.check_exhausted()  # as a tick of the watchdog would

    noting = asyncio.create_task(note())
    landed = await bench.transfer.land(7)
    assert looptime == 20 + 2
    assert bench.moves(2) == ["STALE", "DEAD"]
    assert bench.states == ["HEALTHY", "HEALTHY", "DEAD", "HEALTHY"]
    assert bench.versions == [7, 7, 6, 7]
    assert (("STALE",) * 4, True) in seen
    assert all(recovering for states, recovering in seen if not set(states) & {"HEALTHY"})
    assert not bench.fleet.recovering
    assert (landed.retries, landed.rebuilt, landed.excluded) == (1, True, (2,))
    assert bench.transport.built_without == [(2,)]
    assert not noting.done()
    noting.cancel()
    counters = bench.transfer.counters
    assert (counters.failures, counters.retries, counters.deadline_fired) == (1, 1, 1)
    (failed,) = bench.events.of("refit_failed")
    assert failed["reason"] == "no answer from shards 2"
    assert (failed["acknowledged"], failed["repeated"]) == ([], True)


async def test_ex_6_2_without_retries_the_run_ends():
    bench = await at(6, shards=4, max_retries=0)
    bench.generators[2].frozen = True
    with pytest.raises(RefitAborted, match="weights of version 7 did not land: no answer from shards 2"):
        await bench.transfer.land(7)
    assert not bench.fleet.recovering
    assert bench.states == ["STALE"] * 4  # nobody serves a mixture on the way out either


async def test_ex_6_2_a_second_failure_ends_the_run_with_both_causes():
    bench = await at(6, shards=4, max_retries=1)
    bench.generators[2].frozen = True
    later(22.5, setattr, bench.generators[3], "frozen", True)
    bench.transport.seconds = lambda version: 1.0
    with pytest.raises(RefitFailed, match="in 2 attempts: no answer from shards 2; then") as caught:
        await bench.transfer.land(7)
    chain = "\n".join(causes(caught.value))
    assert chain.index("did not land: no answer from shards 3") < chain.index(
        "did not land: no answer from shards 2"
    )
    assert not bench.fleet.recovering


@pytest.mark.parametrize(
    ("transport", "refusal"),
    [
        ({"rebuildable": False}, "its transport built nothing anew"),
        ({"owns_membership": False}, "its transport has no membership that could be built anew"),
    ],
)
async def test_ex_6_3_sc_14_93_a_refused_rebuild_ends_the_run_and_is_named(transport, refusal):
    bench = await at(6, shards=2, sync=transport)
    bench.generators[1].frozen = True
    with pytest.raises(RefitFailed, match=f"no answer from shards 1, and {refusal}") as caught:
        await bench.transfer.land(7)
    assert isinstance(caught.value.__cause__, RefitAborted)
    assert caught.value.__cause__.problem == "no answer from shards 1"
    assert not bench.fleet.recovering


async def test_sc_14_87_after_an_abort_everything_is_built_anew_though_nobody_left():
    bench = await at(6, shards=2)
    bench.transport.failing = lambda version: bench.transport.transfers == 2
    landed = await bench.transfer.land(7)
    assert bench.transport.built_without == [()]
    assert (landed.retries, bench.states, bench.versions) == (1, ["HEALTHY", "HEALTHY"], [7, 7])


async def test_sc_14_88_the_condemn_round_asks_stale_shards_too_and_every_process():
    bench = await at(6, shards=3, timeout=2.0)
    asked = []

    def pinged(shard):
        async def ping():
            asked.append((shard.index, bench.states[shard.index]))
            await shard.answer()

        return Wrapped(shard, ping=ping)

    bench.fleet.shards = [pinged(shard) for shard in bench.generators]
    bench.generators[1].frozen = True
    await bench.transfer.land(7)
    assert sorted(asked) == [(0, "STALE"), (1, "STALE"), (2, "STALE")]
    assert bench.states == ["HEALTHY", "DEAD", "HEALTHY"]


class Wrapped:
    """A shard of which some methods are others."""

    def __init__(self, shard, **methods):
        self.shard = shard
        self.__dict__ |= methods

    def __getattr__(self, name):
        return getattr(self.shard, name)


async def test_sc_7_55_the_condemn_round_does_not_wait_for_the_probe_clock_nor_for_the_threshold(looptime):
    bench = await at(6, interval=1000.0, timeout=2.0, thresholds={"unhealthy_threshold": 50})
    bench.generators[1].frozen = True
    async with bench.pumps():
        await asyncio.sleep(3)  # the first round is over
        await bench.transfer.land(7)
    assert looptime == 3 + 20 + 2
    assert bench.states == ["HEALTHY", "DEAD"]


async def test_sc_14_89_a_death_after_the_transfer_costs_only_who_did_not_acknowledge():
    bench = await at(6, shards=3, seconds=lambda r: 100.0, sync={"seconds": lambda version: 10.0})
    calls = [asyncio.create_task(bench.fleet.generate(request(name))) for name in "abc"]
    await asyncio.sleep(1)
    later(5.0, bench.generators[1].die)
    landed = await bench.transfer.land(7)
    assert bench.moves(0) == bench.moves(2) == []  # they acknowledged and went on serving
    assert bench.moves(1) == ["DEAD"]
    assert (landed.retries, bench.versions) == (1, [7, 6, 7])
    assert not calls[0].done()
    assert not calls[2].done()
    with pytest.raises(ShardUnavailable):
        await calls[1]
    for call in calls:
        call.cancel()


async def test_sc_14_81_who_may_hold_a_mixture_is_out_of_service_before_anything_else():
    bench = await at(6, shards=2, seconds=lambda r: 500.0)
    calls = [asyncio.create_task(bench.fleet.generate(request(name))) for name in "ab"]
    await asyncio.sleep(1)
    bench.generators[1].frozen = True
    served = []

    class Watching(ScriptedSync):
        async def reconcile(self, absent, *, force=False):
            if force:
                assert [shard.weight_version for shard in bench.generators] == [MIXED, MIXED]
                served.append(bench.ledger.serving)
            return await super().reconcile(absent, force=force)

    bench.transfer.sync = Watching(shards=bench.generators, deadline_seconds=20.0)
    await bench.transfer.land(7)
    assert served == [()]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, ShardUnavailable) and result.uncharged for result in results)


async def test_sc_6_52_requests_inside_the_window_wait_and_go_on_after_it(looptime):
    bench = await at(6, shards=2, seconds=lambda r: 1.0)
    bench.generators[1].frozen = True
    landing = asyncio.create_task(bench.transfer.land(7))
    await asyncio.sleep(20.5)
    assert bench.fleet.recovering
    result = await bench.fleet.generate(request("a"), timeout_seconds=1.5)
    assert looptime == 22 + 1
    assert set(result.weight_versions) == {7}
    await landing


async def test_sc_14_90_stand_down_goes_out_on_a_confirmed_death_only():
    bench = await at(6, shards=3, max_retries=2, sync={"seconds": lambda version: 10.0})
    bench.generators[1].frozen = True
    async with bench.pumps():
        landing = asyncio.create_task(bench.transfer.land(7))
        await asyncio.sleep(9)
        assert bench.transport.stood_down == 0  # silent by now, and suspected
        assert bench.states[1] == "SUSPECT"
        bench.generators[2].die()
        await asyncio.sleep(0.5)
        assert bench.transport.stood_down == 1
        await landing
    count = bench.transport.stood_down
    bench.fleet.died(0, "killed", engine=0)
    assert bench.transport.stood_down == count  # nobody transfers


async def test_sc_6_54_other_failures_are_not_repaired():
    bench = await at(6)

    class Broken(type(bench.transport)):
        async def sync_weights(self, version, *, kv_scales=None):
            raise TrainerFailure("publish_weights", "no memory")

    bench.transfer.sync = Broken(shards=bench.generators)
    with pytest.raises(TrainerFailure, match="no memory"):
        await bench.transfer.land(7)
    assert bench.transfer.counters.failures == 0
    assert bench.states == ["HEALTHY", "HEALTHY"]


async def test_a_transfer_that_is_no_longer_valid_when_it_has_landed_is_recorded_for_nobody():
    bench = await at(6, shards=2)
    bench.ledger.partial(0, "x")
    bench.ledger.partial(1, "x")
    assert await bench.transfer.land(6, still_valid=lambda: False) is None
    assert bench.states == ["STALE", "STALE"]


# ── caches ──────────────────────────────────────────────────────────────────────────────────────────


async def test_sc_6_61_caches_are_recomputed_on_participants_only():
    bench = await at(6, shards=3, invalidates=True)
    bench.fleet.died(2, "killed", engine=0)
    await bench.transfer.land(7)
    assert [shard.invalidated for shard in bench.generators] == [2, 2, 1]


async def test_sc_6_61_a_cache_that_is_not_recomputed_is_a_failed_refit():
    bench = await at(6, shards=2, invalidates=True, max_retries=0)

    async def broken():
        raise InfraFailure("out of memory")

    bench.fleet.shards = [bench.generators[0], Wrapped(bench.generators[1], invalidate_kv_cache=broken)]
    with pytest.raises(RefitIncomplete, match="the cache of shard 1 was not recomputed: out of memory"):
        await bench.transfer.land(7)
    assert bench.states == ["HEALTHY", "STALE"]


async def test_sc_14_89_a_death_in_the_epilogue_enters_the_same_repair():
    bench = await at(6, shards=2, invalidates=True)

    async def dies():
        bench.generators[1].die()
        await bench.generators[1].answer()

    bench.fleet.shards = [bench.generators[0], Wrapped(bench.generators[1], invalidate_kv_cache=dies)]
    landed = await bench.transfer.land(7)
    assert (landed.retries, bench.states) == (1, ["HEALTHY", "DEAD"])


# ── without a watch ─────────────────────────────────────────────────────────────────────────────────


async def unwatched(**options):
    bench = await at(6, **options)
    bench.transfer.fleet = bench.fleet = Fleet(shards=bench.generators)
    return bench


async def test_an_unwatched_shard_that_ends_is_left_out():
    bench = await unwatched(shards=2, sync={"seconds": lambda version: 10.0})
    later(5.0, bench.generators[1].die)
    landed = await bench.transfer.land(7)
    assert landed.report.participants == (0,)
    assert (await bench.transfer.land(8)).excluded == (1,)


async def test_an_unwatched_refit_that_is_cut_off_ends_the_run():
    bench = await unwatched(shards=2)
    bench.generators[1].frozen = True
    with pytest.raises(RefitAborted, match="no answer from shards 1"):
        await bench.transfer.land(7)
    assert bench.transfer.counters.retries == 0


async def test_unwatched_shards_that_all_end_end_the_run():
    bench = await unwatched(shards=2, sync={"seconds": lambda version: 10.0})
    for shard in bench.generators:
        later(5.0, shard.die)
    with pytest.raises(RefitIncomplete, match="shards 0, 1 ended"):
        await bench.transfer.land(7)


async def test_sc_6_41_the_condemn_rounds_bound_is_that_of_a_probe(looptime):
    bench = await at(6, timeout=3.0)
    bench.transfer.settings = replace(bench.transfer.settings, ping_seconds=7.0)
    bench.generators[1].frozen = True
    await bench.transfer.land(7)
    assert looptime == 20 + 7
