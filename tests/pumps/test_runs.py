"""Whole runs on loop time: what is trained, in what order, and how a run ends."""

import asyncio

import pytest
from support.runs import Run, Script, run_script

from asyncrl_runtime.core.errors import (
    DataExhausted,
    DataFailure,
    InfraFailure,
    NothingToTrain,
    PromptFailed,
    TrainerFailure,
)
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo
from asyncrl_runtime.core.samplers.windowed import Windowed

pytestmark = pytest.mark.looptime

SAMPLERS = {
    "sync": lambda buffer: InOrder(buffer, window=0),
    "in_order": lambda buffer: InOrder(buffer, window=1),
    "weight_fifo": lambda buffer: WeightFifo(buffer, window=1),
    "ready_first": lambda buffer: ReadyFirst(buffer, window=1),
    "windowed": lambda buffer: Windowed(buffer, window=1),
}


def uneven(request):
    """Between 1 and 4 s, different for each prompt."""
    return 1.0 + int(request.request_id.split("p")[1].split("_")[0]) % 4


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("chunk", [1, 4])
async def test_every_prompt_is_trained_once_or_discarded(sampler, chunk):
    run = await run_script(
        prompts=40,
        groups_per_step=4,
        smallest_chunk=chunk,
        sampler=SAMPLERS[sampler],
        capacity=8,
        generation_seconds=uneven,
        train_seconds=lambda step: 0.5,
        final_partial_step="discard",
    )
    trained = run.trained_prompts()
    assert len(trained) == len(set(trained)) == run.ledger.trained
    assert run.balanced
    assert await run.plane.keys() == frozenset()
    assert run.buffer.free == 8
    if sampler in ("sync", "in_order"):
        assert sorted(trained) == list(range(40))
        assert run.progress.steps == 10


async def test_a_synchronous_run_trains_on_its_own_weights_only(looptime):
    run = await run_script(prompts=8, sampler=SAMPLERS["sync"], train_seconds=lambda step: 3.0)
    assert [step["train/staleness/lag_max"] for step in run.records.steps] == [0, 0, 0, 0]
    assert looptime == 4 * (1 + 3)


async def test_lookahead_overlaps_generation_and_training(looptime):
    run = await run_script(prompts=8, train_seconds=lambda step: 1.0)
    assert [step["train/staleness/lag_max"] for step in run.records.steps] == [0, 1, 1, 1]
    assert looptime == 1 + 4


async def test_in_order_trains_steps_in_the_order_of_the_data():
    run = await run_script(prompts=12, generation_seconds=uneven)
    trained = run.trained_prompts()
    assert [sorted(trained[i : i + 2]) for i in range(0, 12, 2)] == [[i, i + 1] for i in range(0, 12, 2)]


async def test_several_epochs_take_each_prompt_once_per_epoch():
    run = await run_script(prompts=5, max_epochs=3, shuffle=True)
    assert run.progress.steps == 6
    assert run.outcome == "data_exhausted"
    assert run.ledger.taken == 12


async def test_max_steps_ends_the_run_and_leaves_the_rest_live():
    run = await run_script(prompts=100, max_steps=3)
    assert (run.outcome, run.progress.steps) == ("max_steps", 3)
    counts = run.ledger.counts(buffered=run.buffer.ready, claimed=0)
    assert counts.balanced
    assert counts.live > 0
    ended = run.ledger.counts(buffered=run.buffer.ready, claimed=0, ended=True)
    assert ended.balanced
    assert ended.discarded_by_cause["left_over"] == counts.live


async def test_ex_5_3_a_streamed_step_is_one_optimizer_step():
    # Ready one after the other: at 1, 2, 3, 4 s; chunks of two.
    run = await run_script(
        prompts=8,
        groups_per_step=4,
        smallest_chunk=2,
        sampler=SAMPLERS["windowed"],
        generation_seconds=lambda r: 1.0 + int(r.request_id.split("p")[1].split("_")[0]),
        max_steps=1,
    )
    assert run.records.steps[0]["train/chunks"] == 2
    assert run.trainer.optimizer_steps == 1


async def test_ex_5_7_sc_14_22_weight_fifo_goes_on_when_the_oldest_weight_cannot_fill_a_step():
    # A retried prompt moves to the next weight, so that weight 0 owns three groups of a step of four.
    failed = set()

    def fail_once(request):
        if request.request_id.startswith("e0p3") and not failed:
            failed.add(request.request_id)
            return InfraFailure("lost")
        return None

    run = await run_script(
        prompts=16,
        groups_per_step=4,
        sampler=lambda buffer: WeightFifo(buffer, window=2),
        capacity=12,
        failing=fail_once,
        max_steps=3,
    )
    assert run.progress.steps == 3


