"""`state.json`: what a run on this machine looks like right now, for `asyncrl status`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """One generation shard."""

    index: int
    state: str
    weight_version: int
    pid: int | None
    outstanding: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The words are those of the resource's status."""

    name: str
    phase: str
    step: int
    max_steps: int
    trainer_version: int
    epoch: int
    reward_mean: float | None
    sampler: str
    knobs: str
    staleness_p50: int
    staleness_p95: int
    staleness_max: int
    staleness_bound: int | None
    buffered: int
    ready: int
    inflight: int
    capacity: int
    shards: list[ShardView]
    tokens_per_second: float
    trainer_idle_fraction: float
    last_checkpoint_step: int | None
    prompts: dict[str, Any]
    pid: int
    updated_at: float
    """Seconds since the epoch."""

    seconds: float
    """Since the command was given."""

    failure: dict[str, Any] | None = field(default=None)

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RunState:
        """From what `to_json` gave. Raises ValueError."""
        value = json.loads(text)
        try:
            value["shards"] = [ShardView(**shard) for shard in value["shards"]]
            return cls(**value)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a run's state: {error}") from error
