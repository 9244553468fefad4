"""`asyncrl chaos`: the command."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from asyncrl_runtime.app.chaos.books import Verdict, verdict
from asyncrl_runtime.app.chaos.faults import UnknownFault, kinds_for, plan
from asyncrl_runtime.app.chaos.run import ChaosRun
from asyncrl_runtime.app.manifest import ManifestError, read_job
from asyncrl_runtime.app.support import refuse_unbuilt

GOOD, INVALID, BAD = 0, 2, 3


def chaos_command(
    path: Path,
    sets: Sequence[str],
    *,
    seed: int,
    faults: Sequence[str],
    count: int,
    mean_gap_seconds: float,
    timeout_seconds: float,
    output: Path | None,
    as_json: bool,
) -> int:
    """Run it, mistreat it, and say what is left. Status 0: complete, nothing lost, nothing trained twice."""
    try:
        job = refuse_unbuilt(read_job(path, list(sets)), path, sets)
        words, left_out = kinds_for(job.spec, faults)
    except (ManifestError, UnknownFault) as error:
        sys.stderr.write(f"error: {error}\n")
        return INVALID
    folder = output or Path("runs") / f"{job.metadata.name}-chaos-{seed}"
    if folder.exists() and any(folder.iterdir()):
        sys.stderr.write(f"error: {folder} is not empty: choose another folder with --output\n")
        return INVALID
    say = _silent if as_json else _say
    for word, problem in left_out.items():
        say(f"left out: {word} ({problem})")
    run = ChaosRun(
        command=["run", str(path), "--output", str(folder), "--quiet", *_set_options(sets)],
        folder=folder,
        faults=plan(seed, words, count=count, mean_gap_seconds=mean_gap_seconds),
        timeout_seconds=timeout_seconds,
        seed=seed,
        tell=say,
    )
    asyncio.run(run.go())
    found = verdict(folder)
    if as_json:
        sys.stdout.write(json.dumps(_facts(run, found, left_out), indent=2) + "\n")
    else:
        _print(run, found)
    return BAD if _problem(run, found) else GOOD


def _set_options(sets: Sequence[str]) -> list[str]:
    return [part for assignment in sets for part in ("--set", assignment)]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _silent(line: str) -> None:
    """The result is all that is printed."""


def _facts(run: ChaosRun, found: Verdict, left_out: dict[str, str]) -> dict[str, object]:
    return {
        "seed": run.seed,
        "starts": run.starts,
        "timed_out": run.timed_out,
        "exit_status": run.last_code,
        "faults": [asdict(done) for done in run.done],
        "left_out": left_out,
        "status": found.status,
        "failure": found.failure,
        "prompts": found.prompts,
        "prompts_lost": found.lost,
        "groups_trained_twice": list(found.trained_twice),
        "steps_missing": list(found.steps_missing),
        "groups_unrecorded": found.unrecorded,
        "processes_left": run.processes_left,
        "problem": _problem(run, found),
        "good": _problem(run, found) is None,
    }


def _print(run: ChaosRun, found: Verdict) -> None:
    _say("")
    _say(f"{'fault':<20} {'at':>8} {'noticed':>9} {'recovered':>10}  target")
    for done in run.done:
        _say(
            f"{done.word:<20} {done.at_seconds:7.1f}s {_time(done.noticed_seconds):>9} "
            f"{_time(done.recovered_seconds):>10}  {done.target or '(nothing to do it to)'}"
        )
    _say("")
    if found.prompts:
        classes = ", ".join(
            f"{found.prompts[name]} {name}"
            for name in ("admitted", "trained", "dropped", "discarded", "live")
        )
        _say(f"prompts: {classes}; {found.lost} lost, {len(found.trained_twice)} trained twice")
    _say(_ending(run, found))


def _problem(run: ChaosRun, found: Verdict) -> str | None:
    """The first thing that is not good."""
    if run.timed_out:
        return f"it had not ended after {run.timeout_seconds:g} s (--timeout-seconds), and was killed"
    if found.problem is None and run.processes_left:
        return f"processes outlived the run, and were killed: {', '.join(run.processes_left)}"
    return found.problem


def _ending(run: ChaosRun, found: Verdict) -> str:
    problem = _problem(run, found)
    if problem:
        return f"NOT GOOD: {problem}"
    return f"good: complete after {run.starts} starts and {len(run.done)} faults"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}s"
