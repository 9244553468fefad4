"""`state.json`: where a run stands, written once a second while it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from asyncrl_runtime.adapters.sinks.lines import write_whole

SCHEMA = 1
FILE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """One generation shard."""

    index: int
    state: str
    """HEALTHY, SUSPECT, DEAD, RESTARTING, STALE or RETIRED."""

    weight_version: int = -1
    pid: int | None = None


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
    sampler_knobs: Mapping[str, object] = field(default_factory=dict)
    staleness_p50: int | None = None
    staleness_p95: int | None = None
    staleness_max: int | None = None
    staleness_bound: int | None = None
    """Largest lag that the sampler allows; None where it sets no bound."""

    buffered: int = 0
    ready: int = 0
    inflight: int = 0
    capacity: int = 0
    shards: tuple[ShardView, ...] = ()
    tokens_per_second: float | None = None
    """Generated, over all shards."""

    trained_tokens_per_second: float | None = None
    trainer_idle_fraction: float | None = None
    last_checkpoint_step: int | None = None
    prompts: Mapping[str, int] = field(default_factory=dict)
    """Prompts {admitted, committed, trained, dropped, discarded, live}."""

    prompts_discarded_by_cause: Mapping[str, int] = field(default_factory=dict)
    failure: str | None = None
    pid: int = 0
    updated_at: float = 0.0
    """Seconds since the epoch."""

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> RunState:
        """From what `to_json` gave; keys of later versions are left out. Raises `ValueError`."""
        names = {f.name for f in fields(cls)}
        known = {key: inner for key, inner in value.items() if key in names}
        shards = known.get("shards", ())
        if not isinstance(shards, list | tuple):
            raise ValueError("shards is no list")
        try:
            known["shards"] = tuple(ShardView(**shard) for shard in shards)
            return cls(**known)  # type: ignore[arg-type]
        except TypeError as error:
            raise ValueError(f"no state of a run: {error}") from error


def write_state(folder: Path, state: RunState) -> None:
    """Replace the file in one move."""
    write_whole(folder / FILE, json.dumps(state.to_json(), default=str).encode() + b"\n")


def read_state(folder: Path) -> RunState | None:
    """The last state, if there is one. Raises `ValueError` on a broken file."""
    try:
        return RunState.from_json(json.loads((folder / FILE).read_text()))
    except FileNotFoundError:
        return None
