"""`asyncrl controller`: a run with the control API, as the controller's container runs it (CLI-8)."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncrl_runtime.adapters.sinks.logs import RunLogging
from asyncrl_runtime.adapters.torch.entry import torch_server
from asyncrl_runtime.app.build import run_folder
from asyncrl_runtime.app.control.feed import StatusFeed
from asyncrl_runtime.app.control.pod import keeping_ray
from asyncrl_runtime.app.control.report import FinalReport
from asyncrl_runtime.app.control.server import ControlServer, Tls
from asyncrl_runtime.app.control.service import ControlService
from asyncrl_runtime.app.control.steering import Steering
from asyncrl_runtime.app.manifest import ManifestError, read_job
from asyncrl_runtime.app.run import FAILED, INVALID, STOPPED, JobRun
from asyncrl_runtime.app.screen import open_screen
from asyncrl_runtime.app.support import refuse_unbuilt
from asyncrl_runtime.core.errors import RunError

TOKEN_VARIABLE = "ASYNCRL_CONTROL_TOKEN"
FEED_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """What the pod gives the controller."""

    job: Path
    output: Path | None
    address: str
    port: int
    health_port: int
    token_file: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    generation: int
    ray_folder: Path
    """Shared with Ray's container of the same pod."""

    in_pod: bool
    """End with 0 whenever the run is over, and leave the real code in the termination message."""


@dataclass(eq=False)
class NoToken(RunError):
    """The control API has no token to ask for."""

    def __str__(self) -> str:
        return f"the control API needs a token: give --token-file, or set {TOKEN_VARIABLE}"


def controller_command(options: ControllerOptions) -> int:
    """Run the job; the exit status."""
    started = time.monotonic()
    with keeping_ray(options.ray_folder if options.in_pod else None):
        torch_server().start()
        try:
            code, report = _run(options, started)
        finally:
            torch_server().close()
        report.write()
    return 0 if options.in_pod else code


def _run(options: ControllerOptions, started: float) -> tuple[int, FinalReport]:
    try:
        job = refuse_unbuilt(read_job(options.job, []), options.job, cluster=options.in_pod)
    except ManifestError as error:
        sys.stderr.write(f"error: {error}\n")
        return INVALID, FinalReport("invalid", INVALID, 0, str(error))
    folder = run_folder(job, options.output, fresh=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        logging = RunLogging(folder / "run.log", tracebacks=False)
    except OSError as error:
        text = f"the run folder {folder} cannot be written: {error}; choose another with --output"
        sys.stderr.write(f"error: {text}\n")
        return FAILED, FinalReport("failed", FAILED, 0, text)
    run = JobRun(
        job=job,
        folder=folder,
        screen=open_screen(quiet=False, as_json=False),
        started=started,
        manifest_folder=options.job.resolve().parent,
    )
    try:
        code = asyncio.run(_served(run, options))
    except RunError as error:
        run.screen.fail(error, verbose=False)
        return FAILED, FinalReport("failed", FAILED, _steps(run), str(error))
    finally:
        logging.close()
    outcome = "stopped" if code == STOPPED else "complete"
    return code, FinalReport(outcome, code, _steps(run), "")


async def _served(run: JobRun, options: ControllerOptions) -> int:
    written = (run.job.metadata.model_extra or {}).get("generation", 0)
    steering = Steering(run, applied_generation=options.generation or int(written))
    async with _serving(run, steering, options) as server:
        run.running = lambda: asyncio.ensure_future(server.set_ready(ready=True))
        return await run.go()


@asynccontextmanager
async def _serving(
    run: JobRun, steering: Steering, options: ControllerOptions
) -> AsyncIterator[ControlServer]:
    def extra() -> dict[str, float | int | None]:
        parts = run.parts
        return {
            "applied_generation": steering.applied_generation,
            "idle_seconds": None if parts is None else round(parts.watchdog.idle_seconds, 1),
        }

    feed = StatusFeed(read=run.state, extra=extra)
    server = ControlServer(
        service=ControlService(steering, feed),
        token=_token(options.token_file),
        address=f"{options.address}:{options.port}",
        health_address=f"{options.address}:{options.health_port}",
        tls=Tls(options.tls_certificate, options.tls_key)
        if options.tls_certificate is not None and options.tls_key is not None
        else None,
    )
    await server.start()
    try:
        yield server
    finally:
        await asyncio.sleep(FEED_SECONDS)
        await server.stop()


def _token(path: Path | None) -> str:
    """Raises NoToken."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if path is not None:
        try:
            token = path.read_text(encoding="utf-8")
        except OSError as error:
            raise NoToken from error
    if not token.strip():
        raise NoToken
    return token.strip()


def _steps(run: JobRun) -> int:
    return 0 if run.parts is None else run.parts.progress.steps
