"""Distance to the reference policy, per token (SC-11.63)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncrl_runtime.algorithms.settings import KlKind, KlSettings


def clamped(x: Any, bound: float | None) -> Any:
    """x within ±bound; None leaves it alone. Works on arrays and tensors."""
    return x if bound is None else x.clip(-bound, bound)


def kl_estimate(log_ratio: Any, kind: KlKind, exp: Callable[[Any], Any]) -> Any:
    """k1, k2 or k3 of reference minus policy log-prob; `exp` is that of the array library.

    Source: J. Schulman, "Approximating KL divergence".
    """
    match kind:
        case "k1":
            return -log_ratio
        case "k2":
            return log_ratio * log_ratio / 2
        case "k3":
            return exp(log_ratio) - 1 - log_ratio


def kl_in_reward(
    policy: np.ndarray, reference: np.ndarray, mask: np.ndarray, settings: KlSettings
) -> np.ndarray:
    """Unweighted KL estimate under the policy before the updates.

    Shapes:
        policy, reference  [R, T] log-probs
        mask               [R, T] bool
        returns            [R, T] float64; 0 outside the mask and where policy is -inf (SC-11.70)
    """
    live = mask & (policy != -np.inf)
    difference = np.zeros(mask.shape)
    np.subtract(reference, policy, out=difference, where=live, dtype=np.float64)
    with np.errstate(over="ignore"):  # an overflow is what the output clamp is for
        estimate = kl_estimate(clamped(difference, settings.input_clamp), settings.kind, np.exp)
    return np.where(live, clamped(estimate, settings.output_clamp), 0.0)
