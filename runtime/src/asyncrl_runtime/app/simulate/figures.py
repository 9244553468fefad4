"""What a simulated run shows: figures with units in their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from asyncrl_api.derived import Derived
from asyncrl_runtime.app.samplers import staleness_bound
from asyncrl_runtime.app.simulate.run import Simulation
from asyncrl_runtime.app.simulate.settings import Setting

Outcome = Literal["complete", "failed", "stalled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Over the steps after the warm-up. None: there was nothing to measure."""

    steps_per_hour: float | None
    trainer_idle_percent: float | None
    """Of the trainer's time, waiting for groups."""

    optimum_trainer_idle_percent: float | None
    """What no sampler can get below: generation at full use is the bottleneck."""

    shard_idle_percent: float | None
    """Request slots of the fleet (maxInflightPrompts × generations) that are empty."""

    capacity_over_demand: float | None
    """Groups that a full fleet generates in the time in which the trainer takes one (ρ)."""

    staleness_p50_versions: int | None
    staleness_p95_versions: int | None
    staleness_max_versions: int | None
    staleness_bound_versions: int | None
    """Largest lag that the sampler allows; None if it does not bound it."""

    discarded_percent: float | None
    """Of the generation work, finished groups that were thrown away."""

    aborted_percent: float | None
    """Of the generation work, rollouts that were cancelled."""

    failed_percent: float | None
    """Of the generation work, rollouts that failed."""

    length_bias_ratio: float | None
    """Mean duration of trained groups over that of dispatched ones; below 1 long answers are lost."""

    steps: int
    last_step: int
    """Steps completed, the warm-up included."""

    groups_trained: int
    groups_discarded: int
    groups_dropped: int
    attempts_aborted: int
    attempts_failed: int
    simulated_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of the comparison."""

    setting: Setting
    inputs: Mapping[str, object]
    figures: Figures
    outcome: Outcome
    failure: str | None = None
    wall_seconds: float
    groups_per_wall_second: float

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {
            "sampler": self.setting.sampler,
            "knobs": self.setting.knobs,
            "swept": self.setting.swept,
            "is_manifest": self.setting.is_manifest,
            "outcome": self.outcome,
            "failure": self.failure,
            "inputs": dict(self.inputs),
            "figures": asdict(self.figures),
            "wall_seconds": round(self.wall_seconds, 3),
            "groups_per_wall_second": round(self.groups_per_wall_second, 1),
        }


def figures_of(simulation: Simulation) -> Figures:
    """Measure a run that has ended."""
    totals, facts = simulation.measured, Derived(simulation.spec)
    work = totals.trained + totals.discarded + totals.aborted + totals.failed
    seconds, inflight = totals.clock_seconds, simulation.spec.async_rl.max_inflight_prompts
    slots = inflight * facts.num_generations_per_prompt
    dispatched = _ratio(totals.dispatched_longest, totals.dispatched_groups)
    busy_trainer = _ratio(totals.step_seconds - totals.idle_seconds, totals.steps)
    capacity = None
    if dispatched and busy_trainer:
        capacity = inflight / dispatched / (facts.num_prompts_per_step / busy_trainer)
    trained = _ratio(totals.trained_longest, totals.trained_groups)
    return Figures(
        steps_per_hour=_rounded(_ratio(3600 * totals.steps, seconds), 3),
        trainer_idle_percent=_percent(_ratio(totals.idle_seconds, totals.step_seconds)),
        optimum_trainer_idle_percent=None if capacity is None else _percent(1 - min(1.0, capacity)),
        shard_idle_percent=_percent(None if not seconds else max(0.0, 1 - totals.busy / (slots * seconds))),
        capacity_over_demand=_rounded(capacity, 4),
        staleness_p50_versions=_lag(simulation, 0.5),
        staleness_p95_versions=_lag(simulation, 0.95),
        staleness_max_versions=max(simulation.work.lags, default=None),
        staleness_bound_versions=staleness_bound(simulation.spec),
        discarded_percent=_percent(_ratio(totals.discarded, work)),
        aborted_percent=_percent(_ratio(totals.aborted, work)),
        failed_percent=_percent(_ratio(totals.failed, work)),
        length_bias_ratio=_rounded(_ratio(trained, dispatched), 4),
        steps=totals.steps,
        last_step=simulation.work.totals.steps,
        groups_trained=totals.trained_groups,
        groups_discarded=totals.discarded_groups,
        groups_dropped=totals.dropped_groups,
        attempts_aborted=totals.aborted_attempts,
        attempts_failed=totals.failed_attempts,
        simulated_seconds=round(seconds, 3),
    )


def _lag(simulation: Simulation, quantile: float) -> int | None:
    """Nearest rank over trained groups."""
    lags = simulation.work.lags
    rank, seen = quantile * sum(lags.values()), 0
    for lag in sorted(lags):
        seen += lags[lag]
        if seen >= rank:
            return lag
    return None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else round(100 * fraction, 2) + 0.0


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
