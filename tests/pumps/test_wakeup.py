"""What pumps wait on: wake-ups, the rollout gate, the barrier, deadlines."""

import asyncio

import pytest

from asyncrl_runtime.core.errors import DeadlinePassed
from asyncrl_runtime.pumps.wakeup import Barrier, BarrierTimeout, RolloutGate, Wakeup, deadline

pytestmark = pytest.mark.looptime


async def settle(turns=5):
    for _ in range(turns):
        await asyncio.sleep(0)


# ── wake-up ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_wakeup_wakes_every_waiter_whose_condition_holds():
    wakeup, level = Wakeup(), 0
    done = []

    async def wait_for(bound):
        await wakeup.until(lambda: level >= bound)
        done.append(bound)

    tasks = [asyncio.create_task(wait_for(bound)) for bound in (1, 2, 2, 3)]
    await settle()
    level = 2
    await settle()
    assert done == []
    wakeup.notify()
    await settle()
    assert sorted(done) == [1, 2, 2]
    level = 3
    wakeup.notify()
    await asyncio.gather(*tasks)
    assert done[-1] == 3


async def test_a_condition_that_holds_needs_no_notification(looptime):
    await Wakeup().until(lambda: True)
    assert looptime == 0


async def test_a_notification_between_reading_and_waiting_is_not_lost():
    wakeup = Wakeup()
    seen = wakeup.count
    wakeup.notify()
    await asyncio.wait_for(wakeup.since(seen), 1)
    later = asyncio.create_task(wakeup.since(wakeup.count))
    await settle()
    assert not later.done()
    wakeup.notify()
    await asyncio.wait_for(later, 1)


async def test_a_cancelled_waiter_leaves_nothing_behind():
    wakeup = Wakeup()
    task = asyncio.create_task(wakeup.until(lambda: False))
    await settle()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not wakeup._waiting
    wakeup.notify()


# ── gate ────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_gate_is_closed_until_it_is_opened():
    gate = RolloutGate()
    waiting = asyncio.create_task(gate.until_open())
    await settle()
    assert not waiting.done()
    gate.open()
    await asyncio.wait_for(waiting, 1)
    gate.close()
    assert not gate.is_open
    again = asyncio.create_task(gate.until_open())
    await settle()
    assert not again.done()
    again.cancel()


async def test_a_gate_that_closes_before_its_waiter_runs_keeps_it_waiting():
    gate = RolloutGate()
    waiting = asyncio.create_task(gate.until_open())
    await settle()
    gate.open()
    gate.close()
    await settle()
    assert not waiting.done()
    waiting.cancel()


# ── barrier ─────────────────────────────────────────────────────────────────────────────────────────


async def mutate(barrier, seconds, log, name):
    async with barrier.mutation():
        log.append(f"+{name}")
        await asyncio.sleep(seconds)
        log.append(f"-{name}")


async def cut(barrier, seconds, log, name="cut", timeout=100.0):
    async with barrier.cut(timeout_seconds=timeout):
        log.append(f"+{name}")
        await asyncio.sleep(seconds)
        log.append(f"-{name}")


async def test_mutations_share_and_a_cut_is_alone(looptime):
    barrier, log = Barrier(), []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(mutate(barrier, 2, log, "a"))
        tasks.create_task(mutate(barrier, 3, log, "b"))
        await asyncio.sleep(1)
        tasks.create_task(cut(barrier, 5, log))
        await asyncio.sleep(1)
        tasks.create_task(mutate(barrier, 1, log, "c"))
    assert log == ["+a", "+b", "-a", "-b", "+cut", "-cut", "+c", "-c"]
    assert looptime == 3 + 5 + 1
    assert barrier.version == 3


async def test_sc_4_73_a_cut_is_not_starved_by_mutations_that_never_pause(looptime):
    barrier, log = Barrier(), []

    async def busy(name):
        for _ in range(20):
            await mutate(barrier, 1, log, name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(busy("a"))
        await asyncio.sleep(0.5)
        tasks.create_task(busy("b"))
        await asyncio.sleep(2)
        tasks.create_task(cut(barrier, 1, log))
    before = log[: log.index("+cut")]
    assert len(before) <= 2 * (3 + 3)
    assert looptime < 30


async def test_two_cuts_exclude_each_other(looptime):
    barrier, log = Barrier(), []
    await asyncio.gather(cut(barrier, 2, log, "x"), cut(barrier, 3, log, "y"), mutate(barrier, 1, log, "m"))
    assert looptime == 6
    for name in "xy":
        assert log.index(f"-{name}") == log.index(f"+{name}") + 1


async def test_sc_4_75_the_wait_for_a_cut_is_bounded_and_mutations_go_on_after_it(looptime):
    barrier, log = Barrier(), []
    stuck = asyncio.create_task(mutate(barrier, 1000, log, "stuck"))
    await settle()
    with pytest.raises(
        BarrierTimeout, match=r"waited 7 s for 1 changes.*rolloutCheckpointing.barrierTimeoutSeconds"
    ):
        await cut(barrier, 1, log, timeout=7)
    assert looptime == 7
    await asyncio.wait_for(mutate(barrier, 1, log, "next"), 2)
    stuck.cancel()
    await asyncio.wait([stuck])
    await asyncio.wait_for(cut(barrier, 1, log), 2)


async def test_a_cancelled_waiting_cut_lets_mutations_pass():
    barrier, log = Barrier(), []
    holder = asyncio.create_task(mutate(barrier, 10, log, "a"))
    await settle()
    waiting = asyncio.create_task(cut(barrier, 1, log))
    await settle()
    queued = asyncio.create_task(mutate(barrier, 1, log, "b"))
    await settle()
    assert log == ["+a"]
    waiting.cancel()
    await asyncio.wait_for(queued, 2)
    assert not holder.done()
    await holder


async def test_a_failing_side_gives_the_barrier_back():
    barrier, log = Barrier(), []
    for side in (barrier.mutation(), barrier.cut(timeout_seconds=1)):
        with pytest.raises(KeyError):
            async with side:
                raise KeyError
    assert barrier.version == 1
    await asyncio.wait_for(cut(barrier, 0, log), 1)
    await asyncio.wait_for(mutate(barrier, 0, log, "m"), 1)


async def test_sc_4_72_equal_versions_mean_that_nothing_changed():
    barrier, log = Barrier(), []
    await mutate(barrier, 0, log, "a")
    before = barrier.version
    await cut(barrier, 0, log)
    assert barrier.version == before
    await mutate(barrier, 0, log, "b")
    assert barrier.version == before + 1


# ── deadline ────────────────────────────────────────────────────────────────────────────────────────


async def test_sc_5_28_an_expired_deadline_names_its_setting(looptime):
    with pytest.raises(
        DeadlinePassed, match=r"the engine did not answer within 3 s; raise spec\.x"
    ) as caught:
        async with deadline("the engine", 3, "spec.x"):
            await asyncio.sleep(10)
    assert looptime == 3
    assert (caught.value.what, caught.value.seconds, caught.value.setting) == ("the engine", 3, "spec.x")


async def test_sc_14_48_an_inner_timeout_error_is_not_relabelled():
    with pytest.raises(TimeoutError, match="inner"):
        async with deadline("the engine", 3, "spec.x"):
            raise TimeoutError("inner")


async def test_without_a_bound_there_is_no_deadline(looptime):
    async with deadline("the engine", None, "spec.x"):
        await asyncio.sleep(1e6)
    assert looptime == 1e6
