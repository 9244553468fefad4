"""What the commands do."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl_runtime.core.errors import RunError

if TYPE_CHECKING:
    from asyncrl_api.job import AsyncRLJob

OK, INVALID, FAILED, STOPPED = 0, 2, 3, 75


def run_command(
    path: Path,
    sets: list[str],
    output: Path | None,
    *,
    fresh: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """`asyncrl run`."""
    from asyncrl_runtime.adapters.torch.entry import torch_server
    from asyncrl_runtime.app.cli import STARTED

    _leave_on_signals()
    torch_server().start()
    try:
        from asyncrl_runtime.app.manifest import ManifestError, read_job
        from asyncrl_runtime.app.support import refuse_unbuilt

        try:
            job = read_job(path, sets)
            resolved = refuse_unbuilt(job, path, sets)
        except ManifestError as error:
            return _invalid(str(error))
        return _run(
            resolved, path, output, STARTED, fresh=fresh, as_json=as_json, quiet=quiet, verbose=verbose
        )
    finally:
        torch_server().close()


def _run(
    job: AsyncRLJob,
    path: Path,
    output: Path | None,
    started: float,
    *,
    fresh: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    from asyncrl_runtime.adapters.sinks.logs import RunLogging
    from asyncrl_runtime.app.build import run_folder
    from asyncrl_runtime.app.run import JobRun, run_job
    from asyncrl_runtime.app.screen import open_screen

    fresh = fresh or job.spec.checkpointing.resume_from == "None"
    folder = run_folder(job, output, fresh=fresh)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        logging = RunLogging(folder / "run.log", tracebacks=verbose)
    except OSError as error:
        return _failed(f"the run folder {folder} cannot be written: {error}; choose another with --output")
    try:
        run = JobRun(
            job=job,
            folder=folder,
            screen=open_screen(quiet=quiet, as_json=as_json),
            started=started,
            manifest_folder=path.resolve().parent,
        )
        status = run_job(run, verbose=verbose)
    finally:
        logging.close()
    if as_json and (folder / "summary.json").exists():
        sys.stdout.write((folder / "summary.json").read_text(encoding="utf-8"))
    return status


def init_command(task: str | None, output: Path | None) -> int:
    """`asyncrl init`."""
    from asyncrl_runtime.app.starters import FileExists, UnknownTask, find, starters, text, write_manifest

    if task is None:
        width = max(len(name) for name in starters())
        for name, summary in starters().items():
            sys.stdout.write(f"{name:<{width}}  {summary}\n")
        return OK
    try:
        starter = find(task)
        if output is None:
            sys.stdout.write(text(starter.manifest))
            if starter.companions:
                named = ", ".join(starter.companions)
                sys.stderr.write(f"note: it needs {named} beside it; --output FILE writes everything\n")
            return OK
        for path in write_manifest(starter, output):
            sys.stdout.write(f"{path}\n")
    except (UnknownTask, FileExists) as error:
        return _invalid(str(error))
    except OSError as error:
        return _invalid(f"{output} cannot be written: {error.strerror}; choose another file with --output")
    return OK


def explain_command(path: str) -> int:
    """`asyncrl explain`."""
    from asyncrl_api.explain import explain

    try:
        sys.stdout.write(explain(path or "spec").rstrip("\n") + "\n")
    except (KeyError, ValueError) as error:
        return _invalid(str(error.args[0]))
    return OK


def crd_command(*, as_json: bool) -> int:
    """`asyncrl crd`."""
    from asyncrl_api.crd import crd

    if as_json:
        sys.stdout.write(json.dumps(crd(), separators=(",", ":")) + "\n")
    else:
        import yaml

        sys.stdout.write(yaml.safe_dump(crd(), sort_keys=False, allow_unicode=True, width=120))
    return OK


def schema_command() -> int:
    """`asyncrl schema`."""
    from asyncrl_api.crd import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
    return OK


def report_command(runs: list[Path], output: Path | None, *, png: bool) -> int:
    """`asyncrl report`."""
    from asyncrl_runtime.app.report import write_report

    try:
        written = write_report(runs, output, png=png)
    except RunError as error:
        return _invalid(str(error))
    except OSError as error:
        return _invalid(f"{error.filename or output} cannot be written: {error.strerror}; see --output")
    for path in written:
        sys.stdout.write(f"{path}\n")
    return OK


def status_command(run_dir: Path | None, *, as_json: bool) -> int:
    """`asyncrl status`."""
    from asyncrl_runtime.app.status import find_run, status_json, status_text

    try:
        folder = find_run(run_dir)
        sys.stdout.write(status_json(folder) if as_json else status_text(folder))
    except RunError as error:
        return _invalid(str(error))
    return OK


def tail_command(run_dir: Path | None) -> int:
    """`asyncrl tail`."""
    from asyncrl_runtime.app.status import find_run, follow

    try:
        with suppress(KeyboardInterrupt):
            for line in follow(find_run(run_dir)):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
    except RunError as error:
        return _invalid(str(error))
    return OK


def _leave_on_signals() -> None:
    """Until the run takes signals itself there is nothing to save."""

    def leave(number: int, _frame: object) -> None:
        name = signal.Signals(number).name
        os.write(2, f"{name}: leaving before anything was started; the same command goes on\n".encode())
        os._exit(STOPPED)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def _invalid(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return INVALID


def _failed(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return FAILED
