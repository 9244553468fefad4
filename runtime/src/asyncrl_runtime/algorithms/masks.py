"""Which rows count in the loss (11.5)."""

from __future__ import annotations

import numpy as np

from asyncrl_runtime.algorithms.metrics import Normalizer, Stat
from asyncrl_runtime.algorithms.settings import MaskSettings


def compose_sample_mask(
    loss_multiplier: np.ndarray,
    *,
    truncated: np.ndarray,
    flagged: np.ndarray,
    settings: MaskSettings,
) -> np.ndarray:
    """Row weights from the datum, the length limit and the environment (SC-11.50).

    Applying it to its own result changes nothing, so the advantage stage may repeat what was done at commit.

    Shapes:
        loss_multiplier     [R], >= 0
        truncated, flagged  [R] bool
        returns             [R] float64
    """
    mask = np.array(loss_multiplier, dtype=np.float64)
    if settings.overlong_filtering:
        mask[np.asarray(truncated, dtype=bool)] = 0.0
    if settings.mask_env_flagged:
        mask[np.asarray(flagged, dtype=bool)] = 0.0
    return mask


def token_weights(token_mask: np.ndarray, sample_mask: np.ndarray) -> np.ndarray:
    """The effective mask m, with position 0 left out.

    Shapes:
        token_mask   [R, T], nonzero on generated tokens
        sample_mask  [R]
        returns      [R, T] float64
    """
    weights = (np.asarray(token_mask) != 0) * np.asarray(sample_mask, dtype=np.float64)[:, None]
    weights[:, :1] = 0.0
    return weights


def sequence_errors(generation: np.ndarray, previous: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over a row's valid tokens of exp(|generation - previous log-prob|) (SC-11.51).

    A token that top-k/top-p filtering gave a log-prob of -inf counts as a difference of 0, as it does in the
    loss (SC-11.70); NaN stays NaN, so that it is noticed.

    Shapes:
        generation, previous  [R, T] log-probs
        mask                  [R, T] bool, valid tokens
        returns               [R] float64; NaN for a row without valid tokens
    """
    differs = mask & (generation != -np.inf) & (previous != -np.inf)
    difference = np.zeros(mask.shape)
    np.subtract(generation, previous, out=difference, where=differs, dtype=np.float64)
    with np.errstate(over="ignore"):  # an infinite error is above every threshold
        factors = np.where(mask, np.exp(np.abs(difference)), 0.0)
    tokens = mask.sum(axis=1)
    return np.where(tokens > 0, factors.sum(axis=1) / np.maximum(tokens, 1), np.nan)


def sequence_error_mask(
    errors: np.ndarray, *, valid_rows: np.ndarray, raw_rewards: np.ndarray, threshold: float | None
) -> tuple[np.ndarray, dict[str, Stat]]:
    """Rows to keep, and the statistics before and after masking (SC-11.52).

    Shapes:
        errors       [R], as of `sequence_errors`
        valid_rows   [R] bool
        raw_rewards  [R], before any transform
        returns      [R] bool, False on rows above the threshold; without a threshold all True
    """
    masked = valid_rows & (errors > threshold) if threshold is not None else np.zeros(len(errors), bool)
    correct = int((raw_rewards[masked] == 1).sum())
    stats = {
        **_error_stats(errors[valid_rows], ""),
        **_error_stats(errors[valid_rows & ~masked], "_after_mask"),
        "num_masked_seqs_by_logprob_error": Stat(Normalizer.NONE, float(masked.sum())),
        "masked_correct_pct": Stat(Normalizer.ROWS, float(correct), float(masked.sum())),
    }
    return ~masked, stats


def _error_stats(errors: np.ndarray, suffix: str) -> dict[str, Stat]:
    """Max, mean and min of some rows' errors, mergeable across chunks (SC-11.53)."""
    top, bottom = (float(errors.max()), float(errors.min())) if len(errors) else (-np.inf, np.inf)
    return {
        f"max_seq_mult_prob_error{suffix}": Stat(Normalizer.MAX, top),
        f"mean_seq_mult_prob_error{suffix}": Stat(Normalizer.ROWS, float(errors.sum()), float(len(errors))),
        f"min_seq_mult_prob_error{suffix}": Stat(Normalizer.MIN, bottom),
    }
