"""Minibatches of one step, whole prompt groups each (SC-10.44)."""

from __future__ import annotations

import random


def split_groups(num_groups: int, minibatches: int, *, seed: str | None = None) -> list[list[int]]:
    """Group indices of each minibatch; their sizes differ by at most one.

    A step with fewer groups than minibatches gives one minibatch per group, since an optimizer step on
    nothing is impossible.

    Args:
        num_groups: groups of the step.
        minibatches: at least 1.
        seed: shuffles the groups, the same way each time; None keeps their order.
    """
    if minibatches < 1:
        raise ValueError(f"minibatches is {minibatches}; it must be at least 1")
    order = list(range(num_groups))
    if seed is not None:
        random.Random(seed).shuffle(order)
    parts = min(minibatches, num_groups)
    size, longer = divmod(num_groups, max(parts, 1))
    ends = [(i + 1) * size + min(i + 1, longer) for i in range(parts)]
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
