"""Baseline and spread of rewards within prompt groups (SC-11.20, 11.26, 11.27, 11.31)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

SPREAD_EPSILON = 1e-6
"""Added to a std that divides, and the relative spread below which a std is 0."""
_BLOCK = 256
"""Rows of a leave-one-out comparison held at once, so that memory stays linear in the group's size."""


def group_rows(group_ids: Sequence[Hashable]) -> list[np.ndarray]:
    """Row indices per group, in order of first appearance. Groups are told apart by id, never by prompt."""
    rows: dict[Hashable, list[int]] = {}
    for row, group in enumerate(group_ids):
        rows.setdefault(group, []).append(row)
    return [np.array(indices) for indices in rows.values()]


def unbiased_std(values: np.ndarray, counted: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Std of the counted values of each row, around means computed before (SC-11.31).

    Shapes:
        values   [n]
        counted  [k, n] bool
        means    [k]
        returns  [k] float64; 0 for fewer than two values and for a spread that is only rounding
    """
    count = counted.sum(axis=1)
    squares = np.where(counted, (values[None, :] - means[:, None]) ** 2, 0.0).sum(axis=1)
    std = np.sqrt(squares / np.maximum(count - 1, 1))
    top = np.where(counted, values[None, :], -np.inf).max(axis=1, initial=-np.inf)
    bottom = np.where(counted, values[None, :], np.inf).min(axis=1, initial=np.inf)
    real = top - bottom > SPREAD_EPSILON * np.maximum(1.0, np.abs(means))
    return np.where((count >= 2) & real, std, 0.0)


def baselines(
    rewards: np.ndarray, counts: np.ndarray, *, leave_one_out: bool, exclude_masked: bool
) -> tuple[np.ndarray, np.ndarray]:
    """What each reward of one group is compared with, and the spread of the same set.

    Shapes:
        rewards  [n] float64
        counts   [n] bool, rows that the loss counts; used with exclude_masked only
        returns  [n] baselines and [n] stds, float64. An empty set gives the reward itself and 0.
    """
    size = len(rewards)
    index = np.arange(size)
    member = counts if exclude_masked else np.ones(size, dtype=bool)
    if leave_one_out:
        blocks = [
            _compare(rewards, member[None, :] & (index[None, :] != index[start : start + _BLOCK, None]))
            for start in range(0, size, _BLOCK)
        ]
        means = np.concatenate([mean for mean, _ in blocks])
        stds = np.concatenate([std for _, std in blocks])
        empty = member.sum() - member == 0
    else:
        mean, std = _compare(rewards, member[None, :])
        means, stds = np.repeat(mean, size), np.repeat(std, size)
        empty = np.full(size, not member.any())
    alone = empty | ~member
    return np.where(alone, rewards, means), np.where(alone, 0.0, stds)


def _compare(rewards: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    means = np.where(counted, rewards[None, :], 0.0).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
    return means, unbiased_std(rewards, counted, means)


def group_advantages(
    rewards: np.ndarray,
    counts: np.ndarray,
    groups: Sequence[np.ndarray],
    *,
    leave_one_out: bool,
    normalize: bool,
    exclude_masked: bool,
) -> np.ndarray:
    """Rewards centred on their group's baseline and, if asked, divided by its spread where there is one.

    Shapes:
        rewards, returns  [R] float64
        counts            [R] bool
        groups            row indices per group

    Source: arXiv:2402.03300, section 4.1.2; leave-one-out: arXiv:2402.14740.
    """
    out = np.zeros(len(rewards))
    for rows in groups:
        base, std = baselines(
            rewards[rows], counts[rows], leave_one_out=leave_one_out, exclude_masked=exclude_masked
        )
        centred = rewards[rows] - base
        out[rows] = np.where(std > 0, centred / (std + SPREAD_EPSILON), centred) if normalize else centred
    return out
