"""B13: a soak. Does anything grow with the number of prompt groups that a run has seen?

    PYTHONPATH=tests python benchmarks/soak.py [--groups 1000000] [--quick]

The real controller on a virtual clock, with the real data plane and engines that only take time. Most groups
go to five cases that share them: each sampler, and in_order with drops that spare prompts replace. About one
group in a hundred is filtered, completions fail, rollouts are aborted and evicted. A last case of a twentieth
of the groups has request by request what costs more: token capture, snapshots, checkpoints, a watched fleet,
telemetry, and shards that die.

Judged by a regression over samples taken every 10,000 groups (or 50 to a case if that is more), without the
first fifth: a figure does not grow if its slope is at most three standard errors above 0, or below what
matters: 16 bytes of resident memory a group, or one item in 5,000 groups.
"""

import asyncio
import ctypes
import gc
import math
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from common import Report, arguments
from support.chaos import fast_disk
from support.jobs import ScriptedStart, job_spec

from asyncrl_api.derived import Derived
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator, ScriptedSync
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.app.simulate.durations import read_duration
from asyncrl_runtime.app.simulate.faults import read_faults
from asyncrl_runtime.app.simulate.run import Durations, SimulatedParts, Simulation
from asyncrl_runtime.pumps.commit import Committer

GROUPS_PER_STEP, GENERATIONS = 32, 2
EVERY, SAMPLES, WARM_UP = 10_000, 50, 0.2
BYTES_A_GROUP, ITEMS_A_GROUP = 16.0, 1 / 5_000
FILTERED = 0.01
PAGE = os.sysconf("SC_PAGE_SIZE")
CASES = {
    "in_order": {"name": "in_order", "maxLookaheadVersions": 2},
    "in_order, drops replaced": {"name": "in_order", "maxLookaheadVersions": 1},
    "weight_fifo": {"name": "weight_fifo", "maxStalenessVersions": 2},
    "ready_first": {"name": "ready_first", "maxStalenessVersions": 2},
    "windowed": {"name": "windowed", "maxStalenessVersions": 1, "overSamplingRatio": 1.5},
}


def draw(text):
    return crc32(text.encode()) / 2**32


