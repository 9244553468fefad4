"""Attempts of a group: when they start, whose room they take, what they leave behind."""

import asyncio

import pytest
from support.runs import Run, Script, run_script

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.core.drops import DropPolicy
from asyncrl_runtime.core.errors import DataFailure, InfraFailure, PromptFailed, RunError
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.windowed import Windowed
from asyncrl_runtime.pumps.capture import CaptureSettings

pytestmark = pytest.mark.looptime

REPLACE = DropPolicy(replaces=True)


def position(request):
    return int(request.request_id.split("p")[1].split("_")[0])


def windowed(buffer):
    return Windowed(buffer, window=1)


class Rollouts:
    """Rollouts of a run that can be looked at, one by one, as they start."""

    def __init__(self, run, seen):
        self.inner, self.seen = run.groups.rollouts, seen
        run.groups.rollouts = self

    async def roll_group(self, prompt, **rest):
        self.seen(rest)
        return await self.inner.roll_group(prompt, **rest)


# ── the gate ────────────────────────────────────────────────────────────────────────────────────────


async def test_sc_14_21_no_attempt_starts_between_the_close_of_a_step_and_its_refit():
    # First attempts, retries and spares alike; trainer and shards hold what each is stamped with.
    def failing(request):
        if position(request) == 4:
            return DataFailure("bad")
        return InfraFailure("lost") if "_a0_" in request.request_id and position(request) % 3 == 0 else None

    run = Run(
        Script(
            prompts=24,
            sampler=lambda buffer: InOrder(buffer, window=3),
            sync_seconds=lambda version: 2.0,
            train_seconds=lambda step: 0.25,
            generation_seconds=lambda request: 1.0 + 0.3 * (position(request) % 7),
            failing=failing,
            data_attempts=1,
            max_skipped=1,
            drops=REPLACE,
        )
    )
    begun = []

    def in_step(rest):
        slot = run.rollout.inflight[rest["group_id"]].slot
        current = slot.start_weight == run.versions.trainer == run.shards[0].weight_version
        begun.append((slot.attempt > 0, run.gate.is_open and current))

    Rollouts(run, in_step)
    await run.go()
    (dropped,) = run.events.of("prompt_dropped")
    assert dropped["replaced_by"] is not None
    assert {retried for retried, _ in begun} == {False, True}
    assert all(fits for _, fits in begun)


async def test_sc_14_21_the_gate_is_looked_at_again_behind_the_barrier():
    # The retry at 2 s waits for a cut until 3 s; the gate closes at 2.5 s.
    run = Run(Script(prompts=2, failing=lambda r: InfraFailure("lost") if "_a0_" in r.request_id else None))
    run.gate.open()
    pump = asyncio.create_task(run.rollout.run())
    await asyncio.sleep(1.5)
    async with run.barrier.cut(timeout_seconds=1):
        await asyncio.sleep(1)
        run.gate.close()
        await asyncio.sleep(0.5)
    await asyncio.sleep(1)
    assert run.rollout.inflight == {}
    run.gate.open()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [attempt.slot.attempt for attempt in run.rollout.inflight.values()] == [1, 1]
    await pump


async def test_sc_14_39_a_retry_has_the_stamp_of_its_own_start():
    # Prompt 1 fails until version 1 is there.
    def failing(request):
        return InfraFailure("lost") if position(request) == 1 and run.versions.stamp == 0 else None

    run = Run(
        Script(
            prompts=2,
            groups_per_step=1,
            sampler=lambda buffer: ReadyFirst(buffer, window=1),
            failing=failing,
            infra_attempts=9,
        )
    )
    await run.go()
    retried = run.events.of("group_committed")[1]["meta"]
    assert retried.attempt > 0
    assert (retried.start_weight, set(retried.weight_versions)) == (1, {1})


