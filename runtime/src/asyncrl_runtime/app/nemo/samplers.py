"""How the older switches of the sampler are carried over (SC-2.350)."""

from __future__ import annotations

from typing import Any

from asyncrl_runtime.app.nemo.state import Import

PLACES = ("async_rl.", "")
STALENESS = "max_weight_staleness_versions"
NAMES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("in_order", ("force_in_order", "require_order"), ("in_order", "ordered", "strict_order")),
    ("weight_fifo", ("strict_weight_fifo",), ("weight_fifo", "strict_weight_fifo", "fifo")),
    ("windowed", ("over_sampling",), ("windowed", "over_sampling")),
)
"""Sampler, switches that mean it, and values of `batch_selection_strategy` that do; the first counts."""

OTHERWISE = "ready_first"
STRATEGY = "batch_selection_strategy"


def settle_sampler(job: Import) -> None:
    """Choose the sampler that the old switches mean, and give it its staleness."""
    name, because = _chosen(job)
    if name is not None:
        job.put("asyncRL.sampler.name", name, because)
        job.note(because, f"the switches of the sampler mean spec.asyncRL.sampler.name {name}")
    path, value = _old(job, STALENESS)
    if value is None:
        return
    if (name or job.made("asyncRL.sampler.name") or "in_order") == "in_order":
        job.put("asyncRL.sampler.maxLookaheadVersions", value, path)
        job.note(path, "is the lead of the sampler in_order, spec.asyncRL.sampler.maxLookaheadVersions")
    else:
        job.put("asyncRL.sampler.maxStalenessVersions", value, path)


def _chosen(job: Import) -> tuple[str | None, str]:
    """The sampler, and the setting that decides; None if no switch is there."""
    strategy_path, strategy = _old(job, STRATEGY)
    seen = strategy_path if strategy is not None else ""
    for name, switches, strategies in NAMES:
        for switch in switches:
            path, value = _old(job, switch)
            if value:
                return name, path
            seen = seen or (path if value is not None else "")
        if str(strategy).lower() in strategies:
            return name, strategy_path
    return (OTHERWISE if seen else None), seen


def _old(job: Import, key: str) -> tuple[str, Any]:
    """Where an old key stands, and its value; None where it is nowhere."""
    for place in PLACES:
        value = job.get(f"{place}{key}")
        if value is not None:
            return f"{place}{key}", value
    return key, None