async def test_ex_5_5_data_that_ends_inside_a_step_is_an_error():
    with pytest.raises(DataExhausted, match=r"1/4 prompt groups|2/4 prompt groups"):
        await run_script(
            prompts=6,
            groups_per_step=4,
            sampler=lambda b: StampedShort(b, window=1),
            max_epochs=1,
        )


class StampedShort(InOrder):
    """Loses the last group of its first step, as no built-in sampler does."""

    def _take(self, current, minimum, maximum):
        return super()._take(current, minimum, maximum)[:2] if current == 0 else []


@pytest.mark.parametrize(("policy", "steps"), [("train", 3), ("discard", 2)])
async def test_sc_5_59_sc_14_23_the_remainder_under_an_unstamped_sampler(policy, steps):
    # 12 prompts in steps of 4; one is filtered away, so the last step has 3 groups.
    run = await run_script(
        prompts=12,
        groups_per_step=4,
        sampler=lambda buffer: Windowed(buffer, window=2),
        discard_group=lambda record: record.prompt.ref.position == 5,
        final_partial_step=policy,
        fraction=0.7,
    )
    assert run.outcome == "data_exhausted"
    assert run.progress.steps == steps
    assert run.balanced
    assert run.ledger.discarded["filtered"] == 1
    assert run.ledger.discarded["left_over"] == (0 if policy == "train" else 3)


async def test_sc_5_59_error_names_what_is_there():
    with pytest.raises(DataExhausted, match="3/4 prompt groups and 0 buffered under sampler ready_first"):
        await run_script(
            prompts=8,
            groups_per_step=4,
            smallest_chunk=1,
            sampler=SAMPLERS["ready_first"],
            discard_group=lambda record: record.prompt.ref.position == 5,
        )


async def test_windowed_aborts_what_can_never_be_selected_and_counts_it():
    def slow_first(request):
        return 50.0 if request.request_id.startswith("e0p0_") else 1.0

    run = await run_script(
        prompts=24, sampler=SAMPLERS["windowed"], generation_seconds=slow_first, final_partial_step="discard"
    )
    assert run.rollout.counters.aborted == 1
    assert run.ledger.discarded["aborted"] == 1
    assert any(shard.aborted for shard in run.shards)
    assert run.balanced
    assert sum(step["train/aborted_stale_inflight_groups"] for step in run.records.steps) == 1


async def test_sc_5_39_an_aborted_prompt_is_relaunched_once_where_that_is_asked_for():
    def slow_first(request):
        return 50.0 if request.request_id.startswith("e0p0_a0") else 1.0

    run = await run_script(
        prompts=24,
        sampler=SAMPLERS["windowed"],
        generation_seconds=slow_first,
        requeue_aborted=True,
        capacity=4,
        final_partial_step="discard",
    )
    assert run.rollout.counters.relaunched == 1
    assert 0 in run.trained_prompts()
    assert run.ledger.discarded["aborted"] == 0


async def test_sc_14_26_infra_failures_are_retried_after_a_growing_wait(looptime):
    def fail_thrice(request):
        return InfraFailure("lost") if request.request_id[:7] in ("e0p0_a0", "e0p0_a1", "e0p0_a2") else None

    run = await run_script(prompts=2, failing=fail_thrice)
    assert run.rollout.counters.redispatched.total() == 3
    assert looptime == 4 * 1 + (1 + 2 + 4)
    assert run.trained_prompts() in ([0, 1], [1, 0])


@pytest.mark.parametrize(
    ("error", "attempts", "setting"),
    [
        (InfraFailure("lost"), 5, "maxInfraAttemptsPerPrompt"),
        (DataFailure("bad"), 2, "maxDataAttemptsPerPrompt"),
    ],
)
async def test_a_prompt_that_fails_for_good_ends_the_run(error, attempts, setting):
    with pytest.raises(
        PromptFailed, match=rf"prompt 1 of epoch 0 \('p1'\) failed for good after {attempts} .*{setting}"
    ):
        await run_script(prompts=4, failing=lambda r: error if r.request_id.startswith("e0p1_") else None)


async def test_sc_14_36_one_failing_sibling_cancels_and_drains_the_others():
    def fail(request):
        return DataFailure("bad") if "_a0_g1" in request.request_id and "p0_" in request.request_id else None

    def slow(request):
        return 9.0 if "_g0" in request.request_id else 1.0

    run = await run_script(prompts=2, shards=1, failing=fail, generation_seconds=slow)
    assert run.shards[0].aborted == ["e0p0_a0_g0_t0"]
    assert not run.shards[0].running


async def test_a_generation_deadline_is_an_infra_failure_with_its_setting():
    with pytest.raises(PromptFailed, match="generationTimeoutSeconds"):
        await run_script(
            prompts=2, generation_seconds=lambda r: 99.0, generation_timeout=5.0, infra_attempts=2
        )


