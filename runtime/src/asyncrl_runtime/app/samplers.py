"""From `spec.asyncRL.sampler` to a sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import GroupRecord
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.samplers.base import Sampler
from asyncrl_runtime.core.samplers.custom import load_custom
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo
from asyncrl_runtime.core.samplers.windowed import Windowed
from asyncrl_runtime.core.versions import Versions


@dataclass(eq=False)
class BufferTooSmall(RunError):
    """A sampler may need more outstanding groups than the buffer holds (SC-2.323)."""

    sampler: str
    needed: int
    capacity: int

    def __str__(self) -> str:
        return (
            f"sampler {self.sampler} may need {self.needed} outstanding groups and "
            f"spec.asyncRL.maxBufferedRollouts is {self.capacity}: raise it to {self.needed}"
        )


def build_sampler(spec: JobSpec, buffer: ReplayBuffer) -> Sampler:
    """The job's sampler over its buffer. Raises SamplerUnusable, BufferTooSmall."""
    asked, facts = spec.async_rl.sampler, Derived(spec)
    sampler: Sampler
    if asked.name == "in_order":
        peak = max(facts.lookahead, facts.warmup_lookahead)
        sampler = InOrder(buffer, window=facts.lookahead, peak_window=peak)
    elif asked.name == "weight_fifo":
        sampler = WeightFifo(buffer, window=facts.staleness)
    elif asked.name == "ready_first":
        sampler = ReadyFirst(buffer, window=facts.staleness)
    elif asked.name == "windowed":
        sampler = Windowed(
            buffer,
            window=facts.staleness,
            freshest_first=bool(asked.sample_freshest_first),
            over_sampling_ratio=asked.over_sampling_ratio,
        )
    else:
        sampler = load_custom(asked.target or "", asked.arguments or {}, buffer)
    needed = sampler.required_buffer_capacity(facts.num_prompts_per_step)
    if needed is not None and needed > buffer.capacity:
        raise BufferTooSmall(sampler.name, needed, buffer.capacity)
    return sampler


def knobs(spec: JobSpec) -> str:
    """The sampler's knobs as status and reports print them."""
    asked, facts = spec.async_rl.sampler, Derived(spec)
    if asked.name == "in_order":
        return f"maxLookaheadVersions={facts.lookahead}"
    if asked.name == "custom":
        return f"target={asked.target}"
    parts = [f"maxStalenessVersions={facts.staleness}"]
    if asked.sample_freshest_first:
        parts.append("sampleFreshestFirst=true")
    if asked.over_sampling_ratio is not None:
        parts.append(f"overSamplingRatio={asked.over_sampling_ratio:g}")
    return " ".join(parts)


def staleness_bound(spec: JobSpec) -> int | None:
    """Largest lag that the sampler allows; None if it does not bound it."""
    facts = Derived(spec)
    if spec.async_rl.sampler.name in ("ready_first", "custom"):
        return None
    return facts.lookahead if spec.async_rl.sampler.name == "in_order" else facts.staleness


def over_sampling_cap(
    sampler: Sampler, versions: Versions, facts: Derived
) -> Callable[[], tuple[int, int] | None]:
    """(outstanding, cap) under windowed with an over-sampling ratio, else None."""
    if not isinstance(sampler, Windowed) or sampler.over_sampling_ratio is None:
        return lambda: None
    windowed = sampler

    def current() -> tuple[int, int] | None:
        cap = windowed.cap(facts.num_prompts_per_step, smallest_chunk=facts.min_groups)
        return None if cap is None else (windowed.outstanding(versions.trainer), cap)

    return current


def zero_spread(spec: JobSpec) -> Callable[[GroupRecord], bool]:
    """Dynamic sampling: a group whose raw rewards are all equal teaches nothing (SC-11.60)."""
    facts = Derived(spec)
    if not facts.valid_algorithm.use_dynamic_sampling:
        return lambda record: False
    by_component = facts.estimator == "gdpo"

    def flat(record: GroupRecord) -> bool:
        done = record.completions
        if not by_component:
            return max(c.reward for c in done) == min(c.reward for c in done)
        names = {name for c in done for name in c.reward_components}
        return all(len({c.reward_components.get(name, 0.0) for c in done}) == 1 for name in names)

    return flat
