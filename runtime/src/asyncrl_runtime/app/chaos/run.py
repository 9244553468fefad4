"""Running a job while faults are done to it, and starting it again until it is over."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_runtime.app.chaos.books import events_of
from asyncrl_runtime.app.chaos.faults import Fault
from asyncrl_runtime.app.chaos.processes import Process, descendants
from asyncrl_runtime.app.state import read_state

POLL_SECONDS = 0.05
AGAIN = (75, 3, -signal.SIGKILL, -signal.SIGTERM)
"""Ends after which the job is started again, where a fault had ended the start."""


@dataclass(slots=True)
class Done:
    """What became of one fault."""

    word: str
    at_seconds: float
    """Since the beginning of the first start."""

    target: str
    """What it was done to; empty if there was nothing to do it to."""

    noticed_seconds: float | None = None
    """Until the run's events show it."""

    recovered_seconds: float | None = None
    """Until the shard serves again, or the next step is trained."""


@dataclass(slots=True, kw_only=True, eq=False)
class ChaosRun:
    """One job, its starts, and the faults done to them."""

    command: Sequence[str]
    """Of one start, without the program."""

    folder: Path
    faults: Sequence[Fault]
    timeout_seconds: float
    seed: int
    tell: Callable[[str], None] = lambda line: None
    starts: int = field(default=0, init=False)
    done: list[Done] = field(default_factory=list, init=False)
    timed_out: bool = field(default=False, init=False)
    last_code: int | None = field(default=None, init=False)
    _ending: bool = field(default=False, init=False)
    """The present start ends by what was done to it."""

    _began: float = field(default=0.0, init=False)

    async def go(self) -> None:
        """Start until the job is over, it ends on its own, or the time is up; then it is killed."""
        self._began = time.monotonic()
        waiting = list(self.faults)
        while True:
            self.starts += 1
            left = self.timeout_seconds - (time.monotonic() - self._began)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "asyncrl_runtime",
                *self.command,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._ending = False
            hurting = asyncio.create_task(self._hurt(process, waiting))
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    self.last_code = await process.wait()
            except TimeoutError:
                self.timed_out = True
                self._end(process)
                await process.wait()
            finally:
                hurting.cancel()
                with suppress(asyncio.CancelledError):
                    await hurting
            if self.timed_out or self.last_code not in AGAIN or not self._ending:
                break
            self.tell(f"start {self.starts} ended with {self.last_code}: starting again")
        self._read_times()

    async def _hurt(self, process: asyncio.subprocess.Process, waiting: list[Fault]) -> None:
        """Do the faults, one after the other, once the start has trained a step."""
        before = self._steps()
        while self._steps() == before:  # noqa: ASYNC110 - another process writes what is looked at
            await asyncio.sleep(POLL_SECONDS)
        while waiting and not self._ending:
            await asyncio.sleep(waiting[0].after_seconds)
            if process.returncode is not None:
                return
            await self._do(waiting.pop(0), process)

    async def _do(self, fault: Fault, process: asyncio.subprocess.Process) -> None:
        controller = Process(process.pid, "controller")
        done = Done(fault.word, time.monotonic() - self._began, "")
        self.done.append(done)
        what, _, whom = fault.word.partition("-")
        if what == "corrupt":
            done.target = self._corrupt(fault)
            if done.target:
                controller.send(signal.SIGKILL)
        else:
            target = controller if whom == "run" else self._pick(process.pid, whom, fault.choice)
            done.target = "" if target is None else target.name
            if target is not None:
                await _inflict(what, whom, target, fault.seconds)
        self._ending = bool(done.target) and fault.word in _ENDS
        self.tell(f"{done.at_seconds:6.1f} s  {fault.word:<20} {done.target or 'nothing to do it to'}")

    def _pick(self, root: int, whom: str, choice: float) -> Process | None:
        if whom == "shard":
            state = read_state(self.folder)
            shards = [] if state is None or state.pid != root else state.shards
            below = [Process(s.pid, f"shard {s.index}") for s in shards if s.pid and s.state == "HEALTHY"]
        else:
            below = [process for process in descendants(root) if _NAMES[whom].fullmatch(process.name)]
        return below[int(choice * len(below))] if below else None

    def _corrupt(self, fault: Fault) -> str:
        """Change one byte of one file of the newest checkpoint, unless it is the only one."""
        bundles = sorted(
            (self.folder / "checkpoints").glob("step_*"),
            key=lambda path: int(path.name.split("_")[1].split(".")[0]),
        )
        if len(bundles) < 2:
            return ""
        files = sorted(path for path in bundles[-1].rglob("*") if path.is_file() and path.stat().st_size)
        if not files:
            return ""
        path = files[int(fault.choice * len(files))]
        with suppress(OSError):
            content = bytearray(path.read_bytes())
            place = random.Random(f"{self.seed}/{fault.choice}").randrange(len(content))
            content[place] ^= 0xFF
            path.write_bytes(bytes(content))
        return f"{bundles[-1].name}/{path.relative_to(bundles[-1])}"

    def _end(self, process: asyncio.subprocess.Process) -> None:
        """Its workers end with it."""
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()

    def _steps(self) -> int:
        return sum(event["kind"] == "step_trained" for event in events_of(self.folder))

    # ── times ───────────────────────────────────────────────────────────────────────────────────────

    def _read_times(self) -> None:
        """From the events: when each fault was noticed, and when the run had recovered from it."""
        events = list(events_of(self.folder))
        offset = time.time() - (time.monotonic() - self._began)
        for done in self.done:
            if not done.target:
                continue
            at = offset + done.at_seconds
            later = [event for event in events if event["time"] >= at]
            if done.target.startswith("shard ") and done.word in ("kill-shard", "freeze-shard"):
                index = int(done.target.split()[1])
                moves = [e for e in later if e["kind"] == "shard_state" and e["shard"] == index]
                done.noticed_seconds = _first(at, (e for e in moves if e["new"] != "HEALTHY"))
                lost = [e for e in moves if e["new"] == "DEAD"]
                done.recovered_seconds = _first(
                    at, (e for e in moves if lost and e["new"] == "HEALTHY" and e["time"] > lost[0]["time"])
                )
            else:
                done.recovered_seconds = _first(at, (e for e in later if e["kind"] == "step_trained"))


_ENDS = frozenset({"kill-run", "stop-run", "kill-trainer", "corrupt-checkpoint"})
_NAMES = {
    "trainer": re.compile("trainer"),
    "environment": re.compile(r"\S+-\d+"),
}
"""What the processes of a role are called in process lists."""


async def _inflict(what: str, whom: str, target: Process, seconds: float) -> None:
    match what:
        case "kill":
            target.send(signal.SIGKILL)
        case "stop":
            target.send(signal.SIGTERM)
        case "freeze":
            target.send(signal.SIGSTOP)
            if whom in ("trainer", "run"):
                await asyncio.sleep(seconds)
                target.send(signal.SIGCONT)
        case "slow":
            until = time.monotonic() + 2 * seconds
            while time.monotonic() < until and target.send(signal.SIGSTOP):
                await asyncio.sleep(0.08)
                target.send(signal.SIGCONT)
                await asyncio.sleep(0.02)


def _first(at: float, events: Iterable[dict]) -> float | None:
    return next((event["time"] - at for event in events), None)
