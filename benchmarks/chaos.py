"""B10: chaos. Random jobs under random faults: on a virtual clock, and with real processes.

    PYTHONPATH=tests python benchmarks/chaos.py [--virtual 200] [--real 30] [--jobs 1] [--seed 0] [--quick]

Virtual: the real controller, checkpoints and snapshots in a folder, scripted engines; settings, sampler and
faults follow from the seed (tests/support/chaos.py). Shards die, freeze, hang and slow down; completions,
weight transfers and train steps fail; the process ends between two awaits, and is started again until the
job is over. Real: `asyncrl chaos` on stormy.yaml, whose processes are killed, frozen, slowed, and whose
checkpoints get a wrong byte. Bounds: nothing lost, nothing trained on twice, nothing left behind, every run
ends by itself.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from statistics import median

from common import Report, arguments
from support.chaos import BOUND_SECONDS, Case, check, facts_of, fast_disk, run_case

STORMY = Path(__file__).parent / "stormy.yaml"
SAMPLERS = (
    "{name: in_order, maxLookaheadVersions: 1}",
    "{name: weight_fifo, maxStalenessVersions: 1}",
    "{name: ready_first, maxStalenessVersions: 1}",
    "{name: windowed, maxStalenessVersions: 4}",
)
STEPS, PROMPTS_PER_STEP = (60, 80, 100, 120), 4
FAULTS, GAP_SECONDS, TIMEOUT_SECONDS = 8, 1.0, 400


# ── on the virtual clock ────────────────────────────────────────────────────────────────────────────


def virtual_run(seed):
    """Facts of one seed; `problem` if it broke a promise."""
    case = Case(seed)
    with fast_disk(), tempfile.TemporaryDirectory() as scratch:
        try:
            outcome = run_case(case, Path(scratch) / "run")
            check(case, outcome)
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed is what matters
            problem = f"{type(error).__name__}: {error} ({facts_of(case)})"
            return {"seed": seed, "problem": problem}
    return {
        "seed": seed,
        "problem": None,
        "starts": outcome.starts,
        "killed": outcome.killed,
        "resumed": outcome.resumed,
        "happened": outcome.happened,
        "longest": outcome.longest_seconds,
        "prompts": outcome.start.counts().admitted,
    }


def virtual(report, count, seed, jobs):
    began = time.monotonic()
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(virtual_run, range(seed, seed + count), chunksize=4))
    bad = [run for run in found if run["problem"]]
    good = [run for run in found if not run["problem"]]
    for run in bad:
        print(f"    seed {run['seed']}: {run['problem']}")
    report.at_most(f"virtual: runs of {count} that lost, repeated or left something", len(bad), 0)
    for name in ("starts", "killed", "resumed", "prompts"):
        report.note(f"virtual: {name}", sum(run[name] for run in good))
    for what, times in sorted(sum((run["happened"] for run in good), Counter()).items()):
        report.note(f"virtual: {what}", times)
    longest = max((run["longest"] for run in good), default=0.0)
    report.at_most("virtual: longest start, on the virtual clock", longest, BOUND_SECONDS, "s")
    report.note("virtual: wall time", time.monotonic() - began, "s")


# ── with real processes ─────────────────────────────────────────────────────────────────────────────


def real_run(seed):
    """What `asyncrl chaos` says of one seed."""
    steps = STEPS[seed % len(STEPS)]
    sets = {
        "spec.asyncRL.sampler": SAMPLERS[seed // len(STEPS) % len(SAMPLERS)],
        "spec.algorithm.grpo.maxNumSteps": steps,
        "spec.data.source.generated.numPrompts": steps * PROMPTS_PER_STEP,
    }
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "asyncrl_runtime", "chaos", STORMY, "--json", "--seed", seed]
        command += ["--count", FAULTS, "--mean-gap-seconds", GAP_SECONDS]
        command += ["--timeout-seconds", TIMEOUT_SECONDS, "--output", Path(scratch) / "run"]
        command += [part for name, value in sets.items() for part in ("--set", f"{name}={value}")]
        answer = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if not answer.stdout:
        raise SystemExit(f"asyncrl chaos --seed {seed} said nothing: {answer.stderr}")
    return json.loads(answer.stdout)


def real(report, count, seed, jobs):
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(real_run, range(seed, seed + count)))
    for run in found:
        if not run["good"]:
            print(f"    seed {run['seed']}: {run['problem']}; prompts {run['prompts']}")
    report.at_most(f"real: runs of {count} that were not good", sum(not run["good"] for run in found), 0)
    report.at_most("real: prompts lost", sum(run["prompts_lost"] for run in found), 0)
    report.at_most("real: trained on twice", sum(len(run["groups_trained_twice"]) for run in found), 0)
    report.at_most("real: processes left", sum(len(run["processes_left"]) for run in found), 0)
    report.note("real: starts", sum(run["starts"] for run in found))
    report.note("real: prompts", sum(run["prompts"]["admitted"] for run in found if run["prompts"]))
    seen, back = defaultdict(list), defaultdict(list)
    done = Counter(fault["word"] for run in found for fault in run["faults"] if fault["target"])
    for fault in (fault for run in found for fault in run["faults"]):
        for times, name in ((seen, "noticed_seconds"), (back, "recovered_seconds")):
            if fault[name] is not None:
                times[fault["word"]].append(fault[name])
    for word, times in sorted(done.items()):
        report.note(f"real: {word}", times)
        if seen[word]:
            report.note(f"real: {word}: noticed after, median", median(seen[word]), "s")
        if back[word]:
            report.note(f"real: {word}: recovered after, median", median(back[word]), "s")
    report.note("real: wall time", time.monotonic() - began, "s")


def main():
    asked = arguments(__doc__, virtual=200, real=30, jobs=1, seed=0)
    runs = (20, 2) if asked.quick else (asked.virtual, asked.real)
    report = Report("chaos: random jobs under random faults")
    if runs[0]:
        virtual(report, runs[0], asked.seed, asked.jobs)
    if runs[1]:
        real(report, runs[1], asked.seed, asked.jobs)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
