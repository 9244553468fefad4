"""Simulated runs on the virtual clock: what they measure, and that both ways to serve agree."""

import pytest
from support.jobs import job_spec

from asyncrl_runtime.adapters.virtual_clock import Stalled, run_virtual
from asyncrl_runtime.app.simulate.durations import read_duration
from asyncrl_runtime.app.simulate.faults import read_faults
from asyncrl_runtime.app.simulate.figures import figures_of
from asyncrl_runtime.app.simulate.run import Durations, Simulation
from asyncrl_runtime.app.simulate.shards import SimulatedStall
from asyncrl_runtime.core.errors import FleetExhausted, PromptFailed, RefitAborted, TrainerFailure

TAIL = "lognormal:median=8,p99=60"


def spec_of(sampler="in_order", window=1, steps=30, groups=8, inflight=None, **async_rl):
    knob = "maxLookaheadVersions" if sampler == "in_order" else "maxStalenessVersions"
    settings = {
        "sampler": {"name": sampler, knob: window},
        "maxInflightPrompts": inflight or groups * (window + 1),
        **async_rl,
    }
    return job_spec(
        groups_per_step=groups,
        generations=4,
        maxNumSteps=steps,
        async_rl=settings,
        checkpointing={"enabled": False},
    )


def simulate(*, generation=TAIL, train="10", transfer="0", fail=(), warm_up=0, **choices):
    options = {name: choices.pop(name) for name in ("prompts", "seed", "by_request") if name in choices}
    simulation = Simulation(
        spec=choices.pop("spec", None) or spec_of(**choices),
        durations=Durations(
            generation=read_duration("", generation),
            training=read_duration("", train),
            refit=read_duration("", transfer),
        ),
        scenario=read_faults(fail),
        warm_up_steps=warm_up,
        **options,
    )
    run_virtual(simulation.run())
    return simulation


def test_constant_durations_give_the_arithmetic_figures():
    figures = figures_of(simulate(generation="8", train="10", transfer="1", window=0, warm_up=5))

    assert figures.steps_per_hour == pytest.approx(3600 / 19, abs=0.001)
    assert figures.trainer_idle_percent == pytest.approx(100 * 8 / 19, abs=0.01)
    assert figures.shard_idle_percent == pytest.approx(100 * 11 / 19, abs=0.01)
    assert figures.staleness_max_versions == figures.staleness_bound_versions == 0
    assert figures.length_bias_ratio == 1.0
    assert (figures.steps, figures.groups_trained, figures.last_step) == (25, 200, 30)


def test_lookahead_hides_generation_behind_training():
    figures = figures_of(simulate(generation="8", train="10", transfer="1", window=1, warm_up=5))

    assert figures.steps_per_hour == pytest.approx(3600 / 11, abs=0.001)
    assert figures.trainer_idle_percent == 0
    assert figures.staleness_max_versions == 1


def test_streamed_chunks_train_while_the_rest_generates():
    streaming = {"minGroupsForStreamingTrain": 1}
    together = simulate(generation="uniform:min=1,max=20", window=0).measured
    streamed = simulate(generation="uniform:min=1,max=20", window=0, **streaming).measured

    assert streamed.clock_seconds < together.clock_seconds - 10
    assert streamed.trained_groups == together.trained_groups


def test_the_seed_fixes_everything_and_changes_everything():
    figures = figures_of(simulate(seed=3, sampler="windowed"))

    assert figures_of(simulate(seed=3, sampler="windowed")) == figures
    assert figures_of(simulate(seed=4, sampler="windowed")) != figures


@pytest.mark.parametrize("sampler", ["in_order", "weight_fifo", "ready_first", "windowed"])
@pytest.mark.parametrize(
    "fail", [(), ("rollout-error:probability=0.01", "rollout-error:probability=0.001,kind=data")]
)
def test_groups_by_one_timer_and_by_single_requests_take_the_same_time(sampler, fail):
    runs = [simulate(sampler=sampler, fail=fail, by_request=by) for by in (False, True)]
    first, second = (figures_of(run) for run in runs)

    assert second.simulated_seconds == pytest.approx(first.simulated_seconds)
    assert runs[0].work.lags == runs[1].work.lags
    assert second.trainer_idle_percent == pytest.approx(first.trainer_idle_percent, abs=0.01)
    assert second.shard_idle_percent == pytest.approx(first.shard_idle_percent, abs=0.01)
    assert second.aborted_percent == pytest.approx(first.aborted_percent, abs=0.01)
    assert second.failed_percent == pytest.approx(first.failed_percent, abs=0.01)
    assert second.length_bias_ratio == first.length_bias_ratio
    assert (first.failed_percent > 0) == bool(fail)


def test_a_generation_timeout_ends_requests_the_same_way_in_both():
    late = {"rolloutFailure": {"native": {"generationTimeoutSeconds": 45, "envTimeoutSeconds": 5}}}
    first, second = (
        simulate(generation="bimodal:short=5,long=50,share=0.01", by_request=by, **late)
        for by in (False, True)
    )

    assert first.measured.failed_attempts == second.measured.failed_attempts > 0
    assert second.measured.clock_seconds == pytest.approx(first.measured.clock_seconds)
    assert second.measured.failed == pytest.approx(first.measured.failed)


