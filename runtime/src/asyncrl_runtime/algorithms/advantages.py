"""Advantage estimators (11.3). Each takes rows and the columns it declares, and returns one result type."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from asyncrl_runtime.algorithms import gae
from asyncrl_runtime.algorithms.baselines import baselines, group_advantages, group_rows
from asyncrl_runtime.algorithms.columns import estimator_columns
from asyncrl_runtime.algorithms.errors import ColumnsMismatch, RewardWeightMismatch, TooFewComponents
from asyncrl_runtime.algorithms.kl import kl_in_reward
from asyncrl_runtime.algorithms.masks import token_weights
from asyncrl_runtime.algorithms.metrics import Moments, Normalizer, Stat
from asyncrl_runtime.algorithms.settings import (
    EstimatorSettings,
    GaeSettings,
    GdpoSettings,
    GrpoSettings,
    KlSettings,
    OpdSettings,
    RawRewardSettings,
    ReinforcePlusPlusSettings,
)


@dataclass(frozen=True, kw_only=True)
class EstimatorRows:
    """Rows of complete prompt groups; rewards are already transformed.

    Shapes:
        rewards      [R] float64
        components   [R] float64 each
        group_ids    R hashable ids
        token_mask   [R, T] bool, generated tokens; position 0 is False
        sample_mask  [R] float64, final
    """

    rewards: np.ndarray
    components: Mapping[str, np.ndarray]
    group_ids: Sequence[Hashable]
    token_mask: np.ndarray
    sample_mask: np.ndarray

    @cached_property
    def valid(self) -> np.ndarray:
        """[R, T] bool, valid tokens."""
        return token_weights(self.token_mask, self.sample_mask) > 0

    @cached_property
    def valid_rows(self) -> np.ndarray:
        """[R] bool."""
        return np.asarray(self.valid.any(axis=1))


@dataclass(frozen=True, slots=True)
class Advantages:
    """What every estimator gives (SC-11.18)."""

    values: np.ndarray
    """[R, T] float64; 0 outside valid tokens."""

    returns: np.ndarray | None = None
    """[R, T] float64, the critic's targets; None without a critic."""

    stats: Mapping[str, Stat | Moments] = field(default_factory=dict)


def estimate(rows: EstimatorRows, settings: EstimatorSettings, **columns: np.ndarray) -> Advantages:
    """Run the estimator that the settings stand for.

    Shapes:
        columns  [R, T] each, by the names of `estimator_columns`

    Raises:
        ColumnsMismatch: a declared column is missing, or an undeclared one was passed.
        TooFewComponents, RewardWeightMismatch: gdpo and its components do not fit.
    """
    declared = estimator_columns(settings)
    missing = tuple(name for name in declared if name not in columns)
    unknown = tuple(name for name in columns if name not in declared)
    if missing or unknown:
        raise ColumnsMismatch(f"estimator {type(settings).__name__}", missing, unknown, declared)
    inputs = [columns[name] for name in declared]
    match settings:
        case GrpoSettings():
            return _grpo(rows, settings)
        case GdpoSettings():
            return _gdpo(rows, settings)
        case OpdSettings():
            return _opd(rows, settings, *inputs)
        case ReinforcePlusPlusSettings():
            return _reinforce_plus_plus(rows, settings, *inputs)
        case GaeSettings():
            return _gae(rows, settings, *inputs)
        case RawRewardSettings():
            return _raw_reward(rows, settings)


def _expanded(per_row: np.ndarray, valid: np.ndarray) -> np.ndarray:
    return np.where(valid, per_row[:, None], 0.0)


def _grpo(rows: EstimatorRows, settings: GrpoSettings) -> Advantages:
    per_row = _compared(rows.rewards, rows, settings)
    return Advantages(_expanded(per_row, rows.valid))


def _compared(rewards: np.ndarray, rows: EstimatorRows, settings: GrpoSettings) -> np.ndarray:
    return group_advantages(
        rewards,
        rows.sample_mask > 0,
        group_rows(rows.group_ids),
        leave_one_out=settings.leave_one_out,
        normalize=settings.normalize,
        exclude_masked=settings.exclude_masked,
    )


