"""Crash points: the process ends around the k-th change of the disk, and all goes on from what is whole.

    PYTHONPATH=tests python benchmarks/crash_points.py [--store 150] [--runs 150] [--jobs 1] [--quick]

A change is the creation of a file or folder, a write, a sync, a rename, a replacement or a removal; the crash
comes before it, after it, or after it with every file that was not synced cut in half, as after a power loss.
Store: random histories of checkpoints, replacements, snapshots, prunes and deletions. Runs: whole jobs of
scripted engines with checkpoints and snapshots, on a virtual clock (tests/support/crashes.py). Afterwards
whatever can be selected is whole, the newest confirmed state or a newer one is found, and the run goes on to
its end without losing or repeating a prompt.
"""

import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from common import Report, arguments
from support.crashes import HOWS, crash_run, crash_store

KINDS = {"store": crash_store, "runs": crash_run}


def crash(point):
    """Where the crash came, and what broke."""
    kind, seed, how = point
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return KINDS[kind](Path(scratch), seed, how).crashed_in, None
        except Exception as error:  # noqa: BLE001 - whatever it is, the point is what matters
            return None, f"seed {seed}, {how}: {type(error).__name__}: {error}"


def measure(report, kind, count, seed, jobs):
    began = time.monotonic()
    seeds = range(seed, seed + -(-count // len(HOWS)))
    points = [(kind, each, how) for each, how in product(seeds, HOWS)][:count]
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(crash, points, chunksize=3))
    bad = [problem for _, problem in found if problem]
    for problem in bad:
        print(f"    {problem}")
    report.at_most(f"{kind}: of {len(points)} crashes, lost or torn", len(bad), 0)
    for name, times in sorted(Counter(name for name, problem in found if not problem).items()):
        report.note(f"{kind}: crashes in {name}", times)
    report.note(f"{kind}: wall time", time.monotonic() - began, "s")


def main():
    asked = arguments(__doc__, store=150, runs=150, seed=0, jobs=1)
    report = Report("crash points of checkpoints and snapshots")
    for kind in KINDS:
        measure(report, kind, 12 if asked.quick else getattr(asked, kind), asked.seed, asked.jobs)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