async def test_sc_14_39_with_a_finished_sibling_a_group_is_as_old_as_that():
    # The second sibling of prompt 1 hangs; its group is relaunched under version 1.
    capture = CaptureSettings(
        granularity=lambda prompt: "sibling",
        finalizers=1,
        finalize_timeout_seconds=None,
        max_generations=None,
    )
    run = Run(
        Script(
            prompts=2,
            groups_per_step=1,
            capture=capture,
            generation_seconds=lambda r: 90.0 if r.request_id.startswith("e0p1_a0_g1") else 1.0,
        )
    )
    going = asyncio.create_task(run.go())
    await asyncio.sleep(5)
    assert await run.rollout.abort(list(run.rollout.inflight.values()), grace_seconds=1) == 1
    await asyncio.sleep(0.5)
    slot = run.rollout.inflight["e0p1"].slot
    assert (slot.attempt, slot.start_weight, run.versions.stamp) == (1, 0, 1)
    await going
    assert run.events.of("group_committed")[1]["meta"].weight_versions == (0, 1)


# ── room ────────────────────────────────────────────────────────────────────────────────────────────


def fail_at(every, error):
    """Fails at prompts 1, 1 + every, … of the first 20."""
    return lambda request: error("bad") if position(request) in range(1, 20, every) else None


def slow_at(every):
    """Takes far too long at the first attempt of the same prompts."""
    return lambda r: 50.0 if position(r) in range(1, 20, every) and "_a0_" in r.request_id else 1.0


ENDS = {
    "selected": ({}, lambda run: run.progress.steps == 12),
    "evicted": (
        {"sampler": lambda buffer: Windowed(buffer, window=0), "train_seconds": lambda step: 4.0},
        lambda run: run.ledger.discarded["evicted"] >= 4,
    ),
    "dropped": (
        {"failing": fail_at(5, DataFailure), "data_attempts": 1, "max_skipped": 4},
        lambda run: run.rollout.counters.data_skipped == {"DataFailure": 4},
    ),
    "lost": (
        {"failing": fail_at(5, InfraFailure), "infra_attempts": 2, "max_consecutive": 4},
        lambda run: run.rollout.counters.infra_dropped == {"InfraFailure": 4},
    ),
    "replaced": (
        {"failing": fail_at(5, DataFailure), "data_attempts": 1, "max_skipped": 4, "drops": REPLACE},
        lambda run: any(drop["replaced_by"] for drop in run.events.of("prompt_dropped")),
    ),
    "aborted": (
        {"sampler": windowed, "generation_seconds": slow_at(5)},
        lambda run: run.ledger.discarded["aborted"] == 4,
    ),
    "relaunched": (
        {"sampler": windowed, "generation_seconds": slow_at(5), "requeue_aborted": True},
        lambda run: run.rollout.counters.relaunched == 4,
    ),
    "filtered": (
        {"sampler": windowed, "discard_group": lambda record: record.prompt.ref.position % 5 == 0},
        lambda run: run.ledger.discarded["filtered"] == 5,
    ),
}


@pytest.mark.parametrize("end", ENDS)
async def test_sc_14_25_room_comes_back_once_however_a_group_ends(end):
    # Of 4 places, one lost for each of 4 groups would leave none.
    choices, happened = ENDS[end]
    run = Run(Script(prompts=24, capacity=4, fraction=0.5, final_partial_step="discard", **choices))
    held = []
    Rollouts(run, lambda rest: held.append(run.buffer.launched >= len(run.rollout.inflight)))
    await asyncio.wait_for(run.go(), 1e5)
    assert happened(run)
    assert all(held)
    assert (run.buffer.free, run.buffer.launched) == (4, 0)
    assert run.balanced


async def test_sc_14_25_a_failure_that_ends_the_run_gives_all_room_back():
    run = Run(Script(prompts=8, capacity=6, failing=fail_at(5, DataFailure), train_seconds=lambda step: 9.0))
    with pytest.raises(PromptFailed):
        await run.go()
    assert (run.buffer.launched, run.buffer.free + run.buffer.ready) == (0, 6)


async def test_sc_14_25_a_task_that_never_began_gives_its_room_back():
    run = Run(Script(prompts=2, capacity=2))
    begun, launched = [], []

    def cancel_all():
        launched.append(run.buffer.launched)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("rollout "):
                task.cancel()

    class CancelledAtOnce(InOrder):
        def admit(self, trainer_version):
            asyncio.get_running_loop().call_soon(cancel_all)
            return super().admit(trainer_version)

    run.rollout.sampler = CancelledAtOnce(run.buffer, window=0)
    Rollouts(run, begun.append)
    run.gate.open()
    await run.rollout.run()
    assert (launched, begun) == ([2], [])
    assert (run.buffer.launched, run.buffer.free, run.rollout.running) == (0, 2, 0)