def _gdpo(rows: EstimatorRows, settings: GdpoSettings) -> Advantages:
    """Source: arXiv:2601.05242."""
    names = tuple(sorted(rows.components))
    if len(names) < 2:
        raise TooFewComponents(names)
    weights = settings.reward_weights or (1.0,) * len(names)
    if len(weights) != len(names):
        raise RewardWeightMismatch(len(weights), names)
    parts = [
        weight * _compared(rows.components[name], rows, settings.group)
        for name, weight in zip(names, weights, strict=True)
    ]
    total = np.sum(parts, axis=0)
    taken = total[rows.valid_rows]
    centred = total - (taken.mean() if len(taken) else 0.0)
    std = taken.std(ddof=1) if len(taken) >= 2 else 0.0
    return Advantages(_expanded(centred / std if std > 1e-6 else centred, rows.valid))


def _opd(rows: EstimatorRows, settings: OpdSettings, previous: np.ndarray, teacher: np.ndarray) -> Advantages:
    """Log-ratio of the (mixed) teacher to the policy (SC-11.32), pooled statistics (SC-11.30).

    A token whose previous log-prob is -inf gets 0, as it takes no part in the loss (SC-11.70).
    """
    valid = rows.valid
    gap = np.zeros(valid.shape)
    np.subtract(teacher, previous, out=gap, where=valid & (previous != -np.inf), dtype=np.float64)
    alpha = settings.proximal_teacher_alpha
    advantages = gap if alpha == 1 else np.log1p(alpha * np.expm1(gap))
    if settings.subtract_global_baseline and valid.any():
        weights = token_weights(rows.token_mask, rows.sample_mask)
        advantages = advantages - (weights * advantages).sum() / weights.sum()
    advantages = np.where(valid, advantages, 0.0)
    stats = {
        "on_policy_distillation/advantage": _moments(advantages[valid]),
        "on_policy_distillation/teacher_gap": _moments(gap[valid]),
    }
    return Advantages(advantages, stats=stats)


def _moments(values: np.ndarray) -> Moments:
    return Moments(float(len(values)), float(values.sum()), float((values**2).sum()))


def _reinforce_plus_plus(
    rows: EstimatorRows, settings: ReinforcePlusPlusSettings, *kl_columns: np.ndarray
) -> Advantages:
    """Source: arXiv:2501.03262."""
    per_row = rows.rewards
    if settings.minus_baseline:
        per_row = np.zeros(len(rows.rewards))
        counts = rows.sample_mask > 0
        for group in group_rows(rows.group_ids):
            base, _ = baselines(
                rows.rewards[group],
                counts[group],
                leave_one_out=False,
                exclude_masked=settings.exclude_masked,
            )
            per_row[group] = rows.rewards[group] - base
    valid = rows.valid
    advantages = _expanded(per_row, valid)
    penalty, stats = _reward_penalty(valid, valid, settings.kl, *kl_columns)
    if penalty is not None:
        advantages = advantages - penalty
    taken = advantages[valid]
    if len(taken):
        advantages = (advantages - taken.mean()) / np.sqrt(max(taken.var(), 1e-8))
    return Advantages(np.where(valid, advantages, 0.0), stats=stats)


def _reward_penalty(
    mask: np.ndarray, valid: np.ndarray, kl: KlSettings | None, *columns: np.ndarray
) -> tuple[np.ndarray | None, dict[str, Stat]]:
    """β·k per token of the mask, and its mean k over valid tokens."""
    if kl is None:
        return None, {}
    policy, reference = columns
    estimate = kl_in_reward(policy, reference, mask, kl)
    mean = Stat(Normalizer.TOKENS, float(estimate[valid].sum()), float(valid.sum()))
    return kl.penalty * estimate, {"kl_penalty": mean}


def _gae(
    rows: EstimatorRows, settings: GaeSettings, values: np.ndarray, *kl_columns: np.ndarray
) -> Advantages:
    mask, valid = rows.token_mask, rows.valid
    penalty, stats = _reward_penalty(mask, valid, settings.kl, *kl_columns)
    tokens = gae.token_rewards(rows.rewards, mask, penalty)
    advantages, returns = gae.advantages_and_returns(tokens, values, mask, settings)
    if settings.normalize:
        advantages = gae.whiten(advantages, valid)
    return Advantages(np.where(valid, advantages, 0.0), returns, stats)


def _raw_reward(rows: EstimatorRows, settings: RawRewardSettings) -> Advantages:
    advantages = _expanded(rows.rewards, rows.valid)
    return Advantages(gae.whiten(advantages, rows.valid) if settings.normalize else advantages)
