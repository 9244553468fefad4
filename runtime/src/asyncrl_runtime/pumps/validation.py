"""Validation: measuring the current policy on held-out prompts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from asyncrl_runtime.core.errors import RolloutFailure, ShardUnavailable, ValidationFailed
from asyncrl_runtime.core.records import Completion, GroupRecord, Prompt, PromptRef
from asyncrl_runtime.ports.generator import Sampling
from asyncrl_runtime.ports.prompts import PromptSource
from asyncrl_runtime.pumps.busy import Busy
from asyncrl_runtime.pumps.observer import Observer
from asyncrl_runtime.pumps.rollouts import RolloutManager

MAX_ATTEMPTS = 3
"""Of a prompt whose shards are lost under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """When and how the policy is measured (SC-5.90)."""

    period_steps: int
    start_at: int
    at_start: bool
    at_end: bool
    batch_size: int | None
    max_samples: int | None
    generations: int
    sampling: Sampling
    failure_action: Literal["warn", "abort"]
    stop_at_metric: str | None
    stop_at_threshold: float | None
    higher_is_better: bool
    samples_to_log: int = 0
    """Prompts whose first completion is told after each pass."""


@dataclass(slots=True, kw_only=True, eq=False)
class Validator:
    """Rolls validation prompts out on the fleet; nothing of it enters the replay buffer."""

    source: PromptSource | None
    rollouts: RolloutManager
    settings: ValidationSettings
    busy: Busy = field(default_factory=Busy)
    observer: Observer
    latest: dict[str, float] = field(default_factory=dict, init=False)
    latest_step: int = field(default=-1, init=False)

    def due(self, step: int, *, last: bool) -> bool:
        """Whether to validate after this many completed steps; at most once per step."""
        settings = self.settings
        if self.source is None or self.latest_step == step:
            return False
        if step == 0:
            return settings.at_start
        periodic = (
            settings.period_steps > 0 and step % settings.period_steps == 0 and step >= settings.start_at
        )
        return periodic or (last and settings.at_end)

    async def run(self, step: int) -> dict[str, float]:
        """Measure; metrics without a prefix. Failures are reported, or end the run (SC-5.96)."""
        assert self.source is not None
        began = asyncio.get_running_loop().time()
        count = min(len(self.source), self.settings.max_samples or len(self.source))
        size = self.settings.batch_size or count
        self.latest_step = step
        self.busy.moved()
        records: list[GroupRecord] = []
        failed: ValidationFailed | None = None
        try:
            for first in range(0, count, size):
                refs = [PromptRef(0, position) for position in range(first, min(first + size, count))]
                prompts = await self.source.fetch(refs)
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(self._roll(prompt, step)) for prompt in prompts]
                records += [task.result() for task in running]
                self.busy.moved()
        except* RolloutFailure as group:
            cause = str(group.exceptions[0])
            failed = ValidationFailed(step, cause)
            failed.__cause__ = group
        if failed is not None:
            self.observer.event("validation_failed", step=step, reason=failed.cause)
            if self.settings.failure_action == "abort":
                raise failed
            return {}
        self.latest = validation_metrics(records)
        self.observer.event("validated", step=step, **self.latest)
        for record in records[: self.settings.samples_to_log]:
            done = record.completions[0]
            self.observer.event(
                "validation_sample",
                step=step,
                prompt=record.prompt.text,
                answer=record.prompt.answer,
                completion=done.text,
                reward=done.reward,
            )
        return {**self.latest, "seconds": asyncio.get_running_loop().time() - began}

    def reached(self) -> bool:
        """Whether the early-stop metric is where it should be (SC-5.95)."""
        name, threshold = self.settings.stop_at_metric, self.settings.stop_at_threshold
        if name is None or threshold is None or name not in self.latest:
            return False
        value = self.latest[name]
        return value >= threshold if self.settings.higher_is_better else value <= threshold

    async def _roll(self, prompt: Prompt, step: int) -> GroupRecord:
        """A lost shard costs another attempt on those that are left, not the pass (SC-8.68)."""
        attempt = 0
        while True:
            try:
                return await self.rollouts.roll_group(
                    prompt,
                    group_id=f"val{step}p{prompt.ref.position}",
                    attempt=attempt,
                    generations=self.settings.generations,
                    sampling=self.settings.sampling,
                )
            except ShardUnavailable:
                attempt += 1
                if attempt == MAX_ATTEMPTS:
                    raise


def validation_metrics(records: list[GroupRecord]) -> dict[str, float]:
    """accuracy: mean reward over all rollouts; pass_k: share of prompts with a reward above 0 (SC-5.93)."""
    done: list[Completion] = [c for record in records for c in record.completions]
    values = {
        "accuracy": sum(c.reward for c in done) / len(done),
        "response_length": sum(c.generated_tokens for c in done) / len(done),
        "prompts": float(len(records)),
    }
    if len(done) > len(records):
        values["pass_k"] = sum(any(c.reward > 0 for c in r.completions) for r in records) / len(records)
    return values
