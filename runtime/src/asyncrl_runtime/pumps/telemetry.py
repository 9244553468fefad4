"""Throughput telemetry: what the fleet generates, and how much of it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from asyncrl_runtime.ports.generator import ShardState
from asyncrl_runtime.ports.metrics import MetricRecord, MetricSink
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.observer import Observer, RolloutCounters
from asyncrl_runtime.pumps.probe import ask

RESTART_SECONDS = 1.0


@dataclass(slots=True)
class Rates:
    """Turns cumulative counters into rates; one baseline for every reader (SC-12.70).

    A counter's first sample gives no rate, nor does one that went down: its source began anew.
    """

    _seen: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)

    def rate(self, name: str, value: float, now: float) -> float | None:
        """Per second since the last sample of this counter."""
        before = self._seen.get(name)
        self._seen[name] = (value, now)
        if before is None or value < before[0] or now <= before[1]:
            return None
        return (value - before[0]) / (now - before[1])


@dataclass(slots=True, kw_only=True, eq=False)
class TelemetryPump:
    """Samples at a fixed rate; what fails is told once and tried again at the next sample."""

    fleet: Fleet
    counters: RolloutCounters
    metrics: MetricSink
    observer: Observer
    wall_clock: Callable[[], float]
    interval_seconds: float | None
    """None: nothing is sampled."""

    samples: int = field(default=0, init=False)
    _rates: Rates = field(default_factory=Rates, init=False)
    _told: set[str] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Sample until cancelled. An error never ends the run (SC-5.5, 8.63)."""
        if self.interval_seconds is None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self.interval_seconds, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                await self.sample()
            except Exception as error:  # noqa: BLE001 - telemetry must not end what it measures
                self._tell_once(type(error).__name__, str(error))
                await asyncio.sleep(RESTART_SECONDS)

    async def sample(self) -> None:
        """Ask the shards for their counters and log one record of rates and loads."""
        assert self.interval_seconds is not None
        shards = [index for index, shard in enumerate(self.fleet.shards) if shard.alive]
        answers = await ask(self.fleet, shards, lambda shard: shard.probe(), self.interval_seconds)
        states = {index: state for index, state in answers.items() if isinstance(state, ShardState)}
        now = asyncio.get_running_loop().time()
        values = self._committed(now)
        generated = [
            self._rates.rate(f"shard {index}", state.generated_tokens, now) for index, state in states.items()
        ]
        known = [rate for rate in generated if rate is not None]
        if known:
            values["generation/tokens_per_second"] = sum(known)
            committed = values.get("generation/committed_tokens_per_second")
            if committed is not None and sum(known):
                values["generation/committed_share"] = committed / sum(known)
        if states:
            loads = list(states.values())
            values["generation/running_requests"] = sum(state.running for state in loads)
            values["generation/waiting_requests"] = sum(state.waiting for state in loads)
            values["generation/kv_cache_usage"] = sum(s.kv_cache_usage for s in loads) / len(loads)
        self.samples += 1
        if values:
            self.metrics.log(MetricRecord("sample", self.samples, self.wall_clock(), values))

    def _committed(self, now: float) -> dict[str, float]:
        rates = {
            "generation/committed_tokens_per_second": self._rates.rate(
                "committed tokens", self.counters.committed_tokens, now
            ),
            "generation/committed_groups_per_second": self._rates.rate(
                "committed groups", self.counters.committed, now
            ),
        }
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _tell_once(self, kind: str, problem: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self.observer.event("telemetry_failed", failure=kind, reason=problem)
