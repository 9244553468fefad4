"""`asyncrl run`: one job on this machine, from the lock to the summary."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from asyncrl_api.base import quantity_bytes
from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob
from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.environments.build import build_environment
from asyncrl_runtime.adapters.folder_lock import FolderLock
from asyncrl_runtime.adapters.sealed_folder import write_atomically
from asyncrl_runtime.adapters.sinks.build import open_sinks
from asyncrl_runtime.adapters.sinks.events import EventLog, SampleLog
from asyncrl_runtime.adapters.sources.build import training_prompts, validation_prompts
from asyncrl_runtime.adapters.tokenizers.build import load_tokenizer
from asyncrl_runtime.app.beside import import_from, with_located_model
from asyncrl_runtime.app.build import Outside, Parts, connect
from asyncrl_runtime.app.config import config_yaml, redacted_spec
from asyncrl_runtime.app.dumps import StackDumps
from asyncrl_runtime.app.failures import as_run_error, failure_facts
from asyncrl_runtime.app.loop_watch import LoopFrozen, LoopWatch
from asyncrl_runtime.app.observer import RunObserver
from asyncrl_runtime.app.resume import Found, newest_usable, resume
from asyncrl_runtime.app.screen import Screen
from asyncrl_runtime.app.snapshot import run_state
from asyncrl_runtime.app.state import RunState, read_state
from asyncrl_runtime.app.summary import Status, Tally, write_early_failure, write_summary
from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.fingerprint import identity_of
from asyncrl_runtime.core.ledger import PromptCounts
from asyncrl_runtime.core.records import GroupMeta
from asyncrl_runtime.pumps.step import OpenStep
from asyncrl_runtime.pumps.train import RunEnd

DONE, DONE_WITH_LOSSES, INVALID, FAILED, STOPPED, INTERRUPTED = 0, 1, 2, 3, 75, 130
STATE_SECONDS = 1.0

log = structlog.get_logger("asyncrl.run")


@dataclass(slots=True, kw_only=True, eq=False)
class JobRun:
    """One start of a job in its folder."""

    job: AsyncRLJob
    """Resolved."""

    folder: Path
    screen: Screen
    started: float
    """`time.monotonic()` of the command."""

    manifest_folder: Path
    tally: Tally = field(default_factory=Tally)
    running: Callable[[], object] = lambda: None
    """Called once the pumps run."""

    parts: Parts | None = field(default=None, init=False)
    signals: int = field(default=0, init=False)
    _dumps: StackDumps = field(init=False)
    _phase: str = field(default="Pending", init=False)
    _told_unwritable: bool = field(default=False, init=False)
    _earlier_seconds: float = field(default=0.0, init=False)
    """What earlier starts took, up to the restored checkpoint."""

    _goes_on: bool = field(default=False, init=False)
    """Its state is the run's: what earlier starts reached is restored."""

    def __post_init__(self) -> None:
        self._dumps = StackDumps(self.folder)

    async def go(self) -> int:
        """Run to the end; the exit status (CLI-21)."""
        lock = FolderLock(self.folder / ".lock")
        lock.acquire()
        try:
            return await self._locked()
        except Exception as error:
            told = as_run_error(error, self.folder)
            if not self._goes_on:
                self._close_books_early(told)
            raise told from error
        finally:
            lock.release()

    def elapsed(self) -> float:
        """Seconds since the command was given, with those of earlier starts that still count."""
        return self._earlier_seconds + time.monotonic() - self.started

    # ── phases ──────────────────────────────────────────────────────────────────────────────────────

    async def _locked(self) -> int:
        observer = RunObserver(
            events=EventLog(self.folder / "events.jsonl"),
            samples=SampleLog(self.folder / "samples.jsonl"),
            sample_every=self.job.spec.logging.sample_every,
            sample_max_bytes=quantity_bytes(self.job.spec.logging.sample_max_size),
            tally=self.tally,
            elapsed=self.elapsed,
            diagnostics=self.job.spec.async_rl.diagnostics,
        )
        try:
            return await self._observed(observer)
        finally:
            observer.close()

    async def _observed(self, observer: RunObserver) -> int:
        self._take_signals(observer)
        self.job = with_located_model(self.job, self.manifest_folder)
        text = config_yaml(self.job)
        write_atomically(self.folder / "config.yaml", text)
        store = DirectoryStore(self.folder / "checkpoints")
        store.claim()
        store.sweep()
        snapshots = DirectorySnapshots(store)
        snapshots.sweep()
        self._enter("Initializing", "reading data")
        rollouts = self.job.spec.rollout_checkpointing
        identity = identity_of(redacted_spec(self.job), rollouts.extra_fingerprint_excluded_paths)
        found = newest_usable(store, snapshots=snapshots, mode=rollouts.restore_mode, identity=identity)
        if found is None and rollouts.snapshot_attempt_interval_seconds is not None:
            snapshots.write_bootstrap(identity.to_json())
        observer.samples.forget_after(found.cut.steps if found else 0)
        outside = await self._outside(observer, store, text, found)
        import_from(self.manifest_folder)
        try:
            self.parts = connect(self.job, outside)
            return await self._with_parts(self.parts, found)
        finally:
            outside.sink.close()

    async def _outside(
        self, observer: RunObserver, store: DirectoryStore, text: str, found: Found | None
    ) -> Outside:
        spec, facts = self.job.spec, Derived(self.job.spec)
        source = await asyncio.to_thread(training_prompts, spec.data, folder=self.manifest_folder)
        validation = await asyncio.to_thread(validation_prompts, spec.data, folder=self.manifest_folder)
        tokenizer = await asyncio.to_thread(load_tokenizer, spec.model, spec.data)
        sink = open_sinks(
            spec.logging,
            run_folder=self.folder,
            job_name=self.job.metadata.name,
            job_facts={
                "name": self.job.metadata.name,
                "sampler": facts.sampler,
                "algorithm": "ppo" if facts.is_ppo else "grpo",
                "version": _version(),
            },
            metrics_port=spec.observability.metrics_port or 0,
            resumed_step=found.cut.steps if found else None,
        )
        return Outside(
            source=source,
            validation=validation,
            tokenizer=tokenizer,
            environment=build_environment(spec, folder=self.manifest_folder),
            observer=observer,
            sink=sink,
            store=store,
            config_yaml=text,
            began=asyncio.get_running_loop().time(),
            dump_stacks=self._dumps.write,
            finished_step=self._finished_step(observer),
            recent_events=lambda: observer.events.recent,
            tallies=self._tallies,
        )

    async def _with_parts(self, parts: Parts, found: Found | None) -> int:
        self._goes_on = found is None
        state = asyncio.create_task(self._keep_state(), name="state")
        try:
            self._enter("Initializing", "starting trainer and shards")
            await parts.start()
            if found is not None:
                self._enter("Initializing", f"restoring {found.name}")
                await resume(parts, found)
                self._carry_tallies(parts, found)
            self._goes_on = True
            end = await self._trained(parts)
        except Exception as error:
            state.cancel()
            told = as_run_error(error, self.folder)
            if self._goes_on:
                self._close_books("failed", str(told), parts, told)
            raise told from error
        else:
            state.cancel()
            status: Status = "stopped" if end == "stopped" else "complete"
            self._close_books(status, end, parts, None)
            return self._exit_status(parts, end)
        finally:
            await parts.close()

    async def _trained(self, parts: Parts) -> RunEnd:
        watch = LoopWatch(
            settings=self.job.spec.async_rl.stall_watchdog, dump=self._dumps.write, frozen=self._on_frozen
        )
        with watch.watching(asyncio.get_running_loop()):
            return await parts.run(self._prepared)

    def state(self) -> RunState:
        """Where the run stands now; before its parts are there, only its name and phase."""
        if self.parts is None:
            return RunState(name=self.job.metadata.name, phase=self._phase, pid=os.getpid())
        return self._state(self.parts)

    def request_stop(self, cause: str) -> bool:
        """Finish or save, then end; False before the parts are there."""
        if self.parts is None:
            return False
        self.parts.outside.observer.event("stop_requested", cause=cause)
        self.parts.ask_to_stop()
        return True

    async def _prepared(self) -> None:
        """Initial weight sync, and the validation before the first step (SC-5.4)."""
        parts = self.parts
        assert parts is not None
        self._enter("Running", "generating the first groups")
        validate = parts.validator.due(parts.progress.steps, last=False)
        await parts.refit.run(keep_closed=validate)
        if validate:
            self._enter("Running", "validating")
            measured = await parts.validator.run(parts.progress.steps)
            self.tally.validation_mean = measured.get("accuracy")
            parts.gate.open()
        self.running()

    # ── telling ─────────────────────────────────────────────────────────────────────────────────────

    def _finished_step(self, observer: RunObserver) -> Callable[[OpenStep, Mapping[str, float]], None]:
        def finished(step: OpenStep, metrics: Mapping[str, float]) -> None:
            observer.finished_step(step, metrics)
            assert self.parts is not None
            self.screen.step(self.parts, metrics, self._state(self.parts))

        return finished

    def _enter(self, phase: str, doing: str) -> None:
        self._phase = phase
        self.screen.phase(phase, doing)

    async def _keep_state(self) -> None:
        """`state.json` once a second, and a live screen."""
        assert self.parts is not None
        while True:
            if self._goes_on:
                with self._books_may_fail():
                    self._write_state(self.parts)
            self.screen.refresh(self.parts, self._state(self.parts))
            await asyncio.sleep(STATE_SECONDS)

    def _state(self, parts: Parts, failure: dict[str, object] | None = None) -> RunState:
        return run_state(self.job, parts, self.tally, self._phase, self.elapsed(), failure)

    def _write_state(self, parts: Parts, failure: dict[str, object] | None = None) -> None:
        write_atomically(self.folder / "state.json", self._state(parts, failure).to_json())

    def _close_books(self, status: Status, reason: str, parts: Parts, error: Exception | None) -> None:
        """Last state, summary, last words. Raises OSError, except where the run failed anyway."""
        failure = None if error is None else failure_facts(error, parts.progress.steps)
        self._phase = {"complete": "Succeeded", "failed": "Failed", "stopped": "Suspended"}[status]
        with self._books_may_fail() if failure else nullcontext():
            self._write_state(parts, failure)
            self._write_summary(status, reason, parts, failure)
        self.screen.refresh(parts, self._state(parts, failure))
        self.screen.end(status, parts, self.tally, self.elapsed(), self.folder)

    def _close_books_early(self, error: RunError) -> None:
        """This start failed before it went on; what earlier starts reached stays told."""
        with self._books_may_fail():
            before = read_state(self.folder) or RunState(name=self.job.metadata.name, phase="Failed")
            failure = failure_facts(error, before.step)
            state = replace(before, phase="Failed", failure=failure, pid=os.getpid(), updated_at=time.time())
            write_atomically(self.folder / "state.json", state.to_json())
            write_early_failure(self.folder, failure=failure, seconds=self.elapsed())

    @contextmanager
    def _books_may_fail(self) -> Iterator[None]:
        """A file that cannot be written is told; it must not hide why the run ends, or end it."""
        try:
            yield
        except (OSError, ValueError) as error:
            if not self._told_unwritable:
                log.warning("state and summary cannot be written", reason=str(error))
            self._told_unwritable = True

    def _write_summary(
        self, status: Status, reason: str, parts: Parts, failure: dict[str, object] | None
    ) -> None:
        write_summary(
            self.folder,
            status=status,
            reason=reason,
            steps=parts.progress.steps,
            max_steps=parts.max_steps,
            tally=self.tally,
            seconds=self.elapsed(),
            prompts=prompt_counts(parts, ended=status == "complete"),
            trainer_idle_fraction=parts.end.idle_seconds / parts.end.step_seconds
            if parts.end.step_seconds
            else 0.0,
            failure=failure,
        )

    def _tallies(self, unsettled: Sequence[GroupMeta]) -> dict[str, object]:
        """Sums of all starts so far, for a checkpoint."""
        assert self.parts is not None
        times = {
            "idle_seconds": self.parts.end.idle_seconds,
            "step_seconds": self.parts.end.step_seconds,
            "seconds": self.elapsed(),
        }
        return {**self.tally.to_json(unsettled), **times}

    def _carry_tallies(self, parts: Parts, found: Found) -> None:
        """Sums of earlier starts go on from what the checkpoint holds."""
        saved: Mapping[str, Any] = found.cut.tallies
        self.tally.restore(saved, (slot.meta for slot in parts.buffer if slot.meta is not None))
        parts.end.idle_seconds = saved.get("idle_seconds", 0.0)
        parts.end.step_seconds = saved.get("step_seconds", 0.0)
        self._earlier_seconds = saved.get("seconds", 0.0)

    def _exit_status(self, parts: Parts, end: RunEnd) -> int:
        if end == "stopped":
            return STOPPED
        return DONE_WITH_LOSSES if parts.ledger.dropped else DONE

    def _on_frozen(self, error: LoopFrozen) -> None:
        """Called from another thread while the loop stands still: tell it, and leave for good (SC-5.9)."""
        try:
            assert self.parts is not None
            self._close_books("failed", str(error), self.parts, error)
            self.screen.fail(error, verbose=False)
        finally:
            os._exit(FAILED)

    # ── signals ─────────────────────────────────────────────────────────────────────────────────────

    def _take_signals(self, observer: RunObserver) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name, observer)

    def _on_signal(self, name: str, observer: RunObserver) -> None:
        """First: finish the step, save, end. Second, or the grace period over: leave at once (CLI-22)."""
        self.signals += 1
        grace = self.job.spec.lifecycle.termination_grace_period_seconds
        if self.signals > 1:
            self.screen.say(f"{name}: leaving at once")
            os._exit(INTERRUPTED)
        if self.parts is None:
            self.screen.say(f"{name}: leaving before the first step; the same command goes on")
            os._exit(STOPPED)
        observer.event("stop_requested", signal=name, grace_seconds=grace)
        self.screen.say(
            f"{name}: finishing the step and saving, within {grace} s; once more to leave at once"
        )
        self.parts.ask_to_stop()
        asyncio.get_running_loop().call_later(grace, self._grace_over, grace)

    def _grace_over(self, grace: int) -> None:
        self.screen.say(
            f"the step did not end within spec.lifecycle.terminationGracePeriodSeconds {grace}: "
            "leaving; the newest checkpoint is kept"
        )
        os._exit(STOPPED)


def prompt_counts(parts: Parts, *, ended: bool = False) -> PromptCounts:
    """The prompt ledger of now."""
    return parts.ledger.counts(buffered=parts.buffer.ready, claimed=len(parts.train.claims), ended=ended)


def _version() -> str:
    from importlib.metadata import version

    return version("asyncrl-runtime")


def run_job(job_run: JobRun, *, verbose: bool) -> int:
    """Run in a fresh event loop; errors become one line and an exit status."""
    logging.captureWarnings(True)
    try:
        return asyncio.run(job_run.go())
    except RunError as error:
        log.info("the run failed", exc_info=error)
        job_run.screen.fail(error, verbose=verbose)
        return FAILED
