"""Engines of a simulated run. They take time and nothing else: no row of data is ever made."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from asyncrl_runtime.adapters.scripted import ScriptedTrainer
from asyncrl_runtime.app.simulate.script import GroupPlan, RolloutScript
from asyncrl_runtime.app.simulate.work import Work
from asyncrl_runtime.core.errors import DeadlinePassed
from asyncrl_runtime.core.records import BatchMeta, Completion, GroupMeta, GroupRecord, Prompt
from asyncrl_runtime.core.replay import Slot
from asyncrl_runtime.ports.advantage import StageResult
from asyncrl_runtime.ports.columns import Columns
from asyncrl_runtime.ports.data_plane import FinishSnapshot, PlaneUsage
from asyncrl_runtime.ports.generator import Sampling
from asyncrl_runtime.ports.trainer import StepReport
from asyncrl_runtime.pumps.commit import Committer, rollout_metrics
from asyncrl_runtime.pumps.wakeup import MutationToken

TIMEOUT = "spec.asyncRL.rolloutFailure.native.generationTimeoutSeconds"
NO_USAGE = PlaneUsage({}, {}, {}, 0, 0, 0)


class RowlessPlane:
    """A data plane for rows that nobody reads."""

    async def start(self) -> None:
        """It is ready."""

    async def put(self, sample_ids: Sequence[str], columns: Columns, tags: object = None) -> None:
        """Nothing is kept."""

    async def get(self, sample_ids: Sequence[str], fields: Sequence[str]) -> Columns:
        """No column."""
        return {}

    async def clear(self, sample_ids: Sequence[str]) -> None:
        """Nothing was kept."""

    async def keys(self) -> frozenset[str]:
        """None."""
        return frozenset()

    async def snapshot(self, directory: Path) -> FinishSnapshot:
        """Simulated runs write no checkpoints."""
        raise NotImplementedError("a simulated run has no rows to save")

    async def restore(self, directory: Path) -> None:
        """Simulated runs read no checkpoints."""
        raise NotImplementedError("a simulated run has no rows to restore")

    def usage(self) -> PlaneUsage:
        """Nothing."""
        return NO_USAGE

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowlessCommitter(Committer):
    """Commits a group's metadata; its rows would be the same for every group, and have no own names."""

    metrics: Mapping[str, float]
    """Those of every group; what is 0 is left out of the sums."""

    @classmethod
    def beside(cls, committer: Committer) -> RowlessCommitter:
        """With the settings of the committer that it replaces."""
        completions = siblings(committer.generations)
        settings = {name: getattr(committer, name) for name in Committer.__dataclass_fields__}
        metrics = defaultdict(float, {k: v for k, v in rollout_metrics(completions).items() if v})
        return cls(**settings, metrics=metrics)

    async def commit(
        self,
        token: MutationToken,
        slot: Slot,
        record: GroupRecord,
        *,
        end_weight: int,
        straddled: bool,
        start_weights: tuple[int, ...] | None = None,
    ) -> GroupMeta | None:
        """Flip the slot ready; None when it is no longer this attempt's (SC-4.12)."""
        if not self.buffer.expects(slot.group_id, slot.attempt):
            return None
        count = len(record.completions)
        weights = start_weights or (slot.start_weight,) * count
        meta = GroupMeta(
            slot.group_id,
            slot.attempt,
            slot.prompt,
            (slot.group_id,) * count,
            (2,) * count,
            weights,
            count,
            min(weights),
            end_weight,
            straddled,
            slot.target_step,
            self.metrics,
        )
        self.buffer.commit(meta)
        return meta

    def valid_rows(self, record: GroupRecord) -> int:
        """No row is masked."""
        return len(record.completions)


def siblings(count: int) -> tuple[Completion, ...]:
    """Completions of a group: a token of prompt and one of text; rewards differ, so that none is filtered."""
    return tuple(
        Completion([1, 1], [0, 1], [0.0, -1.0], [-1, 0], 1, "", 0.0 if sibling == 0 else 1.0)
        for sibling in range(count)
    )


class GroupFuture(asyncio.Future):
    """The end of a group's attempt; cancelling it stops its requests."""

    __slots__ = ("plan", "started", "stop", "timer")

    plan: GroupPlan
    started: float
    timer: asyncio.TimerHandle | None
    stop: Callable[[GroupFuture], None]

    def cancel(self, msg: Any | None = None) -> bool:
        """Stop the requests, then cancel."""
        if not self.done():
            self.stop(self)
        return super().cancel(msg)


