"""Running a job while faults are done to it, and starting it again until it is over."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl_runtime.app.chaos.books import events_of
from asyncrl_runtime.app.chaos.faults import Fault
from asyncrl_runtime.app.chaos.inflict import ENDS, MAY_END, Inflictor
from asyncrl_runtime.app.chaos.processes import Process, descendants

POLL_SECONDS = 0.05
GONE_SECONDS = 10.0
"""In which the workers of the last start must have ended."""

AGAIN = (75, 3, -signal.SIGKILL, -signal.SIGTERM)
"""Ends after which the job is started again, where a fault had ended the start."""


@dataclass(slots=True)
class Done:
    """What became of one fault."""

    word: str
    at_seconds: float
    """Since the beginning of the first start."""

    target: str = ""
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
    processes_left: list[str] = field(default_factory=list, init=False)
    """Processes of the run that outlived it; they are killed."""

    _seen: set[Process] = field(default_factory=set, init=False)
    _ending: bool = field(default=False, init=False)
    """The present start ends by what was done to it."""

    _may_end: bool = field(default=False, init=False)
    """It may."""

    _began: float = field(default=0.0, init=False)
    _steps_read: tuple[int, int] = field(default=(-1, 0), init=False)
    """Size of the events, and steps in them."""

    async def go(self) -> None:
        """Start until the job is over, it ends on its own, or the time is up; then it is killed."""
        self._began = time.monotonic()
        waiting = list(self.faults)
        while True:
            await self._start(waiting)
            if self.timed_out or self.last_code not in AGAIN or not self._may_end:
                break
            self.tell(f"start {self.starts} ended with {self.last_code}: starting again")
        await self._look_for_processes()
        self._read_times()

    async def _start(self, waiting: list[Fault]) -> None:
        """One start, to its end."""
        self.starts += 1
        left = self.timeout_seconds - (time.monotonic() - self._began)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "asyncrl_runtime",
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._ending = self._may_end = False
        hurting = asyncio.create_task(self._hurt(process, waiting))
        try:
            async with asyncio.timeout(max(left, 0.0)):
                self.last_code = await process.wait()
        except TimeoutError:
            self.timed_out = True
        finally:
            if process.returncode is None:
                self._see(process.pid)
                with suppress(ProcessLookupError):
                    process.kill()
                self.last_code = await process.wait()
            hurting.cancel()
            await asyncio.wait([hurting])
        if not hurting.cancelled() and (error := hurting.exception()) is not None:
            raise error

    async def _hurt(self, process: asyncio.subprocess.Process, waiting: list[Fault]) -> None:
        """Do the faults, one after the other, once the start has trained a step."""
        before = self._steps()
        while self._steps() == before:  # noqa: ASYNC110 - another process writes what is looked at
            await asyncio.sleep(POLL_SECONDS)
        inflictor = Inflictor(
            controller=Process(process.pid, "controller"), folder=self.folder, seed=self.seed
        )
        self._see(process.pid)
        while waiting and not self._ending:
            await asyncio.sleep(waiting[0].after_seconds)
            if process.returncode is not None:
                return
            await self._do(waiting.pop(0), inflictor)

    async def _do(self, fault: Fault, inflictor: Inflictor) -> None:
        self._see(inflictor.controller.pid)
        done = Done(fault.word, time.monotonic() - self._began)
        self.done.append(done)
        before, self._may_end = self._may_end, self._may_end or fault.word in MAY_END
        done.target = await inflictor.inflict(fault)
        if done.target:
            done.at_seconds = inflictor.struck_at - self._began
        self._ending = fault.word in ENDS and bool(done.target)
        self._may_end = before or (fault.word in MAY_END and bool(done.target))
        self.tell(f"{done.at_seconds:6.1f} s  {fault.word:<20} {done.target or 'nothing to do it to'}")

    def _see(self, controller: int) -> None:
        """Remember the processes of now, to look at the end whether all of them are gone."""
        self._seen.update(descendants(controller))

    async def _look_for_processes(self) -> None:
        until = time.monotonic() + GONE_SECONDS
        while (  # noqa: ASYNC110 - the system tells nobody of their end
            left := [process for process in self._seen if process.alive]
        ) and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
        for process in left:
            process.send(signal.SIGKILL)
        self.processes_left = sorted(process.name for process in left)

    def _steps(self) -> int:
        """Steps in the events, also those that were taken back."""
        path = self.folder / "events.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if size != self._steps_read[0]:
            steps = sum(event["kind"] == "step_trained" for event in events_of(self.folder))
            self._steps_read = (size, steps)
        return self._steps_read[1]

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
            if done.word in ("kill-shard", "freeze-shard"):
                index = int(done.target.split()[1])
                moves = [e for e in later if e["kind"] == "shard_state" and e["shard"] == index]
                done.noticed_seconds = _first(at, (e for e in moves if e["new"] != "HEALTHY"))
                lost = [e for e in moves if e["new"] == "DEAD"]
                done.recovered_seconds = _first(
                    at, (e for e in moves if lost and e["new"] == "HEALTHY" and e["time"] > lost[0]["time"])
                )
            else:
                done.recovered_seconds = _first(at, (e for e in later if e["kind"] == "step_trained"))


def _first(at: float, events: Iterable[Mapping[str, Any]]) -> float | None:
    return next((event["time"] - at for event in events), None)