async def test_sc_14_26_a_failed_attempt_holds_no_slot_while_it_backs_off():
    run = Run(Script(prompts=2, failing=lambda r: InfraFailure("lost") if "_a0_" in r.request_id else None))
    run.gate.open()
    pump = asyncio.create_task(run.rollout.run())
    await asyncio.sleep(0.5)
    assert run.buffer.reserved == 2
    await asyncio.sleep(1)
    assert (len(run.buffer), run.buffer.launched) == (0, 2)
    await pump
    assert run.buffer.ready == 2


# ── aborts ──────────────────────────────────────────────────────────────────────────────────────────


async def test_sc_14_30_an_abort_finds_nothing_to_interrupt_while_groups_commit(monkeypatch):
    put = InProcessPlane.put

    async def slow(*args):
        await asyncio.sleep(5)
        await put(*args)

    monkeypatch.setattr(InProcessPlane, "put", slow)
    run = Run(Script(prompts=2))
    going = asyncio.create_task(run.go())
    await asyncio.sleep(3)
    assert (run.buffer.reserved, run.buffer.ready) == (2, 0)
    assert await run.rollout.abort(list(run.rollout.inflight.values()), grace_seconds=1) == 0
    assert await going == "data_exhausted"
    assert sorted(run.trained_prompts()) == [0, 1]
    assert run.rollout.counters.relaunched == 0


class LateFirstAttempt:
    """The first attempt of prompt 0 does not heed its cancellation, and comes back whole."""

    def __init__(self, run):
        self.inner, self.late = run.groups.rollouts, []
        run.groups.rollouts = self

    async def roll_group(self, prompt, **rest):
        rolling = asyncio.ensure_future(self.inner.roll_group(prompt, **rest))
        if prompt.ref.position or rest["attempt"]:
            return await rolling
        while not rolling.done():
            try:
                await asyncio.shield(rolling)
            except asyncio.CancelledError:
                continue
        self.late.append(rest["group_id"])
        return rolling.result()


async def test_sc_14_31_and_14_179_a_relaunched_group_keeps_its_stamp_and_the_late_attempt_is_nobodys():
    # Attempt 0 would take 100 s; it is given up at 15 s, and attempt 1 takes from then to 65 s.
    run = Run(
        Script(
            prompts=2,
            groups_per_step=1,
            sampler=lambda buffer: InOrder(buffer, window=0),
            generation_seconds=lambda r: 100.0 if r.request_id.startswith("e0p0_a0") else 50.0,
        )
    )
    rollouts = LateFirstAttempt(run)
    going = asyncio.create_task(run.go())
    await asyncio.sleep(5)
    assert await run.rollout.abort(list(run.rollout.inflight.values()), grace_seconds=10) == 1
    await asyncio.sleep(5)
    registered = run.rollout.inflight["e0p0"].slot
    assert (registered.attempt, registered.target_step, run.sampler.dispatch_index) == (1, 0, 0)
    await going
    assert rollouts.late == ["e0p0"]
    assert run.rollout.counters.detached == 1
    assert [row for row in run.trainer.trained if row.startswith("e0p0")] == ["e0p0_a1_g0", "e0p0_a1_g1"]
    assert [step["train/groups_trained"] for step in run.records.steps] == [1, 1]
    assert await run.plane.keys() == frozenset()


# ── what ends the run ───────────────────────────────────────────────────────────────────────────────


async def test_sc_14_45_what_ends_the_run_is_not_retried_whatever_its_cause():
    calls = []

    def end(rest):
        calls.append(rest["group_id"])
        raise RunError("every attempt is spent") from ConnectionError("lost")

    run = Run(Script(prompts=1, groups_per_step=1))
    Rollouts(run, end)
    with pytest.raises(RunError, match="every attempt is spent"):
        await run.go()
    assert calls == ["e0p0"]


async def test_sc_14_46_failures_of_the_data_are_no_redispatches():
    run = await run_script(
        prompts=2, failing=lambda r: DataFailure("bad") if r.request_id.startswith("e0p0_a0") else None
    )
    assert run.rollout.counters.data_retried == {"DataFailure": 1}
    assert run.rollout.counters.redispatched == {}
    assert run.records.steps[0]["rollout/redispatch_total"] == 0
