"""Writing down what happens in a run: events, samples, sums."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from asyncrl_runtime.adapters.sinks.events import EventLog, SampleLog
from asyncrl_runtime.app.summary import Tally
from asyncrl_runtime.core.records import GroupMeta, GroupRecord
from asyncrl_runtime.pumps.step import OpenStep

log = structlog.get_logger("asyncrl.validation")


@dataclass(slots=True, kw_only=True, eq=False)
class RunObserver:
    """Implements the pumps' `Observer`: events go to `events.jsonl`, groups wait for their step's samples."""

    events: EventLog
    samples: SampleLog
    sample_every: int
    sample_max_bytes: int
    tally: Tally
    elapsed: Callable[[], float]
    """Seconds since the command was given."""

    diagnostics: bool = False
    """Write every rollout down in detail."""

    _records: dict[str, GroupRecord] = field(default_factory=dict, init=False)

    def event(self, kind: str, **facts: object) -> None:
        """Take an event; committed groups are kept for samples, not written one by one."""
        if kind == "group_committed":
            meta, record = facts["meta"], facts["record"]
            assert isinstance(meta, GroupMeta)
            assert isinstance(record, GroupRecord)
            self.tally.generated_tokens += meta.generated_tokens
            if self.sample_every:
                self._records[meta.group_id] = record
            if self.diagnostics:
                self.events.write("rollout", _rollout_facts(meta, record))
            return
        if kind == "validation_sample":
            log.info("validation sample", **facts)
        if kind == "group_evicted":
            self._records.pop(str(facts["group"]), None)
        self.events.write(kind, facts)

    def finished_step(self, step: OpenStep, metrics: Mapping[str, float]) -> None:
        """Sum up a step, and dump its samples where it is due."""
        tally, groups = self.tally, step.trained
        if tally.seconds_to_first_step is None:
            tally.seconds_to_first_step = round(self.elapsed(), 3)
        for group in groups:
            for version in group.weight_versions:
                tally.lags[step.version - version] += 1
        tally.trained_tokens += int(metrics.get("train/global_valid_toks", 0))
        tally.reward_mean = metrics.get("train/reward_raw", metrics.get("train/reward"))
        tally.validation_mean = metrics.get("val/accuracy", tally.validation_mean)
        records = [(group, self._records.pop(group.group_id, None)) for group in groups]
        if self.sample_every and (step.version + 1) % self.sample_every == 0:
            rows = (row for group, record in records for row in _sample_rows(group, record, step))
            self.samples.dump(step.version + 1, rows, max_bytes=self.sample_max_bytes)

    def close(self) -> None:
        """Flush and close both files."""
        self.events.close()
        self.samples.close()


def _sample_rows(group: GroupMeta, record: GroupRecord | None, step: OpenStep) -> list[dict[str, object]]:
    lag = step.version - group.start_weight
    if record is None:  # a checkpoint keeps its tokens, not its text
        return [{"group": group.group_id, "restored": True, "lag": lag, "time": round(time.time(), 3)}]
    return [
        {
            "group": group.group_id,
            "prompt": record.prompt.text,
            "answer": record.prompt.answer,
            "completion": done.text,
            "reward": done.reward,
            "components": done.reward_components,
            "versions": sorted({version for version in done.weight_versions if version >= 0}),
            "lag": lag,
            "truncated": done.truncated,
            "flagged": done.flagged,
            "time": round(time.time(), 3),
        }
        for done in record.completions
    ]


def _rollout_facts(meta: GroupMeta, record: GroupRecord) -> dict[str, object]:
    """A committed group, completion by completion."""
    return {
        "group": meta.group_id,
        "attempt": meta.attempt,
        "prompt": record.prompt.label,
        "target_step": meta.target_step,
        "start_weight": meta.start_weight,
        "end_weight": meta.end_weight,
        "straddled": meta.straddled,
        "completions": [
            {
                "tokens": done.generated_tokens,
                "prompt_tokens": done.prompt_tokens,
                "turns": done.turns,
                "reward": done.reward,
                "truncated": done.truncated,
                "flagged": done.flagged,
                "weight_versions": sorted({version for version in done.weight_versions if version >= 0}),
                "generation_seconds": round(done.generation_seconds, 4),
                "environment_seconds": round(done.environment_seconds, 4),
            }
            for done in record.completions
        ],
    }
