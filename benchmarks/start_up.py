"""B14: time until commands answer, time to the first step of the demo, and the memory of its processes.

    python benchmarks/start_up.py [--quick]

Times are wall-clock, from the command to its end or to the first line of metrics.jsonl; of the short commands
the best of 5 counts. Memory is the peak of the sum over the run's processes: proportional set sizes, so that
pages which forked workers share count once.
"""

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from common import Report, arguments

ASYNCRL = Path(sys.executable).parent / "asyncrl"
DEMO = Path(__file__).parents[1] / "crds" / "samples" / "reverse-digits.yaml"
HELP_SECONDS, VALIDATE_SECONDS, FIRST_STEP_SECONDS = 0.3, 1.0, 10.0
MEMORY_BYTES = 1.5e9
PERIOD_SECONDS = 0.1


def best_of(times, *command):
    """Seconds of the quickest of some calls."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([ASYNCRL, *command], check=True, capture_output=True)
        found.append(time.perf_counter() - began)
    return min(found)


def family(root):
    """A process and its descendants; those that end meanwhile are left out."""
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found, ahead = [], [root]
    while ahead:
        found.append(ahead.pop())
        ahead += children.get(found[-1], ())
    return found


def proportional_bytes(process):
    """Proportional set size of a process; None once it is gone."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@dataclass
class Watch:
    """Looks at a run's processes until it is told to stop."""

    process: subprocess.Popen
    metrics: Path
    began: float
    first_step_seconds: float | None = None
    peak: dict = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self):
        """Note the first step to 10 ms, the memory every `PERIOD_SECONDS`."""
        due = 0.0
        while not self.stop.wait(0.01):
            now = time.perf_counter()
            if self.first_step_seconds is None and self.metrics.exists() and self.metrics.stat().st_size:
                self.first_step_seconds = now - self.began
            if now >= due:
                due = now + PERIOD_SECONDS
                sizes = {process: proportional_bytes(process) for process in family(self.process.pid)}
                held = {process: size for process, size in sizes.items() if size is not None}
                if sum(held.values()) > sum(self.peak.values()):
                    self.peak = held


def watched_demo(quick):
    """Run the demo to its end under a watch."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        changes = ["--set", "spec.algorithm.grpo.maxNumSteps=30"] if quick else []
        began = time.perf_counter()
        process = subprocess.Popen([ASYNCRL, "run", DEMO, "--output", folder, "--quiet", *changes])
        watch = Watch(process, folder / "metrics.jsonl", began)
        thread = threading.Thread(target=watch.run)
        thread.start()
        try:
            status = process.wait()
        finally:
            watch.stop.set()
            thread.join()
    if status:
        raise SystemExit(f"the demo ended with status {status}")
    return watch


def main():
    quick = arguments(__doc__).quick
    report = Report("start-up and memory")
    report.at_most("asyncrl --help", best_of(5, "--help"), HELP_SECONDS, "s")
    report.at_most("asyncrl validate", best_of(5, "validate", DEMO), VALIDATE_SECONDS, "s")
    watch = watched_demo(quick)
    report.at_most("demo: command to first trained step", watch.first_step_seconds, FIRST_STEP_SECONDS, "s")
    report.at_most(
        "demo: peak memory of its processes", sum(watch.peak.values()) / 1e6, MEMORY_BYTES / 1e6, "MB"
    )
    for at, (process, size) in enumerate(sorted(watch.peak.items())):
        report.note(
            f"process {at + 1}{' (the command)' if process == watch.process.pid else ''}", size / 1e6, "MB"
        )
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