def test_work_adds_up():
    simulation = simulate(sampler="windowed", steps=60)
    totals = simulation.measured
    done = totals.trained + totals.discarded + totals.aborted + totals.failed

    assert totals.aborted > 0
    assert totals.discarded > 0
    assert done <= totals.busy <= done + simulation.work.totals.dispatched_longest
    assert figures_of(simulation).length_bias_ratio < 0.95


def test_samplers_meet_the_same_durations():
    plans = []
    for sampler in ("in_order", "ready_first"):
        script = simulate(sampler=sampler, steps=3).parts.script
        plans.append([script.plan(ref, 0).seconds for ref in _refs(5)])

    assert plans[0] == plans[1]


def _refs(count):
    from asyncrl_runtime.core.records import PromptRef

    return [PromptRef(0, position) for position in range(count)]


def test_the_data_end_where_a_size_is_given():
    assert simulate(prompts=80, steps=30).measured.steps == 10
    assert simulate(prompts=80, steps=3).measured.steps == 3


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_hung_completion_stalls_an_ordered_run_and_a_timeout_saves_it():
    hang = ("hang:probability=0.005",)
    with pytest.raises(Stalled):
        simulate(fail=hang)

    timeout = {"rolloutFailure": {"native": {"generationTimeoutSeconds": 300, "envTimeoutSeconds": 5}}}
    assert simulate(fail=hang, **timeout).measured.failed_attempts > 0


def test_a_hung_completion_stalls_a_run_that_goes_on_freezing_shards():
    with pytest.raises(SimulatedStall, match="no group had been committed"):
        simulate(fail=("hang:probability=0.01", "shard-freeze:every=500,for=5"))


def test_failures_beyond_the_budget_end_the_run():
    with pytest.raises(PromptFailed):
        simulate(fail=("rollout-error:probability=1",))


def test_a_dead_shard_costs_the_requests_that_ran_on_it():
    totals = simulate(generation="8", fail=("shard-death:shard=0,at=30",)).measured

    assert totals.failed_attempts > 0
    assert totals.steps == 30


def test_the_death_of_every_shard_ends_the_run():
    with pytest.raises(FleetExhausted):
        simulate(fail=("shard-death:shard=0,at=30", "shard-death:shard=1,at=31"))


def test_a_frozen_shard_delays_what_runs_on_it():
    calm = simulate(generation="8", window=0, by_request=True).measured.clock_seconds
    frozen = simulate(generation="8", window=0, fail=("shard-freeze:shard=0,at=4,for=100",)).measured

    assert frozen.clock_seconds == pytest.approx(calm + 100)


def test_a_slow_shard_takes_longer_by_its_factor():
    calm = simulate(generation="8", window=0, by_request=True).measured.clock_seconds
    slow = simulate(generation="8", window=0, fail=("shard-slow:shard=0,factor=3",)).measured
    for_a_while = simulate(
        generation="8", window=0, fail=("shard-slow:shard=0,factor=3,at=4,for=6",)
    ).measured

    assert slow.clock_seconds == pytest.approx(calm + 30 * 16)
    assert for_a_while.clock_seconds == pytest.approx(calm + 4)


def test_train_steps_fail_and_are_retried_where_the_job_says_so():
    fail = ("train-step-error:probability=0.2",)
    with pytest.raises(TrainerFailure):
        simulate(generation="1", fail=fail)

    totals = simulate(generation="1", fail=fail, trainStepRetries=5).measured
    assert totals.steps == 30
    assert totals.clock_seconds > 30 * 10 + 10


WATCHED = {
    "generationFleetHealth": {"enabled": True, "onDeadShard": "restart", "maxRestartAttemptsPerShard": 1000},
    "refit": {"deadlineSeconds": 60, "maxRetries": 5},
}


def test_watched_shards_come_back_from_death_again_and_again():
    fail = (
        "shard-death:shard=0,at=100,restart=30",
        "shard-death:shard=1,at=300",
        "shard-death:shard=0,at=500",
    )
    simulation = simulate(steps=60, transfer="1", fail=fail, **WATCHED)

    assert simulation.measured.steps == 60
    assert [shard.starts for shard in simulation.parts.shards] == [2, 1]
    assert all(shard.alive and shard.weight_version >= 59 for shard in simulation.parts.shards)


def test_a_watched_shard_that_freezes_is_started_anew():
    fail = ("shard-freeze:shard=0,at=100,for=100000",)
    simulation = simulate(steps=60, transfer="1", fail=fail, **WATCHED)

    assert simulation.measured.steps == 60
    assert simulation.parts.shards[0].starts == 1
    assert not simulation.parts.shards[0].frozen


def test_a_weight_transfer_that_fails_is_repeated_where_shards_are_watched():
    fail = ("refit-error:probability=0.2",)
    with pytest.raises(RefitAborted):
        simulate(transfer="1", fail=fail)

    simulation = simulate(transfer="1", fail=fail, **WATCHED)
    assert simulation.measured.steps == 30
    assert simulation.parts.refit.transfer.counters.retries > 0


def test_a_prompt_that_fails_for_good_is_dropped_within_the_budget():
    failure = {"maxDataAttemptsPerPrompt": 1, "maxSkippedPrompts": 1000, "minStepBatchFraction": 0.1}
    totals = simulate(
        generation="8", fail=("rollout-error:probability=0.02,kind=data",), rolloutFailure=failure
    ).measured

    assert totals.steps == 30
    assert totals.dropped_groups == totals.failed_attempts > 0
    assert 240 <= totals.trained_groups + totals.dropped_groups <= 256
