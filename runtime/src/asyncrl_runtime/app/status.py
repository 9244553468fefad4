"""`asyncrl status` and `asyncrl tail`: a run on this machine, in the words of `kubectl describe` (CLI-10)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl_runtime.app import words
from asyncrl_runtime.app.reading import Unreadable, numbers, read_object, read_objects
from asyncrl_runtime.app.state import FILE, NUMBERS, RunState
from asyncrl_runtime.app.summary import SUMMARY
from asyncrl_runtime.core.errors import RunError

PHASE_OF_STATUS = {"complete": "Succeeded", "failed": "Failed", "stopped": "Suspended"}
POLL_SECONDS = 0.2


@dataclass(eq=False)
class NoRun(RunError):
    """There is nothing to show."""

    folder: Path

    def __str__(self) -> str:
        return f"{self.folder} holds no run; name a run folder, or start one with `asyncrl run JOB.yaml`"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What is known of a run: its last state, and its summary once it ended."""

    folder: Path
    state: RunState | None
    summary: Mapping[str, Any] | None
    alive: bool
    """It goes on: its process runs, and it has not ended."""

    @property
    def phase(self) -> str:
        """The phase; Lost if the process is gone and left no summary."""
        if self.summary is not None:
            return PHASE_OF_STATUS.get(str(self.summary.get("status")), "Unknown")
        assert self.state is not None
        return self.state.phase if self.alive else "Lost"


def find_run(folder: Path | None, *, runs: Path = Path("runs")) -> Path:
    """The folder named, else the run below `runs` that was written last. Raises `NoRun`."""
    if folder is not None:
        if not any((folder / name).exists() for name in ("state.json", "summary.json")):
            raise NoRun(folder)
        return folder
    found = [path for name in ("state.json", "summary.json") for path in runs.glob(f"*/{name}")]
    if not found:
        raise NoRun(runs)
    return max(found, key=lambda path: path.stat().st_mtime).parent


def read_status(folder: Path) -> RunStatus:
    """Read a run folder. Raises `NoRun` and `Unreadable`."""
    state = _state(folder / FILE)
    alive = state is not None and state.pid > 0 and _runs(state.pid)
    summary_path = folder / SUMMARY
    summary = _summary(summary_path)
    if (
        summary is not None
        and state is not None
        and alive
        and state.updated_at > summary_path.stat().st_mtime
    ):
        summary = None  # of an earlier start; the run goes on
    if state is None and summary is None:
        raise NoRun(folder)
    return RunStatus(folder, state, summary, alive and summary is None)


def _state(path: Path) -> RunState | None:
    value = read_object(path)
    if value is None:
        return None
    numbers(value, NUMBERS, path)
    for name in ("name", "phase"):
        if not isinstance(value.get(name), str):
            raise Unreadable(path, f"it has no {name}")
    try:
        state = RunState.from_json(json.dumps(value))
    except ValueError as error:
        raise Unreadable(path, str(error)) from error
    _check_prompts(state.prompts, path)
    return state


def _summary(path: Path) -> dict[str, Any] | None:
    value = read_object(path)
    if value is None:
        return None
    numbers(value, ("steps", "seconds", "reward_mean", "trainer_idle_fraction"), path)
    _check_prompts(value.get("prompts") or {}, path)
    return value


def _check_prompts(prompts: Any, path: Path) -> None:
    if not isinstance(prompts, Mapping):
        raise Unreadable(path, "prompts is no object")
    causes = prompts.get("discarded_by_cause", {})
    if not isinstance(causes, Mapping):
        raise Unreadable(path, "discarded_by_cause is no object")
    numbers(prompts, prompts.keys() - {"discarded_by_cause"}, path)


def status_text(folder: Path, *, now: float | None = None) -> str:
    """What a person reads. Raises like `read_status`."""
    status = read_status(folder)
    state, summary = status.state, status.summary or {}
    now = time.time() if now is None else now
    rows: list[tuple[int, str, str]] = [
        (0, "Name", state.name if state else status.folder.name),
        (0, "Run folder", str(status.folder)),
        (0, "Phase", _phase_text(status, now)),
    ]
    if state is not None:
        rows += _progress(state, summary) + _sampler(state) + _generation(state)
    else:
        rows += [(0, "Progress", ""), (1, "Step", f"{summary.get('steps')}")]
    rows += _checkpoint_and_prompts(state, summary)
    failure = summary.get("failure") or (state.failure if state else None)
    if failure:
        text = failure.get("message") if isinstance(failure, Mapping) else failure
        rows.append((0, "Failure", str(text)))
    lines = (f"{'  ' * depth}{label + ':':<{24 - 2 * depth}}{value}".rstrip() for depth, label, value in rows)
    return "\n".join(lines) + "\n"


def status_json(folder: Path) -> str:
    """The same for scripts, as one JSON object. Raises like `read_status`."""
    status = read_status(folder)
    found = {
        "folder": str(status.folder),
        "phase": status.phase,
        "alive": status.alive,
        "state": json.loads(status.state.to_json()) if status.state else None,
        "summary": status.summary,
    }
    return json.dumps(found, indent=2) + "\n"


def follow(folder: Path, *, count: int = 10) -> Iterator[str]:
    """The last events as lines, then new ones until the run ends."""
    yield from map(words.event_line, last_events(folder, count))
    yield from map(words.event_line, follow_events(folder, ended=lambda: not read_status(folder).alive))


