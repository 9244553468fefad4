"""Minibatches of one step's rows, whole groups each (SC-10.44)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from asyncrl_runtime.algorithms.baselines import group_rows


def split_by_group(
    group_ids: Sequence[Hashable], minibatches: int, *, seed: Sequence[int] | None = None
) -> list[list[int]]:
    """Row indices of each minibatch; the numbers of groups differ by at most one.

    A step with fewer groups than minibatches gives one minibatch per group: an optimizer step on nothing
    is impossible.

    Args:
        group_ids: the group of each row.
        minibatches: at least 1.
        seed: shuffles the groups, e.g. (run seed, RL step, epoch); None keeps their order.
    """
    if minibatches < 1:
        raise ValueError(f"minibatches is {minibatches}; it must be at least 1")
    groups = group_rows(group_ids)
    order = (
        np.arange(len(groups)) if seed is None else np.random.default_rng(list(seed)).permutation(len(groups))
    )
    parts = np.array_split(order, min(minibatches, len(groups))) if groups else []
    return [[int(row) for group in part for row in groups[group]] for part in parts]
