"""Reward transforms before the estimator, and the test of dynamic sampling (11.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asyncrl_runtime.algorithms.errors import NonFiniteRewards
from asyncrl_runtime.algorithms.settings import OverlongShaping, RewardScaling, RewardSettings, StopShaping


@dataclass(frozen=True, slots=True)
class TransformedRewards:
    """Rewards as the estimator sees them."""

    rewards: np.ndarray
    """[R] float64."""

    components: Mapping[str, np.ndarray]
    """[R] float64 each; scaled, never shaped."""

    out_of_range: int
    """Totals outside the source interval, clamped to it."""

    components_out_of_range: Mapping[str, int]


def scale(rewards: np.ndarray, settings: RewardScaling) -> tuple[np.ndarray, int]:
    """Clamp to the source interval and map linearly to the target; also the number clamped (SC-11.58)."""
    inside = np.clip(rewards, settings.source_min, settings.source_max)
    share = (inside - settings.source_min) / (settings.source_max - settings.source_min)
    scaled = settings.target_min + share * (settings.target_max - settings.target_min)
    return scaled, int((inside != rewards).sum())


def shape(
    rewards: np.ndarray,
    settings: OverlongShaping | StopShaping,
    *,
    response_tokens: np.ndarray,
    truncated: np.ndarray,
) -> np.ndarray:
    """Make completions near or over the length limit worth less; the penalty saturates (SC-11.59).

    Shapes:
        rewards, response_tokens, truncated, returns  [R]
    """
    match settings:
        case StopShaping(coefficient=coefficient):
            return np.where(np.asarray(truncated, dtype=bool), rewards * coefficient, rewards)
        case OverlongShaping(buffer_tokens=buffer, penalty=penalty, max_response_tokens=limit):
            excess = np.asarray(response_tokens, dtype=np.float64) - (limit - buffer)
            return rewards + np.clip(-excess / buffer * penalty, -penalty, 0.0)


def transform(
    rewards: np.ndarray,
    components: Mapping[str, np.ndarray],
    settings: RewardSettings,
    *,
    response_tokens: np.ndarray,
    truncated: np.ndarray,
) -> TransformedRewards:
    """Scale totals and components alike, then shape the totals (SC-11.57).

    Raises:
        NonFiniteRewards: a reward is NaN or infinite.
    """
    totals = _finite("reward", rewards)
    parts = {name: _finite(f"reward_component/{name}", values) for name, values in components.items()}
    out_of_range, parts_out_of_range = 0, dict.fromkeys(parts, 0)
    if settings.scaling is not None:
        totals, out_of_range = scale(totals, settings.scaling)
        for name, values in parts.items():
            parts[name], parts_out_of_range[name] = scale(values, settings.scaling)
    if settings.shaping is not None:
        totals = shape(totals, settings.shaping, response_tokens=response_tokens, truncated=truncated)
    return TransformedRewards(totals, parts, out_of_range, parts_out_of_range)


def has_zero_spread(
    rewards: Sequence[float] | np.ndarray,
    components: Mapping[str, Sequence[float] | np.ndarray] | None = None,
) -> bool:
    """Whether a group has nothing to compare, so that dynamic sampling discards it (SC-11.60).

    Args:
        rewards: raw rewards of the group's completions.
        components: given under gdpo, which compares each component by itself: all must be constant.
    """
    columns = [rewards] if components is None else list(components.values())
    return all(max(column) == min(column) for column in columns)


def _finite(column: str, values: np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise NonFiniteRewards(column, tuple(int(row) for row in bad))
    return array
