"""`state.json`: where a run stands, written once a second while it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from asyncrl_runtime.adapters.sinks.lines import write_whole

SCHEMA = 1
FILE = "state.json"
NUMBERS = (
    "step",
    "max_steps",
    "trainer_version",
    "epoch",
    "reward_mean",
    "eta_seconds",
    "staleness_p50",
    "staleness_p95",
    "staleness_max",
    "staleness_bound",
    "tokens_per_second",
    "trainer_idle_fraction",
    "pid",
    "updated_at",
)
"""Fields of the file that are counted with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """One generation shard."""

    index: int
    state: str
    """HEALTHY, SUSPECT, DEAD, RESTARTING, STALE or RETIRED."""

    weight_version: int = -1
    pid: int | None = None
    outstanding: int = 0
    """Requests that it works on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Everything that `asyncrl status` shows of a run."""

    name: str
    phase: str
    """Initializing, Running, Degraded, Checkpointing, Suspending, Suspended, Succeeded or Failed."""

    step: int = 0
    max_steps: int = 0
    trainer_version: int = 0
    epoch: int = 0
    reward_mean: float | None = None
    eta_seconds: float | None = None
    step_seconds: float | None = None
    sampler: str = ""
    knobs: str = ""
    """As `maxStalenessVersions=2`."""

    staleness_p50: int | None = None
    staleness_p95: int | None = None
    staleness_max: int | None = None
    staleness_bound: int | None = None
    """Largest lag that the sampler allows; None where it sets no bound."""

    buffered: int = 0
    ready: int = 0
    inflight: int = 0
    capacity: int = 0
    shards: Sequence[ShardView] = ()
    tokens_per_second: float | None = None
    """Generated, over all shards."""

    trained_tokens_per_second: float | None = None
    trainer_idle_fraction: float | None = None
    last_checkpoint_step: int | None = None
    prompts: Mapping[str, Any] = field(default_factory=dict)
    """{admitted, committed, trained, dropped, discarded, live, discarded_by_cause}, as in `summary.json`."""

    failure: Mapping[str, object] | None = None
    """{type, message, step}."""

    pid: int = 0
    seconds: float | None = None
    """Since the command was given, with those of earlier starts up to what was restored."""

    updated_at: float = 0.0
    """Seconds since the epoch."""

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, default=str) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RunState:
        """From what `to_json` gave; keys of later versions are left out. Raises `ValueError`."""
        value = json.loads(text)
        names = {f.name for f in fields(cls)}
        try:
            known = {key: inner for key, inner in value.items() if key in names}
            shard_names = {f.name for f in fields(ShardView)}
            known["shards"] = [
                ShardView(**{key: inner for key, inner in shard.items() if key in shard_names})
                for shard in known.get("shards", ())
            ]
            return cls(**known)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"no state of a run: {error}") from error


def write_state(folder: Path, state: RunState) -> None:
    """Replace the file in one move."""
    write_whole(folder / FILE, state.to_json().encode())


def read_state(folder: Path) -> RunState | None:
    """The last state, if there is one. Raises `ValueError` on a broken file."""
    try:
        return RunState.from_json((folder / FILE).read_text())
    except FileNotFoundError:
        return None
