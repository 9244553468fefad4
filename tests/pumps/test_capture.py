"""Token capture: siblings are finished one by one, and what is finished is not generated again."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from support.runs import Run, Script, run_script

from asyncrl_runtime.core.errors import DataFailure, DeadlinePassed, InfraFailure, PromptFailed
from asyncrl_runtime.core.records import Completion, Prompt, PromptRef
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.windowed import Windowed
from asyncrl_runtime.pumps.capture import CaptureSettings, granularity_of
from asyncrl_runtime.pumps.staging import completions_of, staging_columns

pytestmark = pytest.mark.looptime


def capturing(granularity="sibling", finalizers=1, finalize_timeout=None, max_generations=None):
    return CaptureSettings(
        granularity=lambda prompt: granularity,
        finalizers=finalizers,
        finalize_timeout_seconds=finalize_timeout,
        max_generations=max_generations,
    )


class Requests:
    """Counts generations by sibling; the first generation of those that are named fails."""

    def __init__(self, failing=(), error=InfraFailure):
        self.failing, self.error, self.seen = set(failing), error, Counter()

    def __call__(self, request):
        sibling = request.request_id.split("_")[0] + "_" + request.request_id.split("_")[2]
        self.seen[sibling] += 1
        return self.error("lost") if sibling in self.failing and self.seen[sibling] == 1 else None


def one_group(**choices):
    return Script(prompts=1, groups_per_step=1, generations=4, capture=capturing(), **choices)


async def test_only_the_failed_sibling_is_tried_again(looptime):
    # Siblings take 1, 2, 3 and 9 s; the first fails and has its second go beside the others.
    requests = Requests({"e0p0_g0"})
    seconds = {"g0": 1.0, "g1": 2.0, "g2": 3.0, "g3": 9.0}
    run = Run(one_group(failing=requests, generation_seconds=lambda r: seconds[r.request_id.split("_")[2]]))
    assert await run.go() == "data_exhausted"
    assert requests.seen == {"e0p0_g0": 2, "e0p0_g1": 1, "e0p0_g2": 1, "e0p0_g3": 1}
    assert looptime == 9
    assert run.rollout.counters.redispatched == {"InfraFailure": 1}
    assert await run.plane.keys() == frozenset()
    assert run.balanced


async def test_with_prompt_group_all_siblings_start_over():
    requests = Requests({"e0p0_g2"})
    run = Run(
        Script(
            prompts=1, groups_per_step=1, generations=3, failing=requests, capture=capturing("prompt_group")
        )
    )
    assert await run.go() == "data_exhausted"
    assert set(requests.seen.values()) == {2}
    (committed,) = run.events.of("group_committed")
    assert committed["meta"].attempt == 1
    assert await run.plane.keys() == frozenset()


async def test_the_last_sibling_that_fails_leaves_the_others_finished(looptime):
    requests = Requests({"e0p0_g3"})
    seconds = {"g0": 1.0, "g1": 1.0, "g2": 1.0, "g3": 5.0}
    run = Run(one_group(failing=requests, generation_seconds=lambda r: seconds[r.request_id.split("_")[2]]))
    assert await run.go() == "data_exhausted"
    assert requests.seen == {"e0p0_g0": 1, "e0p0_g1": 1, "e0p0_g2": 1, "e0p0_g3": 2}
    assert looptime == 5 + 1 + 5


async def test_siblings_share_the_budget_of_their_prompt():
    def always(request):
        return DataFailure("bad") if "_g0" in request.request_id or "_g1" in request.request_id else None

    run = Run(one_group(failing=always, generation_seconds=lambda r: 1.0 + 9.0 * ("_g3" in r.request_id)))
    with pytest.raises(PromptFailed, match="after 2 attempts \\(data failures\\)"):
        await run.go()
    assert run.balanced


async def test_a_prompt_that_is_given_up_leaves_no_staging_row():
    def first_is_bad(request):
        return (
            DataFailure("bad")
            if request.request_id.startswith("e0p0") and "_g0" in request.request_id
            else None
        )

    run = await run_script(
        prompts=2,
        groups_per_step=2,
        generations=2,
        fraction=0.5,
        data_attempts=1,
        max_skipped=1,
        capture=capturing(),
        failing=first_is_bad,
        generation_seconds=lambda r: 1.0 + ("_g0" in r.request_id),
    )
    assert run.ledger.dropped == 1
    assert await run.plane.keys() == frozenset()


async def test_sc_14_39_rows_carry_the_weights_they_began_under_and_the_group_the_oldest():
    # Prompt 0's first sibling is done under weights 0; its second fails until weights 1 are there.
    def failing(request):
        slow = request.request_id.startswith("e0p1_") and "_g1" in request.request_id
        return InfraFailure("lost") if slow and run.versions.stamp == 0 else None

    run = Run(
        Script(
            prompts=2,
            groups_per_step=1,
            generations=2,
            capture=capturing(),
            failing=failing,
            sampler=lambda buffer: InOrder(buffer, window=1),
            infra_attempts=9,
        )
    )
    assert await run.go() == "data_exhausted"
    meta = run.events.of("group_committed")[1]["meta"]
    assert meta.weight_versions == (0, 1)
    assert meta.start_weight == 0
    assert run.records.steps[1]["train/staleness/lag_max"] == 1
    assert run.records.steps[1]["train/staleness/lag_min"] == 0


async def test_at_most_so_many_siblings_generate_and_groups_overlap():
    most, now = 0, 0

    class Counting:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        async def roll_sibling(self, *args, **rest):
            nonlocal most, now
            now += 1
            most = max(most, now)
            try:
                return await self.inner.roll_sibling(*args, **rest)
            finally:
                now -= 1

    run = Run(
        Script(
            prompts=4,
            groups_per_step=4,
            generations=4,
            capture=capturing(max_generations=5),
            generation_seconds=lambda r: 1.0 + int(r.request_id.split("_g")[1][0]),
        )
    )
    run.groups.rollouts = Counting(run.groups.rollouts)
    assert await run.go() == "data_exhausted"
    assert most == 5


async def test_sc_6_24_a_sibling_that_waits_for_a_token_does_not_hold_up_a_drain():
    run = Run(
        Script(
            prompts=6,
            groups_per_step=1,
            generations=2,
            capture=capturing(max_generations=1),
            in_flight=False,
            sampler=lambda buffer: InOrder(buffer, window=2),
        )
    )
    assert await asyncio.wait_for(run.go(), 1000) == "data_exhausted"
    assert run.progress.steps == 6
    assert run.rollout.counters.redispatched == {}


async def test_sc_5_34_a_group_with_too_few_rows_to_train_on_is_given_up():
    run = Run(
        Script(
            prompts=2,
            groups_per_step=2,
            generations=2,
            capture=capturing(),
            min_valid_row_fraction=0.5,
            max_skipped=1,
            fraction=0.5,
        )
    )
    flag_all_of(run, position=1)
    assert await run.go() == "data_exhausted"
    (dropped,) = run.events.of("prompt_dropped")
    assert "0 of 2 completions" in dropped["reason"]
    assert run.rollout.counters.data_retried == {}
    assert run.rollout.counters.committed == 1
    assert await run.plane.keys() == frozenset()
    assert run.balanced


def flag_all_of(run, *, position):
    inner = run.groups.rollouts

    class Flagging:
        def __getattr__(self, name):
            return getattr(inner, name)

        async def roll_sibling(self, prompt, *args, **rest):
            completion = await inner.roll_sibling(prompt, *args, **rest)
            completion.flagged = prompt.ref.position == position
            return completion

    run.groups.rollouts = Flagging()


async def test_sc_9_71_finished_siblings_that_are_too_old_are_redone():
    # windowed 0: the group is aborted when weights 1 arrive, and its first sibling is of weights 0.
    requests = Requests()
    run = Run(
        Script(
            prompts=2,
            groups_per_step=1,
            generations=2,
            capture=capturing(),
            failing=requests,
            requeue_aborted=True,
            sampler=lambda buffer: Windowed(buffer, window=0),
            generation_seconds=lambda r: 9.0 if r.request_id.startswith("e0p1_a0_g1") else 1.0,
        )
    )
    assert await run.go() == "data_exhausted"
    assert requests.seen["e0p1_g0"] == 2
    assert run.ledger.trained == 2
    assert await run.plane.keys() == frozenset()


async def test_sc_4_12_a_sibling_that_ends_after_its_roll_was_given_up_writes_nothing():
    run = Run(Script(prompts=2, groups_per_step=1, generations=1, capture=capturing(), requeue_aborted=True))
    run.groups.sampler = run.rollout.sampler = run.train.sampler = Windowed(run.buffer, window=0)
    inner, late = run.groups.rollouts, asyncio.Event()

    class Stubborn:
        def __getattr__(self, name):
            return getattr(inner, name)

        async def roll_sibling(self, prompt, *args, **rest):
            if prompt.ref.position == 1 and rest["attempt"] == 0:
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    await late.wait()
            return await inner.roll_sibling(prompt, *args, **rest)

    run.groups.rollouts = Stubborn()
    running = asyncio.create_task(run.go())
    await asyncio.sleep(40)
    late.set()
    await asyncio.sleep(10)
    assert await running == "data_exhausted"
    assert run.rollout.counters.detached == 1
    assert await run.plane.keys() == frozenset()
    assert run.balanced


async def test_an_assembly_that_takes_too_long_is_an_infrastructure_failure():
    run = Run(
        Script(
            prompts=1,
            groups_per_step=1,
            capture=capturing(finalize_timeout=2.0),
            infra_attempts=1,
        )
    )

    async def slow(*args):
        await asyncio.sleep(100)

    class Forgetting(dict):
        """As after a restart: what is in staging has to be read."""

        def __setitem__(self, key, value):
            pass

    run.groups.capture._finished = Forgetting()
    run.groups.capture.plane = type("Slow", (), {"put": run.plane.put, "get": slow, "clear": run.plane.clear})
    with pytest.raises(PromptFailed, match=r"finalizeTimeoutSeconds") as failure:
        await run.go()
    assert isinstance(failure.value.__cause__, DeadlinePassed)


def test_a_completion_survives_its_staging_row():
    done = Completion(
        [1, 2, 3],
        [0, 1, 1],
        [0.0, -0.5, -0.25],
        [-1, 4, 5],
        1,
        "añb",
        0.1,
        {"format": 0.3},
        truncated=True,
        flagged=True,
        turns=2,
        max_turns_reached=True,
        generation_seconds=1.5,
        environment_seconds=0.5,
    )
    assert completions_of(staging_columns(done)) == (done,)


@pytest.mark.parametrize(
    ("agent", "task", "expected"),
    [
        (None, None, "sibling"),
        (None, "maths", "prompt_group"),
        ("tools", "maths", "sibling"),
        ("x", "y", "sibling"),
    ],
)
def test_sc_9_70_agent_then_task_then_default(agent, task, expected):
    resolve = granularity_of("sibling", {"maths": "prompt_group"}, {"tools": "sibling"})
    extra = {} if agent is None else {"agent_ref": {"name": agent}}
    prompt = Prompt(PromptRef(0, 0), ({"role": "user", "content": "?"},), task=task, extra=extra)
    assert resolve(prompt) == expected


async def test_sc_14_169_a_group_keeps_the_granularity_of_its_first_attempt():
    # The configuration changes while its second sibling hangs; the group is relaunched twice.
    asked = ["sibling"]
    requests = Requests()
    settings = replace(capturing(), granularity=lambda prompt: asked[0])
    run = Run(
        Script(
            prompts=1,
            groups_per_step=1,
            generations=2,
            capture=settings,
            failing=requests,
            generation_seconds=lambda r: 1.0 if "_g0" in r.request_id or "_a2_" in r.request_id else 90.0,
        )
    )
    going = asyncio.create_task(run.go())
    await asyncio.sleep(5)
    asked[0] = "prompt_group"
    for _ in range(2):
        assert await run.rollout.abort(list(run.rollout.inflight.values()), grace_seconds=1) == 1
        await asyncio.sleep(5)
    assert await going == "data_exhausted"
    assert requests.seen == {"e0p0_g0": 1, "e0p0_g1": 1}  # what was aborted is not counted
