"""What follows the close of a step: refit, validation, logging, checkpoint (SC-5.70).

A step is written down before its checkpoint is published: whoever goes on from there finds its numbers, and
numbers of steps that are trained again are taken back. What the checkpoint itself takes is told with the next
step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.data_plane import DataPlane, PlaneUsage
from asyncrl_runtime.ports.metrics import MetricRecord, MetricSink
from asyncrl_runtime.pumps.checkpoint import Checkpointer
from asyncrl_runtime.pumps.gauges import rollout_gauges
from asyncrl_runtime.pumps.observer import RolloutCounters
from asyncrl_runtime.pumps.refit import Refit
from asyncrl_runtime.pumps.rollout import RolloutPump
from asyncrl_runtime.pumps.step import OpenStep
from asyncrl_runtime.pumps.train import RunEnd, TrainProgress
from asyncrl_runtime.pumps.validation import Validator
from asyncrl_runtime.pumps.wakeup import RolloutGate


@dataclass(slots=True, kw_only=True, eq=False)
class StepEnd:
    """Brings the fleet to the new version, measures, writes the step's numbers down, and saves."""

    refit: Refit
    validator: Validator
    checkpointer: Checkpointer
    gate: RolloutGate
    versions: Versions
    progress: TrainProgress
    rollout: RolloutPump
    plane: DataPlane
    metrics: MetricSink
    """Where numbers go; it keeps failures of its backends to itself (SC-8.63)."""

    wall_clock: Callable[[], float]
    num_gpus: int
    finished: Callable[[OpenStep, Mapping[str, float]], None]
    """Told about every step with its metrics, for whoever shows the run."""

    idle_seconds: float = field(default=0.0, init=False)
    step_seconds: float = field(default=0.0, init=False)
    _logged_at: float | None = field(default=None, init=False)
    """Loop time of the last step's numbers; the time of a step is counted from there."""

    _saving: dict[str, float] = field(default_factory=dict, init=False)
    """What the checkpoint after the last step took."""

    _before: RolloutCounters = field(default_factory=RolloutCounters, init=False)
    _discarded: int | None = field(default=None, init=False)
    """Groups discarded up to the last step; None before the first one of this process."""

    _usage: PlaneUsage = field(default_factory=lambda: PlaneUsage({}, {}, {}, 0, 0, 0), init=False)

    async def __call__(self, step: OpenStep, metrics: dict[str, float], *, last: bool) -> RunEnd | None:
        """Carry it all out; a reason to end the run, if there is one."""
        steps, ledger = self.progress.steps, self.rollout.ledger
        if self._discarded is None:  # a resumed ledger brings a count; nothing is aborted before this refit
            self._discarded = ledger.discarded.total() - step.evicted - self.rollout.counters.filtered
        validate = self.validator.due(steps, last=last)
        metrics.update(await self.refit.run(keep_closed=validate))
        if validate:
            with step.timed("validation"):
                measured = await self.validator.run(steps)
            self.gate.open()
            metrics.update({f"val/{name}": value for name, value in measured.items()})
        self._complete(step, metrics)
        self.metrics.log(MetricRecord("step", steps, self.wall_clock(), metrics))
        self.finished(step, metrics)
        early = self.validator.reached()
        if self.checkpointer.due(last=last or early):
            await self._save(metrics)
        if early:
            return "early_stop"
        return "deadline" if self.checkpointer.stop_after_save and not last else None

    async def _save(self, metrics: Mapping[str, float]) -> None:
        loop, saver = asyncio.get_running_loop(), self.checkpointer
        began = loop.time()
        await saver.save(metrics=metrics, validation=self.validator.latest)
        self._saving = {
            "checkpoint/pause_seconds": saver.pause_seconds,
            "checkpoint/seconds": saver.seconds,
            "timing/train/checkpointing": loop.time() - began,
        }

    def _complete(self, step: OpenStep, metrics: dict[str, float]) -> None:
        """Timings, counters and what they make together."""
        now_seconds = asyncio.get_running_loop().time()
        total = now_seconds - (step.began if self._logged_at is None else self._logged_at)
        self._logged_at = now_seconds
        idle = step.seconds["exposed_generation"]
        self.idle_seconds += idle
        self.step_seconds += total
        metrics.update({f"timing/train/{phase}": seconds for phase, seconds in step.seconds.items()})
        metrics.update(self._saving)
        self._saving = {}
        metrics["timing/train/total_step_time"] = total
        metrics["timing/train/exposed_generation"] = idle
        metrics["timing/train/valid_tokens_per_sec_per_gpu"] = (
            metrics["train/global_valid_toks"] / total / max(1, self.num_gpus) if total else 0.0
        )
        now, before = self.rollout.counters, self._before
        discarded = self.rollout.ledger.discarded.total()
        assert self._discarded is not None
        metrics.update(
            {
                "train/trainer_version": self.versions.trainer,
                "train/content_version": self.versions.content,
                "train/policy_optimizer_steps": self.progress.policy_optimizer_steps,
                "train/consumed_groups": self.progress.consumed_groups,
                "train/total_valid_tokens": self.progress.total_valid_tokens,
                "train/epoch": self.rollout.cursor.epoch,
                "train/trainer_idle_fraction": self.idle_seconds / self.step_seconds
                if self.step_seconds
                else 0.0,
                "train/requeued_prompt_groups": now.relaunched - before.relaunched,
                "train/dynamic_sampling_discarded_groups": now.filtered - before.filtered,
                "train/discarded_groups": discarded - self._discarded,
                **rollout_gauges(self.rollout),
                "rollout/inflight": step.inflight,
                **self._plane_cost(total),
            }
        )
        self._before, self._discarded = now.copy(), discarded

    def _plane_cost(self, step_seconds: float) -> dict[str, float]:
        """What the step cost in calls of the data plane, by the controller (SC-12.61)."""
        usage, before = self.plane.usage(), self._usage
        self._usage = usage
        prefix = "data_plane/driver/"
        values: dict[str, float] = {
            f"{prefix}bytes_outstanding": usage.bytes_outstanding,
            f"{prefix}peak_bytes_outstanding": usage.peak_bytes_outstanding,
            f"{prefix}keys_outstanding": usage.keys_outstanding,
            f"{prefix}max_bytes_per_key": usage.max_bytes_per_key,
        }
        calls = _increase(usage.operations, before.operations)
        moved = _increase(usage.bytes, before.bytes)
        milliseconds = {op: 1e3 * spent for op, spent in _increase(usage.seconds, before.seconds).items()}
        for name, by_operation in (
            ("ops", calls),
            ("keys", _increase(usage.keys, before.keys)),
            ("bytes", moved),
            ("wall_ms", milliseconds),
        ):
            values.update({f"{prefix}{name}/{op}": value for op, value in by_operation.items()})
        wall = sum(milliseconds.values())
        values[f"{prefix}ops"] = sum(calls.values())
        values[f"{prefix}comm_volume_mb"] = sum(moved.values()) / 1e6
        values[f"{prefix}wall_ms"] = wall
        values[f"{prefix}share_of_step_time"] = wall / 1e3 / step_seconds if step_seconds else 0.0
        return values


def _increase(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """By how much each count has grown."""
    return {name: value - before.get(name, 0) for name, value in now.items()}
