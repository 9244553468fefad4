"""What telemetry makes of counters, and that it never ends what it measures."""

import asyncio

import pytest
from support.runs import Run, Script

from asyncrl_runtime.pumps.supervisor import supervise
from asyncrl_runtime.pumps.telemetry import Rates, TelemetryPump

pytestmark = pytest.mark.looptime


class Samples:
    def __init__(self):
        self.records = []

    def log(self, record):
        self.records.append(record)

    def of(self, name):
        return [record.values.get(name) for record in self.records]


def measured(script, interval=1.0):
    run = Run(script)
    run.samples = Samples()
    run.telemetry = TelemetryPump(
        fleet=run.fleet,
        counters=run.rollout.counters,
        metrics=run.samples,
        observer=run.events,
        wall_clock=lambda: 0.0,
        interval_seconds=interval,
    )
    return run


async def go(run):
    await run.refit.run()
    beside = {"rollout": run.rollout.run(), "telemetry": run.telemetry.run()}
    return await supervise(run.train.run(), beside)


async def test_rates_of_what_is_generated_and_committed():
    # Two prompts of two siblings at a time, 4 s each; a completion has one token or more.
    run = measured(Script(prompts=8, generation_seconds=lambda r: 4.0, max_inflight=2), interval=4.5)
    await go(run)
    groups = run.samples.of("generation/committed_groups_per_second")
    assert groups[0] is None
    assert groups[1] == pytest.approx(2 / 4.5)
    tokens = run.samples.of("generation/committed_tokens_per_second")[1]
    assert tokens == run.samples.of("generation/tokens_per_second")[1]
    assert run.samples.of("generation/committed_share")[1] == 1
    assert run.samples.of("generation/running_requests")[0] == 4
    assert [record.index for record in run.samples.records] == [1, 2, 3]


def test_sc_12_70_a_first_sample_and_a_counter_that_went_down_give_no_rate():
    rates = Rates()
    assert rates.rate("shard 0", 100, 0.0) is None
    assert rates.rate("shard 0", 150, 5.0) == 10
    assert rates.rate("shard 0", 20, 6.0) is None
    assert rates.rate("shard 0", 30, 8.0) == 5
    assert rates.rate("shard 1", 30, 8.0) is None


async def test_sc_14_183_readers_share_one_baseline():
    rates = Rates()
    rates.rate("x", 0, 0.0)
    both = [rates.rate("x", 10, 1.0), rates.rate("x", 10, 1.0)]
    assert both == [10, None]


async def test_sc_8_63_a_sample_that_fails_is_told_once_and_the_run_goes_on():
    run = measured(Script(prompts=8, generation_seconds=lambda r: 4.0, max_inflight=2))

    def full(record):
        raise OSError("disk full")

    run.samples.log = full
    assert await go(run) == "data_exhausted"
    assert run.events.of("telemetry_failed") == [{"failure": "OSError", "reason": "disk full"}]


async def test_a_shard_that_does_not_answer_is_left_out():
    run = measured(Script(prompts=8, generation_seconds=lambda r: 4.0, max_inflight=2))

    async def thaw():
        await asyncio.sleep(0.5)
        run.shards[0].frozen = True
        await asyncio.sleep(2)
        run.shards[0].frozen = False

    thawing = asyncio.create_task(thaw())
    assert await go(run) == "data_exhausted"
    await thawing
    assert run.samples.of("generation/running_requests")[0] == 2


async def test_without_an_interval_nothing_is_sampled():
    run = measured(Script(prompts=4), interval=None)
    assert await go(run) == "data_exhausted"
    assert run.samples.records == []