def resident_bytes():
    """Without the pages that the allocator keeps for later, where it can give them back."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def sizes(parts):
    """Everything that could grow, by name."""
    usage, ledger, buffer = parts.plane.usage(), parts.ledger, parts.buffer
    buckets = [buffer._all_ready, *buffer._by_weight.values(), *buffer._by_target.values()]
    accounts = parts.accounts
    return {
        "resident memory": float(resident_bytes()),
        "tasks": len(asyncio.all_tasks()),
        "timers": len(asyncio.get_running_loop()._scheduled),
        "objects": len(gc.get_objects()),
        "data-plane keys": usage.keys_outstanding,
        "data-plane bytes": usage.bytes_outstanding,
        "ledger entries": len(ledger.entries),
        "ledger reserve and owed": len(ledger.reserve) + len(ledger.owed),
        "buffer slots": len(buffer),
        "buffer indexes": sum(len(bucket.heap) for bucket in buckets) + len(buckets),
        "step accounts": sum(len(counts) for counts in accounts._maps().values()),
        "in flight": len(parts.rollout.inflight) + parts.rollout.running,
        "capture": len(parts.rollout.groups.capture._current) if parts.rollout.groups.capture else 0,
    }


@dataclass
class Samples:
    """Sizes by groups seen."""

    every: int
    taken: list = field(default_factory=list)

    def look(self, parts):
        groups = parts.ledger.taken
        if not self.taken or groups >= self.taken[-1][0] + self.every:
            gc.collect()
            self.taken.append((groups, sizes(parts)))

    def judge(self, report, case):
        kept = self.taken[int(WARM_UP * len(self.taken)) :]
        xs = [groups for groups, _ in kept]
        for name in kept[0][1]:
            ys = [found[name] for _, found in kept]
            slope, error = regression(xs, ys)
            memory = name in ("resident memory", "data-plane bytes", "objects")
            matters = BYTES_A_GROUP if "objects" not in name and memory else ITEMS_A_GROUP
            unit = "B/group" if "objects" not in name and memory else "1/group"
            label = f"{case}: {name} (mean {sum(ys) / len(ys):,.0f})"
            report.at_most(label, slope, max(matters, 3 * error), unit)


def regression(xs, ys):
    """Slope of the least squares line, and its standard error."""
    count, x_mean, y_mean = len(xs), sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    left = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, math.sqrt(left / (count - 2) / spread)


# ── many groups, cheap engines ──────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True, eq=False)
class SoakParts(SimulatedParts):
    """With rows in the data plane."""

    def __post_init__(self):
        SimulatedParts.__post_init__(self)
        groups = self.rollout.groups
        stand_in = groups.committer
        groups.committer = Committer(
            **{name: getattr(stand_in, name) for name in Committer.__dataclass_fields__}
        )
        groups.discard_group = lambda record: draw(f"filtered {record.prompt.ref}") < FILTERED


@dataclass(slots=True, kw_only=True, eq=False)
class Soak(Simulation):
    """A simulation whose rows are kept, and that forgets what is filtered."""

    def event(self, kind, **facts):
        Simulation.event(self, kind, **facts)
        if kind == "prompt_filtered":
            self.work.discarded(facts["group"])

    def _connect(self):
        parts = Simulation._connect(self)
        names = set(SimulatedParts.__dataclass_fields__)
        made = {name for name, f in SimulatedParts.__dataclass_fields__.items() if not f.init}
        given = {name: getattr(parts, name) for name in names - made}
        for name in ("ledger", "accounts", "versions", "progress", "gate", "barrier", "changed"):
            del given[name]
        plane = InProcessPlane(self.spec.data_plane.storage_capacity)
        given["trainer"].plane = plane
        return SoakParts(**{**given, "plane": plane})


def cheap_spec(case, sampler, steps):
    failure = {
        "maxInfraAttemptsPerPrompt": 1000,
        "backoffBaseSeconds": 0.5,
        "maxDataAttemptsPerPrompt": 2 if "drops" in case else 1000,
        "maxSkippedPrompts": 10**9 if "drops" in case else 0,
        "minStepBatchFraction": 0.01,
        "onDroppedPrompt": "replace" if "drops" in case else "shrink",
    }
    more = {"loss": {"useImportanceSamplingCorrection": True}} if sampler["name"] == "ready_first" else {}
    return job_spec(
        groups_per_step=GROUPS_PER_STEP,
        generations=GENERATIONS,
        async_rl={
            "sampler": sampler,
            "maxInflightPrompts": 64,
            "minGroupsForStreamingTrain": 8,
            "requeueAbortedPrompts": True,
            "rolloutFailure": failure,
        },
        more={**more, "dataPlane": {"backend": "inProcess", "storageCapacity": 10_000_000}},
        maxNumSteps=steps,
    )


def soak_cheap(report, case, groups):
    samples, bad = Samples(min(EVERY, groups // SAMPLES)), 0.05 if "drops" in case else 0.003
    simulation = Soak(
        spec=cheap_spec(case, CASES[case], groups // GROUPS_PER_STEP),
        durations=Durations(
            generation=read_duration("", "lognormal:median=8,sigma=0.8"),
            training=read_duration("", "4"),
            refit=read_duration("", "0.2"),
        ),
        scenario=read_faults(
            ["rollout-error:probability=0.003", f"rollout-error:probability={bad},kind=data"]
        ),
        finished=lambda step, metrics: samples.look(simulation.parts),
    )
    return run_soak(report, case, samples, simulation.run, lambda: simulation.parts)


# ── fewer groups, everything on ─────────────────────────────────────────────────────────────────────


@dataclass
class WholeStart(ScriptedStart):
    """Everything watched, captured and saved; what the scripted engines note down is thrown away."""

    samples: Samples = None

    def __post_init__(self):
        self.finished = self._finished

    async def _go(self, parts):
        await parts.start()
        try:
            return await parts.run(parts.refit.run)
        finally:
            await parts.close()

    def _finished(self, parts, step, metrics):
        scripted = (parts.trainer.trained, parts.sync.landed, parts.sync.built_without)
        for notes in (self.events.seen, self.records.steps, *scripted):
            notes.clear()
        for shard in parts.shards:
            shard.started.clear()
            shard.aborted.clear()
        if step.version % 500 == 499 and step.version < 20_000:
            parts.shards[step.version // 500 % len(parts.shards)].die()
        self.samples.look(parts)

    def _shards(self):
        return [
            ScriptedGenerator(index=i, seconds=self.seconds, failing=self.failing, start_seconds=1.0)
            for i in range(2)
        ]

    def _sync(self, shards):
        return ScriptedSync(shards=shards, seconds=lambda version: 0.1, deadline_seconds=20.0)


def whole_spec(steps):
    return job_spec(
        groups_per_step=8,
        generations=GENERATIONS,
        async_rl={
            "sampler": {"name": "in_order", "maxLookaheadVersions": 1},
            "telemetryIntervalSeconds": 10.0,
            "generationFleetHealth": {
                "enabled": True,
                "onDeadShard": "restart",
                "maxRestartAttemptsPerShard": 1000,
                "restartBackoffBaseSeconds": 1e-3,
            },
            "refit": {"deadlineSeconds": 20.0, "maxRetries": 3},
        },
        checkpointing={"savePeriod": 20, "keepTopK": 2},
        more={
            "tokenCapture": {"enabled": True},
            "rolloutCheckpointing": {"snapshotAttemptIntervalSeconds": 20.0},
        },
        maxNumSteps=steps,
        maxNumEpochs=None,
    )


def soak_whole(report, groups):
    samples = Samples(min(EVERY, groups // SAMPLES))
    spec = whole_spec(groups // 8)
    with fast_disk(), tempfile.TemporaryDirectory() as scratch:
        start = WholeStart(
            spec,
            Path(scratch),
            prompts=Derived(spec).num_prompts_per_step * 1000,
            seconds=lambda request: 0.2 + 2.0 * draw(request.request_id) ** 3,
            train_seconds=lambda step: 1.0,
            samples=samples,
        )
        return run_soak(report, "everything on", samples, start.run, lambda: start.parts)


def run_soak(report, case, samples, run, parts):
    began = time.monotonic()
    end = run_virtual(run())
    seconds, ledger = time.monotonic() - began, parts().ledger
    report.note(f"{case}: groups ({end})", ledger.taken)
    report.note(f"{case}: dropped", ledger.dropped)
    report.note(f"{case}: discarded", ledger.discarded.total())
    report.note(f"{case}: attempts aborted", parts().rollout.counters.aborted)
    report.note(f"{case}: groups a second of wall time", ledger.taken / seconds)
    samples.judge(report, case)


def main():
    asked = arguments(__doc__, groups=1_000_000)
    groups = 300_000 if asked.quick else asked.groups
    report = Report(f"soak: {groups:,} prompt groups; slopes by groups seen")
    for case in CASES:
        soak_cheap(report, case, groups * 19 // 20 // len(CASES))
    soak_whole(report, groups // 20)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
