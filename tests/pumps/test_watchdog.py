"""What the watchdog calls a stall, what it only tells, and what it never waits for."""

import asyncio

import pytest
from support.runs import Run, Script

from asyncrl_runtime.pumps.busy import Busy
from asyncrl_runtime.pumps.supervisor import supervise
from asyncrl_runtime.pumps.watchdog import EnvironmentUnhealthy, Stalled, Watchdog, WatchdogSettings

pytestmark = pytest.mark.looptime


class Ticks:
    def __init__(self):
        self.records = []

    def log(self, record):
        self.records.append(record)


class Health:
    """An environment that answers as the test says."""

    name = "judge"

    def __init__(self, answer):
        self.answer = answer

    async def health(self):
        return await self.answer()


async def well():
    return None


def watched(script, *, action="abort", timeout=10.0, interval=1.0, health=well, checks=True):
    run = Run(script)
    run.ticks, run.dumps = Ticks(), []
    run.watchdog = Watchdog(
        settings=WatchdogSettings(
            interval_seconds=interval,
            stall_timeout_seconds=timeout,
            action=action,
            checks_environments=checks,
        ),
        train=run.train,
        environment=Health(health),
        busy=Busy(timeout),
        metrics=run.ticks,
        observer=run.events,
        wall_clock=lambda: 0.0,
        dump=lambda reason: run.dumps.append(reason) or f"stall-{len(run.dumps)}.txt",
    )
    return run


async def go(run):
    await run.refit.run()
    beside = {"watchdog": run.watchdog.run(), "rollout": run.rollout.run()}
    return await asyncio.wait_for(supervise(run.train.run(), beside), 1000)


def never(request):
    return 1e6


async def test_a_run_in_which_nothing_moves_ends_with_what_it_holds(looptime):
    run = watched(Script(prompts=4, generation_seconds=never))
    with pytest.raises(Stalled) as stall:
        await go(run)
    assert looptime == 11
    assert (stall.value.inflight, stall.value.committed, stall.value.step) == (4, 0, 0)
    assert "stallTimeoutSeconds 10" in str(stall.value)
    assert "stall-1.txt" in str(stall.value)


async def test_sc_14_100_a_wedge_with_nothing_in_flight_is_a_stall():
    run = watched(Script(prompts=4, max_inflight=0))
    with pytest.raises(Stalled) as stall:
        await go(run)
    assert stall.value.inflight == 0


async def test_under_warn_a_stall_is_told_each_tick_dumped_once_and_forgotten_when_things_move():
    run = watched(Script(prompts=4, generation_seconds=lambda r: 14.5), action="warn")
    assert await go(run) == "data_exhausted"
    told = run.events.of("stalled")
    assert [event["idle_seconds"] for event in told] == [11.0, 12.0, 13.0, 14.0]
    assert len(run.dumps) == 1
    stalled = [record.values["watchdog/stalled"] for record in run.ticks.records]
    assert stalled == [0] * 10 + [1] * 4 + [0] * (len(stalled) - 14)


async def test_sc_14_101_a_step_is_progress_without_a_commit():
    # All groups are there after a second; then each step trains for eight.
    run = watched(Script(prompts=8, groups_per_step=2, train_seconds=lambda s: 8.0, sampler=windowed))
    assert await go(run) == "data_exhausted"
    assert run.progress.steps == 4


def windowed(buffer):
    from asyncrl_runtime.core.samplers.windowed import Windowed

    return Windowed(buffer, window=8)


async def test_sc_14_102_a_finished_run_is_no_stall():
    run = watched(Script(prompts=8, max_steps=1))
    await go(run)
    await run.watchdog.tick()
    run.watchdog._moved_at = asyncio.get_running_loop().time() - 1000
    await run.watchdog.tick()
    assert run.events.of("stalled") == []


async def test_sc_8_3_what_has_a_bound_of_its_own_is_excused_until_then():
    run = watched(Script(prompts=2, generation_seconds=lambda r: 40.0))
    run.watchdog.busy.for_seconds(35)
    assert await go(run) == "data_exhausted"


async def test_a_bound_of_none_excuses_nothing():
    run = watched(Script(prompts=2, generation_seconds=never))
    run.watchdog.busy.for_seconds(None)
    with pytest.raises(Stalled):
        await go(run)


async def test_sc_8_7_less_than_a_second_works(looptime):
    run = watched(Script(prompts=2, generation_seconds=never), timeout=0.3, interval=0.1)
    with pytest.raises(Stalled):
        await go(run)
    assert looptime == pytest.approx(0.4)


async def test_sc_14_103_an_unhealthy_environment_is_told_and_ends_the_run_only_where_asked():
    async def ill():
        return "no licence"

    run = watched(Script(prompts=2, generation_seconds=lambda r: 3.5), action="warn", health=ill)
    assert await go(run) == "data_exhausted"
    assert run.events.of("environment_unhealthy") == [{"environment": "judge", "reason": "no licence"}]
    assert [record.values["env/judge/healthy"] for record in run.ticks.records] == [0, 0, 0]

    run = watched(Script(prompts=2, generation_seconds=never), health=ill)
    with pytest.raises(EnvironmentUnhealthy, match="judge is not well: no licence"):
        await go(run)


async def test_sc_14_104_a_hung_health_check_is_an_answer_and_stops_nothing():
    run = watched(Script(prompts=2, generation_seconds=never), action="warn", health=asyncio.Event().wait)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(go(run), 20)
    (told,) = run.events.of("environment_unhealthy")
    assert told["reason"] == "its health check did not answer within 1 s"
    assert run.watchdog.ticks >= 10
    assert run.events.of("stalled")


async def test_sc_8_13_the_check_can_be_left_out():
    async def broken():
        raise AssertionError("asked")

    run = watched(Script(prompts=2, generation_seconds=lambda r: 3.5), health=broken, checks=False)
    assert await go(run) == "data_exhausted"
    assert all("env/judge/healthy" not in record.values for record in run.ticks.records)


async def test_a_health_check_that_raises_is_told():
    async def broken():
        raise KeyError("gone")

    run = watched(Script(prompts=2, generation_seconds=lambda r: 3.5), action="warn", health=broken)
    assert await go(run) == "data_exhausted"
    assert "raised KeyError" in run.events.of("environment_unhealthy")[0]["reason"]


async def test_sc_14_181_ticks_of_one_step_have_indices_of_their_own():
    run = watched(Script(prompts=2, generation_seconds=lambda r: 5.5))
    await go(run)
    assert [record.index for record in run.ticks.records] == [1, 2, 3, 4, 5]
    assert {record.axis for record in run.ticks.records} == {"tick"}
    held = [record.values["rollout/inflight"] for record in run.ticks.records]
    assert held == [2] * 5


async def test_sc_8_47_the_fleet_is_judged_after_the_numbers_are_out():
    run = watched(Script(prompts=2, generation_seconds=never))

    def gone():
        raise RuntimeError("no shard is left")

    run.watchdog.check_fleet = gone
    with pytest.raises(RuntimeError):
        await go(run)
    assert len(run.ticks.records) == 1