@dataclass(slots=True, kw_only=True, eq=False)
class GroupRollouts:
    """Stands in for the rollout manager where no fault concerns single shards.

    A group is one timer: the time of its slowest sibling, or of what ends it earlier. That gives the same
    times as request by request, at a fraction of the cost.
    """

    script: RolloutScript
    work: Work
    generation_timeout_seconds: float | None
    completions: tuple[Completion, ...]
    running: dict[GroupFuture, None] = field(default_factory=dict, init=False)

    def roll_group(
        self,
        prompt: Prompt,
        *,
        group_id: str,
        attempt: int,
        generations: int,
        sampling: Sampling | None = None,
    ) -> asyncio.Future[GroupRecord]:
        """All siblings of a prompt at once."""
        loop = asyncio.get_running_loop()
        plan = self.script.plan(prompt.ref, attempt)
        if not attempt:
            self.work.dispatched(plan.longest)
        future = GroupFuture(loop=loop)
        future.plan, future.started, future.stop = plan, loop.time(), self._cancelled
        self.running[future] = None
        seconds, failure = self._end(plan, group_id, attempt)
        future.timer = None
        if seconds is None:
            return future
        if failure is None:
            future.timer = loop.call_at(future.started + seconds, self._finish, future, prompt, group_id)
        else:
            future.timer = loop.call_at(future.started + seconds, self._fail, future, failure)
        return future

    def in_progress(self) -> Callable[[], float]:
        """Request-seconds so far of what runs now."""
        now, running = asyncio.get_running_loop().time(), list(self.running)
        return lambda: sum(future.plan.spent(now - future.started) for future in running)

    def _end(self, plan: GroupPlan, group_id: str, attempt: int) -> tuple[float | None, Exception | None]:
        """After how many seconds the attempt ends, and how; never if a sibling hangs without a deadline."""
        seconds, failure = plan.longest, None
        if plan.faults:
            first = min(plan.faults, key=lambda sibling: plan.seconds[sibling])
            if plan.seconds[first] < float("inf"):
                seconds, failure = plan.seconds[first], plan.failure(first, f"{group_id}_a{attempt}_g{first}")
        bound = self.generation_timeout_seconds
        if bound is not None and seconds > bound:
            return bound, DeadlinePassed(f"generation {group_id}_a{attempt}", bound, TIMEOUT)
        return (None if seconds == float("inf") else seconds), failure

    def _finish(self, future: GroupFuture, prompt: Prompt, group_id: str) -> None:
        self.running.pop(future, None)
        self.work.finished(group_id, future.plan.total, future.plan.longest)
        future.set_result(GroupRecord(prompt, self.completions))

    def _fail(self, future: GroupFuture, failure: Exception) -> None:
        self.running.pop(future, None)
        self.work.failed(self._spent(future))
        future.set_exception(failure)

    def _cancelled(self, future: GroupFuture) -> None:
        self.running.pop(future, None)
        if future.timer is not None:
            future.timer.cancel()
        self.work.aborted(self._spent(future))

    @staticmethod
    def _spent(future: GroupFuture) -> float:
        return future.plan.spent(asyncio.get_running_loop().time() - future.started)


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedTrainer(ScriptedTrainer):
    """Trains each group for its share of the step's time, so that streamed chunks overlap generation."""

    step_seconds: Callable[[int], float]
    """Seconds of a whole RL step, by trainer version."""

    version: Callable[[], int]
    groups_per_step: int
    """Groups that `step_seconds` is for, policy epochs included."""

    _rows: int = field(default=0, init=False)

    async def logprobs(
        self, meta: BatchMeta, *, models: frozenset[Literal["policy", "reference"]]
    ) -> Mapping[str, float]:
        """Part of the step's time."""
        return {}

    async def accumulate(self, meta: BatchMeta) -> None:
        """Take the time of these groups."""
        self._call("accumulate")
        share = len(meta.groups) / self.groups_per_step
        self._rows += sum(len(group.sample_ids) for group in meta.groups)
        await asyncio.sleep(self.step_seconds(self.version()) * share)

    async def finish(self) -> StepReport:
        """The time is spent."""
        self._call("finish")
        rows, self._rows, self._open = self._rows, 0, None
        self.optimizer_steps += 1
        return StepReport({"loss": 0.0}, rows, rows)

    async def abort(self) -> None:
        """Forget the open step."""
        self._rows, self._open = 0, None


class SimulatedAdvantages:
    """Every row counts one token."""

    fields: tuple[str, ...] = ()

    async def start(self) -> None:
        """Nothing to start."""

    async def run(self, meta: BatchMeta, columns: Columns) -> StageResult:
        """Takes no time of its own."""
        rows = np.ones(sum(len(group.sample_ids) for group in meta.groups))
        return StageResult({}, rows, rows, None)

    def metrics(self, results: Sequence[StageResult]) -> Mapping[str, float]:
        """None."""
        return {}

    async def close(self) -> None:
        """Nothing to stop."""
