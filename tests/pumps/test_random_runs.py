"""Whole runs of random settings, durations and failures: each ends, no prompt is lost or trained twice."""

from dataclasses import dataclass
from zlib import crc32

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.runs import Run, Script

from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.core.drops import DropPolicy
from asyncrl_runtime.core.errors import DataFailure, InfraFailure, StepBelowFloor
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo
from asyncrl_runtime.core.samplers.windowed import Windowed
from asyncrl_runtime.pumps.capture import CaptureSettings

SAMPLERS = {"in_order": InOrder, "weight_fifo": WeightFifo, "ready_first": ReadyFirst, "windowed": Windowed}


@dataclass(frozen=True)
class Case:
    sampler: str
    window: int
    freshest: bool
    groups_per_step: int
    smallest_chunk: int
    batches: int
    epochs: int
    spare: int
    max_inflight: int
    shards: int
    spread: float
    train: float
    sync: float
    failing: float
    requeue: bool
    replaces: bool
    attempts: int
    filtered: float
    capture: str | None
    max_generations: int | None
    in_flight: bool
    step_retries: int
    seed: int

    def draw(self, text):
        return crc32(f"{self.seed}/{text}".encode()) / 2**32


@st.composite
def cases(draw):
    groups = draw(st.integers(1, 4))
    return Case(
        sampler=draw(st.sampled_from(list(SAMPLERS))),
        window=draw(st.integers(0, 3)),
        freshest=draw(st.booleans()),
        groups_per_step=groups,
        smallest_chunk=draw(st.integers(1, groups)),
        batches=draw(st.integers(1, 6)),
        epochs=draw(st.integers(1, 2)),
        spare=draw(st.integers(0, 8)),
        max_inflight=draw(st.integers(1, 12)),
        shards=draw(st.integers(1, 3)),
        spread=draw(st.sampled_from([0.0, 1.0, 20.0])),
        train=draw(st.sampled_from([0.0, 0.5, 5.0])),
        sync=draw(st.sampled_from([0.0, 0.3])),
        failing=draw(st.sampled_from([0.0, 0.1, 0.3])),
        requeue=draw(st.booleans()),
        replaces=draw(st.booleans()),
        attempts=draw(st.sampled_from([1, 2, 1000])),
        filtered=draw(st.sampled_from([0.0, 0.0, 0.2])),
        capture=draw(st.sampled_from([None, "sibling", "prompt_group"])),
        max_generations=draw(st.none() | st.integers(1, 6)),
        in_flight=draw(st.booleans()),
        step_retries=draw(st.integers(0, 1)),
        seed=draw(st.integers(0, 2**32)),
    )


def run_of(case):
    def build(buffer):
        extra = {"freshest_first": case.freshest} if case.sampler == "windowed" else {}
        return SAMPLERS[case.sampler](buffer, window=case.window, **extra)

    def failing(request):
        if case.draw(request.request_id + "!") >= case.failing:
            return None
        return InfraFailure("lost") if case.draw(request.request_id + "?") < 0.7 else DataFailure("bad")

    return Run(
        Script(
            prompts=case.groups_per_step * case.batches,
            groups_per_step=case.groups_per_step,
            max_epochs=case.epochs,
            shuffle=True,
            sampler=build,
            capacity=case.groups_per_step * (case.window + 1) + case.spare,
            smallest_chunk=case.smallest_chunk,
            max_inflight=case.max_inflight,
            shards=case.shards,
            generation_seconds=lambda request: 0.1 + case.spread * case.draw(request.request_id) ** 4,
            failing=failing,
            train_seconds=lambda step: case.train * case.draw(step),
            sync_seconds=lambda version: case.sync,
            final_partial_step="discard",
            requeue_aborted=case.requeue,
            in_flight=case.in_flight,
            drain_timeout=None if case.in_flight else 30.0,
            step_retries=case.step_retries,
            infra_attempts=case.attempts,
            data_attempts=case.attempts,
            max_skipped=1000,
            max_consecutive=1000,
            drops=DropPolicy(replaces=case.replaces, max_replacements=2),
            discard_group=lambda record: case.draw(f"{record.prompt.ref}") < case.filtered,
            fraction=0.01,
            capture=case.capture
            and CaptureSettings(
                granularity=lambda prompt: case.capture,
                finalizers=1,
                finalize_timeout_seconds=None,
                max_generations=case.max_generations,
            ),
        )
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_every_run_ends_with_every_prompt_in_one_class(case):
    run = run_of(case)
    lags, seen = [], []

    def finished(step, metrics):
        run.ledger.check(buffered=run.buffer.ready, claimed=0)
        buffer = run.buffer
        assert buffer.free + buffer.launched + buffer.ready - buffer.restore_debt == buffer.capacity
        lags.append(metrics["train/staleness/lag_max"])
        seen.extend(meta.group_id for meta in step.trained)
        if case.sampler == "in_order":
            assert {meta.target_step for meta in step.trained} == {step.version}

    run.end.finished = finished

    async def main():
        return await run.go()

    try:
        assert run_virtual(main()) == "data_exhausted"
    except StepBelowFloor:
        assert case.attempts < 1000
        return
    total = case.groups_per_step * case.batches * case.epochs
    counts = run.ledger.counts(buffered=run.buffer.ready, claimed=0)
    assert (counts.admitted, counts.live, counts.balanced) == (total, len(run.ledger.reserve), True)
    assert len(seen) == len(set(seen)) == counts.trained
    assert counts.dropped == 0 or case.attempts < 1000
    assert run.plane.usage().keys_outstanding == run.plane.usage().bytes_outstanding == 0
    assert run.buffer.free == run.buffer.capacity
    assert not run.rollout.inflight
    assert not any(shard.running for shard in run.shards)
    if case.sampler != "windowed" and case.attempts == 1000 and not case.filtered:
        assert counts.trained == total
    if case.sampler != "ready_first":
        assert max(lags, default=0) <= case.window
