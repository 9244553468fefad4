"""Validation: when, on what, and what follows from it."""

import asyncio
from dataclasses import replace

import pytest
from support.runs import Run, Script

from asyncrl_runtime.core.errors import DataFailure, InfraFailure, ShardUnavailable, ValidationFailed
from asyncrl_runtime.core.records import Completion, GroupRecord, Prompt, PromptRef
from asyncrl_runtime.pumps.validation import validation_metrics

pytestmark = pytest.mark.looptime


def validator(*, prompts=6, reward=lambda episode: 1.0, failing=lambda request: None, **settings):
    run = Run(Script(validation_prompts=prompts, reward=reward, failing=failing))
    run.validator.settings = replace(run.validator.settings, **settings)
    return run.validator, run


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"period_steps": 0}, []),
        ({"period_steps": 2}, [2, 4, 6]),
        ({"period_steps": 2, "start_at": 4}, [4, 6]),
        ({"period_steps": 4}, [4]),
        ({"period_steps": 2, "at_start": True}, [0, 2, 4, 6]),
        ({"period_steps": 0, "at_end": True}, [6]),
        ({"period_steps": 4, "at_end": True}, [4, 6]),
        ({"period_steps": 4, "start_at": 100, "at_end": True}, [6]),
    ],
)
def test_sc_5_90_when_validation_is_due(settings, due):
    measured, _ = validator(**settings)
    assert [step for step in range(7) if measured.due(step, last=step == 6)] == due


def test_sc_5_90_without_a_validation_set_it_is_never_due():
    measured, _ = validator(prompts=None, period_steps=1, at_start=True, at_end=True)
    assert not any(measured.due(step, last=True) for step in range(3))


async def test_sc_5_90_a_step_is_validated_once(looptime):
    measured, _ = validator(period_steps=1, at_end=True)
    assert measured.due(3, last=False)
    await measured.run(3)
    assert not measured.due(3, last=True)
    assert measured.due(4, last=False)


async def test_prompts_are_rolled_out_in_batches_with_settings_of_their_own(looptime):
    measured, run = validator(prompts=10, batch_size=4, max_samples=9, generations=3)
    values = await measured.run(5)
    assert looptime == 3
    started = [name for shard in run.shards for name in shard.started]
    assert len(started) == 9 * 3
    assert {name.split("_")[0] for name in started} == {f"val5p{position}" for position in range(9)}
    assert (values["accuracy"], values["pass_k"], values["prompts"], values["seconds"]) == (
        1.0,
        1.0,
        9.0,
        3.0,
    )
    assert (run.buffer.launched, len(run.buffer), run.ledger.taken) == (0, 0, 0)


async def test_sc_5_93_accuracy_is_a_mean_and_pass_k_a_share():
    def reward(episode):
        sibling = int(episode.episode_id.split("_g")[1])
        return 1.0 if episode.prompt.ref.position == 0 and sibling == 0 else 0.0

    measured, _ = validator(prompts=4, reward=reward, generations=2)
    values = await measured.run(1)
    assert (values["accuracy"], values["pass_k"]) == (1 / 8, 1 / 4)


def test_pass_k_needs_several_generations():
    done = Completion([1], [1], [0.0], [0], 0, "", 1.0)
    record = GroupRecord(Prompt(PromptRef(0, 0), ({"role": "user", "content": "x"},)), (done,))
    assert "pass_k" not in validation_metrics([record])
    assert validation_metrics([record])["accuracy"] == 1.0


@pytest.mark.parametrize("error", [DataFailure("bad answer"), InfraFailure("shard lost")])
async def test_sc_5_96_a_failure_is_reported_and_the_run_goes_on(error):
    failing = lambda request: error if "p3_" in request.request_id else None  # noqa: E731
    measured, run = validator(failing=failing, failure_action="warn")
    assert await measured.run(2) == {}
    assert run.events.of("validation_failed") == [{"step": 2, "reason": str(error)}]
    assert measured.latest == {}
    assert not measured.due(2, last=False)
    assert sum(shard.running for shard in run.shards) == 0


async def test_sc_5_96_a_failure_ends_the_run_where_that_is_asked_for():
    failing = lambda request: DataFailure("bad answer") if "p3_" in request.request_id else None  # noqa: E731
    measured, run = validator(failing=failing, failure_action="abort")
    with pytest.raises(ValidationFailed, match=r"after step 2 failed: bad answer; .*failureAction to warn"):
        await measured.run(2)
    assert len(run.events.of("validation_failed")) == 1


async def test_a_defect_in_validation_is_not_taken_for_a_failed_rollout():
    measured, _ = validator(failing=lambda request: KeyError("defect"), failure_action="warn")
    with pytest.raises(ExceptionGroup) as caught:
        await measured.run(2)
    assert isinstance(caught.value.exceptions[0], KeyError)


@pytest.mark.parametrize(
    ("higher", "threshold", "reached"),
    [(True, 0.5, True), (True, 0.6, False), (False, 0.5, True), (False, 0.4, False)],
)
async def test_sc_5_95_early_stop(higher, threshold, reached):
    measured, _ = validator(
        reward=lambda episode: 0.5,
        stop_at_metric="accuracy",
        stop_at_threshold=threshold,
        higher_is_better=higher,
    )
    assert not measured.reached()
    await measured.run(1)
    assert measured.reached() is reached


async def test_sc_5_91_validation_runs_on_the_new_weights_with_the_gate_closed():
    run = Run(Script(prompts=8, validation_prompts=4, validation_period=1, sync_seconds=lambda version: 0.5))
    seen = []
    inner = run.validator.rollouts

    class Spy:
        async def roll_group(self, prompt, **rest):
            seen.append((run.gate.is_open, run.versions.stamp, rest["group_id"].split("p")[0]))
            return await inner.roll_group(prompt, **rest)

    run.validator.rollouts = Spy()
    await asyncio.wait_for(run.go(), 1e6)
    assert seen == [(False, step, f"val{step}") for step in range(1, 5) for _ in range(4)]
    assert [step["val/accuracy"] for step in run.records.steps] == [1.0] * 4


@pytest.mark.parametrize(("losses", "measured"), [(2, True), (3, False)])
async def test_sc_8_68_a_lost_shard_does_not_fail_the_pass(losses, measured):
    measurer, run = validator(prompts=2, failure_action="abort")
    inner, lost = run.validator.rollouts, []

    class Losing:
        async def roll_group(self, prompt, **rest):
            if prompt.ref.position == 1 and len(lost) < losses:
                lost.append(rest["attempt"])
                raise ShardUnavailable(1, "DEAD", "killed")
            return await inner.roll_group(prompt, **rest)

    measurer.rollouts = Losing()
    if measured:
        assert (await measurer.run(5))["prompts"] == 2
    else:
        with pytest.raises(ValidationFailed, match="killed"):
            await measurer.run(5)
    assert lost == list(range(losses))
