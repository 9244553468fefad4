"""Reading the state of a run from its parts."""

from __future__ import annotations

import os
import time
from dataclasses import asdict

from asyncrl_api.job import AsyncRLJob
from asyncrl_runtime.app.build import Parts
from asyncrl_runtime.app.samplers import knobs, staleness_bound
from asyncrl_runtime.app.state import RunState, ShardView
from asyncrl_runtime.app.summary import Tally


def run_state(
    job: AsyncRLJob,
    parts: Parts,
    tally: Tally,
    phase: str,
    seconds: float,
    failure: dict[str, object] | None = None,
) -> RunState:
    """The run as of now."""
    staleness, end = tally.staleness(), parts.end
    saved = parts.checkpointer.last_saved_step
    counts = parts.ledger.counts(
        buffered=parts.buffer.ready, claimed=len(parts.train.claims), ended=phase == "Succeeded"
    )
    return RunState(
        name=job.metadata.name,
        phase=phase,
        step=parts.progress.steps,
        max_steps=parts.max_steps,
        trainer_version=parts.versions.trainer,
        epoch=parts.rollout.cursor.epoch,
        reward_mean=tally.reward_mean,
        sampler=parts.sampler.name,
        knobs=knobs(job.spec),
        staleness_p50=staleness["p50"],
        staleness_p95=staleness["p95"],
        staleness_max=staleness["max"],
        staleness_bound=staleness_bound(job.spec),
        buffered=len(parts.buffer),
        ready=parts.buffer.ready,
        inflight=len(parts.rollout.inflight),
        capacity=parts.buffer.capacity,
        shards=[_shard(parts, index) for index in range(len(parts.shards))],
        tokens_per_second=tally.generated_tokens / end.step_seconds if end.step_seconds else 0.0,
        trainer_idle_fraction=end.idle_seconds / end.step_seconds if end.step_seconds else 0.0,
        last_checkpoint_step=saved if saved >= 0 else None,
        prompts=asdict(counts),
        pid=os.getpid(),
        updated_at=time.time(),
        seconds=seconds,
        failure=failure,
    )


def _shard(parts: Parts, index: int) -> ShardView:
    shard = parts.shards[index]
    ledger = parts.fleet.ledger
    watched = None if ledger is None else ledger.shards[index]
    unwatched_state = "HEALTHY" if shard.alive else "DEAD"
    return ShardView(
        index=index,
        state=unwatched_state if watched is None else watched.state.value,
        weight_version=parts.versions.stamp if watched is None else watched.weight_version,
        pid=shard.worker.pid if shard.alive and hasattr(shard, "worker") else None,
        outstanding=parts.fleet.outstanding[index],
    )