async def test_sc_5_68_sc_14_119_a_step_without_a_token_to_train_on_is_an_error():
    run = Run(Script(prompts=4))
    original = run.train.advantages.run

    async def mask_all(meta, columns):
        result = await original(meta, columns)
        result.row_valid_tokens[:] = 0
        return result

    run.train.advantages = Masked(run.train.advantages, mask_all)
    with pytest.raises(NothingToTrain, match="step 0 has no token to train on in 2 prompt groups"):
        await run.go()


class Masked:
    """The advantage stage with another `run`."""

    def __init__(self, inner, run):
        self.fields, self.metrics, self.run = inner.fields, inner.metrics, run


async def test_sc_5_75_a_failed_train_step_is_retried_with_the_same_groups():
    run = await run_script(
        prompts=8, step_retries=1, trainer_failing=lambda call, n: call == "accumulate" and n == 1
    )
    assert run.progress.steps == 4
    assert sorted(run.trained_prompts()) == list(range(8))
    assert len(run.events.of("train_step_retried")) == 1


@pytest.mark.parametrize("chunk", [1, 2])
async def test_sc_5_75_a_step_that_fails_several_times_is_still_applied(chunk):
    # The update fails first, and then the work that is done again before it.
    def failing(call, number):
        return (call, number) in {("finish", 1), ("begin", 2), ("accumulate", 3 if chunk == 2 else 5)}

    run = await run_script(prompts=8, step_retries=3, smallest_chunk=chunk, trainer_failing=failing)
    assert len(run.events.of("train_step_retried")) >= 2
    assert sorted(run.trained_prompts()) == list(range(8))
    assert run.trainer.optimizer_steps == run.progress.policy_optimizer_steps == 4


async def test_without_retries_a_failed_train_step_ends_the_run():
    with pytest.raises(TrainerFailure, match="scripted failure of call 1"):
        await run_script(prompts=8, trainer_failing=lambda call, n: call == "finish" and n == 1)


async def test_sc_10_44_epochs_and_minibatches_make_their_product_of_optimizer_steps():
    run = await run_script(prompts=8, groups_per_step=4, epochs=3, minibatches=2)
    assert (run.progress.steps, run.progress.policy_optimizer_steps) == (2, 12)
    rows = run.trainer.trained[:24]
    assert len(set(rows)) == 8
    assert all(rows.count(row) == 3 for row in set(rows))


async def test_the_drain_gate_lets_no_rollout_straddle_a_refit():
    common = {"prompts": 16, "sampler": SAMPLERS["windowed"], "generation_seconds": uneven, "max_inflight": 4}
    free = await run_script(**common, final_partial_step="discard")
    drained = await run_script(**common, in_flight=False, final_partial_step="discard")
    straddled = "train/staleness/straddled_groups"
    assert sum(step[straddled] for step in free.records.steps) > 0
    assert sum(step[straddled] for step in drained.records.steps) == 0


@pytest.mark.parametrize(("action", "aborted"), [("proceed", 0), ("abort", 1)])
async def test_a_drain_is_bounded(action, aborted):
    def slow_first(request):
        return 50.0 if request.request_id.startswith("e0p2_a0") else 1.0

    run = await run_script(
        prompts=8,
        generation_seconds=slow_first,
        in_flight=False,
        drain_timeout=5.0,
        drain_action=action,
    )
    assert run.refit.drain_timeouts >= 1
    assert run.rollout.counters.aborted == aborted
    assert sorted(run.trained_prompts()) == list(range(8))


async def test_validation_runs_between_steps_and_leaves_the_buffer_alone():
    run = await run_script(
        prompts=8, validation_prompts=6, validation_period=2, reward=lambda episode: float(len(episode.turns))
    )
    assert [("val/accuracy" in step) for step in run.records.steps] == [False, True, False, True]
    assert run.records.steps[1]["val/pass_k"] == 1.0
    assert run.ledger.taken == 8
    assert run.balanced


async def test_early_stop_ends_the_run_when_the_metric_is_reached():
    run = await run_script(prompts=20, validation_prompts=2, validation_period=3, stop_at=0.5)
    assert (run.outcome, run.progress.steps) == ("early_stop", 3)


async def test_a_stop_ends_the_run_after_the_step_without_losing_a_prompt():
    run = Run(Script(prompts=40, train_seconds=lambda step: 2.0))

    async def stop_later():
        await asyncio.sleep(5)
        run.ask_to_stop()

    stopper = asyncio.create_task(stop_later())
    assert await run.go() == "stopped"
    await stopper
    assert 0 < run.progress.steps < 20
    assert run.balanced
