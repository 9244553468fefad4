"""A run's state as messages of the control API."""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl_api.control import control_pb2 as pb
from asyncrl_runtime.app.state import RunState, ShardView


def status_message(state: RunState, extra: Mapping[str, float | int | None]) -> pb.RunStatus:
    """Without revision and time; what is not known is absent."""
    message = pb.RunStatus(
        name=state.name,
        phase=state.phase,
        progress=pb.Progress(
            step=state.step,
            max_steps=state.max_steps,
            trainer_version=state.trainer_version,
            epoch=state.epoch,
            reward_mean=state.reward_mean,
            eta_seconds=state.eta_seconds,
            step_seconds=state.step_seconds,
            generated_tokens_per_second=state.tokens_per_second,
            trained_tokens_per_second=state.trained_tokens_per_second,
            trainer_idle_fraction=state.trainer_idle_fraction,
            idle_seconds=extra.get("idle_seconds"),
        ),
        sampler=pb.Sampler(
            name=state.sampler,
            knobs=state.knobs,
            staleness_p50=state.staleness_p50,
            staleness_p95=state.staleness_p95,
            staleness_max=state.staleness_max,
            staleness_bound=state.staleness_bound,
            ready_groups=state.ready,
            inflight_groups=state.inflight,
            capacity_groups=state.capacity,
        ),
        shards=[shard_message(shard) for shard in state.shards],
        saved=pb.Saved(
            last_checkpoint_step=state.last_checkpoint_step,
            seconds_since_durable=extra.get("seconds_since_durable"),
        ),
        applied_generation=int(extra.get("applied_generation") or 0),
        restart_index=int(extra.get("restart_index") or 0),
    )
    if state.prompts:
        counts = dict(state.prompts)
        causes = counts.pop("discarded_by_cause", {})
        message.prompts.CopyFrom(pb.PromptCounts(**counts, discarded_by_cause=causes))
    if state.failure:
        step = state.failure.get("step")
        message.failure.CopyFrom(
            pb.Failure(
                type=str(state.failure.get("type", "")),
                message=str(state.failure.get("message", "")),
                step=step if isinstance(step, int) else None,
            )
        )
    return message


def shard_message(shard: ShardView) -> pb.Shard:
    """One shard."""
    return pb.Shard(
        index=shard.index,
        state=shard.state,
        weight_version=shard.weight_version,
        outstanding_requests=shard.outstanding,
    )