def last_events(folder: Path, count: int) -> list[dict[str, object]]:
    """The newest events, newest last."""
    rows = read_objects(folder / "events.jsonl")
    return rows[-count:] if count > 0 else []


def follow_events(
    folder: Path, *, ended: Callable[[], bool], wait: Callable[[float], None] = time.sleep
) -> Iterator[dict[str, object]]:
    """Events as they are written, from now on, until `ended`; goes on when the file is replaced."""
    path = folder / "events.jsonl"
    inode, offset = _identity(path)
    while True:
        last = ended()
        new_inode, size = _identity(path)
        if new_inode != inode:
            inode, offset = new_inode, 0
        if size > offset:
            with path.open("rb") as file:
                file.seek(offset)
                block = file.read()
            whole = block[: block.rfind(b"\n") + 1]
            offset += len(whole)
            yield from _events(whole, path)
        if last:
            return
        wait(POLL_SECONDS)


def _events(block: bytes, path: Path) -> Iterator[dict[str, object]]:
    for text in block.splitlines():
        try:
            event = json.loads(text) if text.strip() else None
        except ValueError as error:
            raise Unreadable(path, f"a line is not JSON ({error})") from error
        if isinstance(event, dict):
            yield event


def _identity(path: Path) -> tuple[int, int]:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0, 0
    return facts.st_ino, facts.st_size


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _phase_text(status: RunStatus, now: float) -> str:
    if status.summary is not None or status.state is None:
        return status.phase
    age = words.duration(max(0.0, now - status.state.updated_at))
    if not status.alive:
        return (
            f"Lost (process {status.state.pid} ended {age} ago without a summary; run the job again to go on)"
        )
    return f"{status.phase} (process {status.state.pid}, updated {age} ago)"


def _progress(state: RunState, summary: Mapping[str, Any]) -> list[tuple[int, str, str]]:
    steps = summary.get("steps", state.step)
    idle = summary.get("trainer_idle_fraction", state.trainer_idle_fraction)
    rows = [
        (0, "Progress", ""),
        (1, "Step", f"{steps} of {state.max_steps}"),
        (1, "Trainer version", str(state.trainer_version)),
        (1, "Epoch", str(state.epoch)),
        (1, "Reward mean", words.reward(_reward_mean(summary, state))),
        (1, "Tokens per second", words.count(state.tokens_per_second)),
        (1, "Trainer idle", words.percent(idle)),
    ]
    if not summary:
        rows.append((1, "Time left", words.duration(state.eta_seconds)))
    elif summary.get("seconds") is not None:
        rows.append((1, "Duration", words.duration(float(summary["seconds"]))))
    return rows


def _reward_mean(summary: Mapping[str, Any], state: RunState) -> float | None:
    found = summary.get("reward_mean", state.reward_mean)
    return float(found) if isinstance(found, int | float) else state.reward_mean


def _sampler(state: RunState) -> list[tuple[int, str, str]]:
    p50, p95, top, bound = (
        state.staleness_p50,
        state.staleness_p95,
        state.staleness_max,
        state.staleness_bound,
    )
    mark = words.near_bound(top, bound)
    stale = words.staleness(p50, p95, top, bound) + (f" ({mark})" if mark else "")
    held = (
        f"{state.buffered} held: {state.ready} ready, {state.inflight} in flight, capacity {state.capacity}"
    )
    return [
        (0, "Sampler", ""),
        (1, "Name", state.sampler),
        (1, "Knobs", state.knobs or "none"),
        (1, "Staleness", stale),
        (1, "Buffer", f"{held} groups"),
    ]


def _generation(state: RunState) -> list[tuple[int, str, str]]:
    states: dict[str, int] = {}
    for shard in state.shards:
        states[shard.state] = states.get(shard.state, 0) + 1
    rows = [(0, "Generation", ""), (1, "Shards", words.shards_by_state(states))]
    for shard in state.shards:
        process = "" if shard.pid is None else f", process {shard.pid}"
        rows.append(
            (1, f"Shard {shard.index}", f"{shard.state}, weight version {shard.weight_version}{process}")
        )
    return rows


def _checkpoint_and_prompts(state: RunState | None, summary: Mapping[str, Any]) -> list[tuple[int, str, str]]:
    rows: list[tuple[int, str, str]] = []
    if state is not None:
        last = state.last_checkpoint_step
        rows += [(0, "Checkpoint", ""), (1, "Last step", "none" if last is None else str(last))]
    prompts = dict(summary.get("prompts") or (state.prompts if state else {}))
    if not prompts:
        return rows
    causes = prompts.pop("discarded_by_cause", {})
    rows.append((0, "Prompts", _ledger_text(prompts)))
    rows += [(1, f"Discarded, {cause.replace('_', ' ')}", str(n)) for cause, n in causes.items() if n]
    return rows


def _ledger_text(prompts: Mapping[str, int]) -> str:
    parts = {key: int(prompts.get(key, 0)) for key in ("trained", "dropped", "discarded", "live")}
    admitted = int(prompts.get("admitted", 0))
    sums = " + ".join(f"{number} {key}" for key, number in parts.items())
    balance = "" if admitted == sum(parts.values()) else " (does not balance; please report this)"
    return f"{admitted} admitted = {sums}{balance}"
