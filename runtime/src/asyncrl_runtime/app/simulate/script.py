"""What every rollout of a simulated run will take: fixed by seed, prompt and attempt alone.

So samplers and settings are compared on the same work, and a run can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from asyncrl_runtime.app.simulate.durations import CHUNK, Distribution
from asyncrl_runtime.app.simulate.faults import Scenario
from asyncrl_runtime.core.errors import DataFailure, InfraFailure, RolloutFailure
from asyncrl_runtime.core.records import PromptRef

Fault = Literal["infra", "data"]
FIRST, AGAIN = 0, 1
KEPT_CHUNKS = 8


@dataclass(eq=False)
class ScriptedInfraFailure(InfraFailure):
    """A completion that fails because the scenario says so."""

    request: str

    def __str__(self) -> str:
        return f"completion {self.request} failed as the scenario asks (rollout-error)"


@dataclass(eq=False)
class ScriptedDataFailure(DataFailure):
    """A completion that fails by its own fault because the scenario says so."""

    request: str

    def __str__(self) -> str:
        return f"completion {self.request} failed as the scenario asks (rollout-error, kind=data)"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One attempt of one group."""

    seconds: Sequence[float]
    """Duration of each sibling; infinite if it hangs."""

    longest: float
    total: float
    faults: dict[int, Fault] | None = None
    """Siblings that fail at their end."""

    def spent(self, elapsed: float) -> float:
        """Request-seconds until so long after the start."""
        return self.total if elapsed >= self.longest else sum(min(each, elapsed) for each in self.seconds)

    def failure(self, sibling: int, request: str) -> RolloutFailure | None:
        """How a sibling ends, if not well."""
        kind = self.faults.get(sibling) if self.faults else None
        if kind is None:
            return None
        return ScriptedInfraFailure(request) if kind == "infra" else ScriptedDataFailure(request)


@dataclass(slots=True)
class RolloutScript:
    """Draws plans: for first attempts in chunks of prompts, for the rare later ones one by one."""

    distribution: Distribution
    scenario: Scenario
    generations: int
    seed: int
    longest_seconds: float = field(default=0.0, init=False)
    """Of the completions drawn so far, without those that hang."""

    _chunks: dict[tuple[int, int], list[GroupPlan]] = field(default_factory=dict, init=False)

    def plan(self, ref: PromptRef, attempt: int) -> GroupPlan:
        """The plan of an attempt."""
        if attempt:
            rng = np.random.default_rng((self.seed, AGAIN, ref.epoch, ref.position, attempt))
            return self._draw(rng, 1)[0]
        number, place = divmod(ref.position, CHUNK)
        chunk = self._chunks.get((ref.epoch, number))
        if chunk is None:
            while len(self._chunks) >= KEPT_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            rng = np.random.default_rng((self.seed, FIRST, ref.epoch, number))
            chunk = self._chunks[ref.epoch, number] = self._draw(rng, CHUNK)
        return chunk[place]

    def _draw(self, rng: np.random.Generator, groups: int) -> list[GroupPlan]:
        shape = (groups, self.generations)
        seconds = self.distribution.draw(rng, shape)
        self.longest_seconds = max(self.longest_seconds, float(seconds.max()))
        faults: list[dict[int, Fault] | None] = [None] * groups
        scenario = self.scenario
        if scenario.touches_rollouts:
            hang, infra, data = rng.random((3, *shape))
            seconds = np.where(hang < scenario.hang_probability, math.inf, seconds)
            kinds = (
                (infra < scenario.infra_probability, "infra"),
                (data < scenario.data_probability, "data"),
            )
            for hit, kind in kinds:
                for group, sibling in np.argwhere(hit).tolist():
                    faults[group] = {**(faults[group] or {}), sibling: kind}  # type: ignore[dict-item]
        rows, longest, total = seconds.tolist(), seconds.max(axis=1).tolist(), seconds.sum(axis=1).tolist()
        return [GroupPlan(*each) for each in zip(rows, longest, total, faults, strict=True)]
