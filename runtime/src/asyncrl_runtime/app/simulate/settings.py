"""Which runs are compared: the manifest's sampler beside the others, or a grid of settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import Problem
from asyncrl_api.resolve import resolve
from asyncrl_api.spec.async_rl import SamplerSpec
from asyncrl_runtime.app.manifest import ManifestError, load_manifest, read_job, render
from asyncrl_runtime.app.samplers import knobs
from asyncrl_runtime.app.simulate.faults import Scenario
from asyncrl_runtime.app.simulate.words import OptionInvalid
from asyncrl_runtime.app.support import UNBUILT, unbuilt_settings

SAMPLERS = ("in_order", "weight_fifo", "ready_first", "windowed")
SWEEP = "--sweep"
SAMPLER_PATH = "spec.asyncRL.sampler"
MAX_RUNS = 200


@dataclass(frozen=True, slots=True)
class Setting:
    """One run of the comparison."""

    job: AsyncRLJob
    """Resolved."""

    sampler: str
    knobs: str
    swept: dict[str, str] = field(default_factory=dict)
    is_manifest: bool = False
    """The manifest's own sampler and settings."""

    @property
    def name(self) -> str:
        """As tables and messages call it."""
        swept = ", ".join(f"{path.rpartition('.')[2]}={value}" for path, value in self.swept.items())
        own = f"{self.sampler} {self.knobs}"
        return f"{own}, {swept}" if swept and not _only_knobs(self.swept) else own


def settings(path: Path, sets: Sequence[str], sweeps: Sequence[str], scenario: Scenario) -> list[Setting]:
    """Read the manifest once per point of the grid.

    Raises:
        ManifestError: the manifest, or a point of the grid, is wrong, or asks for what is not built.
        OptionInvalid: a sweep cannot be read.
    """
    axes = [_axis(text) for text in sweeps]
    points = 1
    for _, values in axes:
        points *= len(values)
    if points > MAX_RUNS:
        raise OptionInvalid(SWEEP, " ".join(sweeps), f"it has {points} points; {MAX_RUNS} are the most")
    picks_sampler = any(path.startswith(SAMPLER_PATH) for path, _ in axes)
    found = []
    for point in _points(axes):
        job = _job(path, [*sets, *(f"{name}={value}" for name, value in point.items())], scenario)
        found += [_setting(job, point, is_manifest=not point)]
        if not picks_sampler:
            found += [_setting(other, point) for other in _others(job)]
    return found


def _only_knobs(swept: Iterable[str]) -> bool:
    return all(path.startswith(SAMPLER_PATH) for path in swept)


def _axis(text: str) -> tuple[str, list[str]]:
    path, equals, values = text.partition("=")
    chosen = [value.strip() for value in re.split(r",(?![^\[{]*[\]}])", values)]
    if not equals or not path or not all(chosen):
        raise OptionInvalid(
            SWEEP, text, "it is not of the form PATH=v1,v2: asyncRL.sampler.name=in_order,windowed"
        )
    path = path.strip()
    return (path if path.startswith(("spec.", "metadata.")) else f"spec.{path}"), chosen


def _points(axes: Sequence[tuple[str, list[str]]]) -> Iterator[dict[str, str]]:
    for values in product(*(values for _, values in axes)):
        yield dict(zip((path for path, _ in axes), values, strict=True))


def _setting(job: AsyncRLJob, swept: dict[str, str], *, is_manifest: bool = False) -> Setting:
    return Setting(job, Derived(job.spec).sampler, knobs(job.spec), swept, is_manifest)


def _job(path: Path, sets: Sequence[str], scenario: Scenario) -> AsyncRLJob:
    job = resolve(read_job(path, sets))
    problems = missing_for_simulation(job, scenario)
    if problems:
        _, positions = load_manifest(path, sets)
        raise ManifestError(render(problems, positions))
    return job


def missing_for_simulation(job: AsyncRLJob, scenario: Scenario) -> list[Problem]:
    """Settings that are not built and that a simulated controller would have to carry out."""
    table = [
        entry
        for entry in UNBUILT
        if entry.controller == "always" or (entry.controller == "under faults" and not scenario.is_calm)
    ]
    return unbuilt_settings(job, table)


def _others(job: AsyncRLJob) -> list[AsyncRLJob]:
    """The same job under the other samplers, with the same window and room for it."""
    facts = Derived(job.spec)
    if facts.is_ppo:
        return []
    window = facts.lookahead if facts.sampler == "in_order" else facts.staleness
    return [_under(job, name, window) for name in SAMPLERS if name != facts.sampler]


def _under(job: AsyncRLJob, name: str, window: int) -> AsyncRLJob:
    knob = "max_lookahead_versions" if name == "in_order" else "max_staleness_versions"
    sampler = SamplerSpec.model_validate({"name": name}).model_copy(update={knob: window})
    own = job.spec.async_rl
    spec = _with(job, own.model_copy(update={"sampler": sampler})).spec
    needed = Derived(spec).required_capacity
    room = own.max_buffered_rollouts
    if room is not None and room < needed:
        return _with(job, own.model_copy(update={"sampler": sampler, "max_buffered_rollouts": needed}))
    return job.model_copy(update={"spec": spec})


def _with(job: AsyncRLJob, async_rl: object) -> AsyncRLJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update={"async_rl": async_rl})})
