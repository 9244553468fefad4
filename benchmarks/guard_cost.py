"""What the guards cost a healthy run: step time with them on, over step time with them off.

    PYTHONPATH=tests python benchmarks/guard_cost.py [--pairs 5] [--steps 100] [--quick]

Real: the demo's shape with torch processes, without its slow completions. Scripted: the controller alone,
on a real clock, with engines that sleep as long as small ones take, so that its own work is what differs.
Runs with a guard off and on alternate (ABAB…), so that both meet the same machine. Of each run the median
step counts, the first tenth left out; of the pairs the median ratio, beside the smallest and the largest.
Each guard alone, then all of them; snapshots need token capture, so they are compared with it.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from zlib import crc32

from common import Report, arguments
from support.jobs import ScriptedStart, job_spec

from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator, ScriptedSync

DEMO = Path(__file__).parents[1] / "crds" / "samples" / "reverse-digits.yaml"
MOST_PERCENT = 2.0
NEVER = 900

HEALTH = {
    "asyncRL.generationFleetHealth": {"enabled": True, "onDeadShard": "restart", "restartGraceSeconds": 60}
}
BOUNDS = {"asyncRL.refit": {"deadlineSeconds": 60, "maxRetries": 3}}
CAPTURE = {"tokenCapture": {"enabled": True}}
SNAPSHOTS = {"rolloutCheckpointing": {"snapshotAttemptIntervalSeconds": 2}}
BUDGETS = {
    "asyncRL.rolloutFailure": {
        "maxSkippedPrompts": 10,
        "maxConsecutiveDroppedPrompts": 5,
        "onDroppedPrompt": "replace",
        "native": {"generationTimeoutSeconds": 60, "envTimeoutSeconds": 60},
    }
}
TELEMETRY = {"asyncRL.telemetryIntervalSeconds": 1}
WATCHDOG = {
    "asyncRL.stallWatchdog": {"intervalSeconds": 1, "stallTimeoutSeconds": 600, "stallAction": "abort"}
}
OFF = {"asyncRL.stallWatchdog": {"intervalSeconds": NEVER, "stallTimeoutSeconds": 1000}}
GUARDS = {
    "fleet health": (OFF, {**OFF, **HEALTH, **BOUNDS}),
    "watchdog": (OFF, WATCHDOG),
    "telemetry": (OFF, {**OFF, **TELEMETRY}),
    "budgets and deadlines": (OFF, {**OFF, **BUDGETS}),
    "token capture": (OFF, {**OFF, **CAPTURE}),
    "snapshots": ({**OFF, **CAPTURE}, {**OFF, **CAPTURE, **SNAPSHOTS}),
    "all but token capture": (OFF, {**WATCHDOG, **HEALTH, **BOUNDS, **TELEMETRY, **BUDGETS}),
    "all": (OFF, {**WATCHDOG, **HEALTH, **BOUNDS, **TELEMETRY, **BUDGETS, **CAPTURE, **SNAPSHOTS}),
}


# ── real processes ──────────────────────────────────────────────────────────────────────────────────


def real_step_seconds(settings, steps):
    """Median step of a run of the demo."""
    changes = {
        "algorithm.grpo.maxNumSteps": steps,
        "generation.engineArgs": {},
        "data.validation": None,
        "validation.periodSteps": 0,
        "validation.atEnd": False,
        **settings,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        command = [sys.executable, "-m", "asyncrl_runtime", "run", DEMO, "--quiet", "--output", folder]
        command += [
            part for name, value in changes.items() for part in ("--set", f"spec.{name}={json.dumps(value)}")
        ]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    return typical([row["timing/train/total_step_time"] for row in map(json.loads, lines)])


def typical(seconds):
    return median(seconds[len(seconds) // 10 :])


# ── the controller alone ────────────────────────────────────────────────────────────────────────────


class HealthyStart(ScriptedStart):
    """Everything that `asyncrl run` runs beside the pumps."""

    async def _go(self, parts):
        await parts.start()
        began = time.process_time()
        try:
            return await parts.run(parts.refit.run)
        finally:
            self.cpu_seconds = time.process_time() - began
            await parts.close()

    def _shards(self):
        def seconds(request):
            return 0.02 + 0.06 * crc32(request.request_id.encode()) / 2**32

        return [ScriptedGenerator(index=i, seconds=seconds, tokens=lambda request: 20) for i in range(2)]

    def _sync(self, shards):
        return ScriptedSync(shards=shards, seconds=lambda version: 0.005, deadline_seconds=60.0)


def scripted_spec(settings, steps):
    async_rl = {
        name.partition(".")[2]: value for name, value in settings.items() if name.startswith("asyncRL.")
    }
    more = {name: value for name, value in settings.items() if not name.startswith("asyncRL.")}
    return job_spec(
        groups_per_step=16,
        generations=16,
        async_rl={"sampler": {"name": "in_order", "maxLookaheadVersions": 1}, **async_rl},
        checkpointing={"savePeriod": 10, "keepTopK": 3},
        more=more,
        maxNumSteps=steps,
        maxNumEpochs=None,
    )


def scripted_step_seconds(settings, steps):
    """Median step of scripted engines, and the controller's own seconds of a step."""
    with tempfile.TemporaryDirectory() as scratch:
        start = HealthyStart(
            scripted_spec(settings, steps), Path(scratch), prompts=800, train_seconds=lambda step: 0.1
        )
        asyncio.run(start.run())
    seconds = typical([values["timing/train/total_step_time"] for values in start.records.steps])
    return seconds, start.cpu_seconds / steps


# ── pairs ───────────────────────────────────────────────────────────────────────────────────────────


def compare(report, label, pairs, off, on):
    """Alternate; the median ratio of the pairs beside its spread."""
    found = [(off(), on()) for _ in range(pairs)]
    ratios = sorted(b / a for a, b in found)
    report.at_most(f"{label}: step time on / off", 100 * (median(ratios) - 1), MOST_PERCENT, "%")
    spread = f"{100 * (ratios[0] - 1):+.1f} to {100 * (ratios[-1] - 1):+.1f} %"
    times = [f"{1e3 * median(pair[i] for pair in found):.1f} ms" for i in (0, 1)]
    print(f"    off {times[0]}, on {times[1]}; pairs from {spread}", flush=True)


def scripted(report, guards, pairs, steps):
    for name in guards:
        off, on = GUARDS[name]
        cpu = {"off": [], "on": []}

        def run(settings, which, cpu=cpu):
            seconds, own = scripted_step_seconds(settings, steps)
            cpu[which].append(own)
            return seconds

        compare(
            report,
            f"scripted, {name}",
            pairs,
            lambda off=off, run=run: run(off, "off"),
            lambda on=on, run=run: run(on, "on"),
        )
        own = {which: 1e3 * median(found) for which, found in cpu.items()}
        print(f"    the controller's own time of a step: off {own['off']:.1f} ms, on {own['on']:.1f} ms")


def real(report, guards, pairs, steps):
    for name in guards:
        off, on = GUARDS[name]
        compare(
            report,
            f"real, {name}",
            pairs,
            lambda off=off: real_step_seconds(off, steps),
            lambda on=on: real_step_seconds(on, steps),
        )


def main():
    asked = arguments(__doc__, pairs=5, steps=100)
    pairs, steps = (1, 40) if asked.quick else (asked.pairs, asked.steps)
    guards = ["token capture", "all"] if asked.quick else list(GUARDS)
    report = Report(f"guards in a healthy run: {pairs} pairs of {steps} steps each")
    scripted(report, guards, pairs, steps)
    real(report, guards, pairs, steps)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
