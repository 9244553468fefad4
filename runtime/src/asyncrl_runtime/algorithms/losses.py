"""The policy loss as raw sums: parts of a step add up, and one division ends it (SC-11.71)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl_runtime.algorithms.errors import ColumnsMismatch, TotalsMissing
from asyncrl_runtime.algorithms.metrics import Normalizer, Stat, Stats, Totals, finalize, normalizer
from asyncrl_runtime.algorithms.mismatch import policy_values
from asyncrl_runtime.algorithms.settings import LossSettings
from asyncrl_runtime.algorithms.surrogate import (
    PolicyBatch,
    Tokens,
    correction_weights,
    kl_in_loss,
    policy_gradient,
    prepare,
    ratios,
)

POLICY_METRICS: Mapping[str, Normalizer] = {
    "probs_ratio": Normalizer.TOKENS,
    "probs_ratio_min": Normalizer.MIN,
    "probs_ratio_max": Normalizer.MAX,
    "probs_ratio_clamped": Normalizer.TOKENS,
    "probs_ratio_clamped_min": Normalizer.MIN,
    "probs_ratio_clamped_max": Normalizer.MAX,
    "clip_fraction": Normalizer.TOKENS,
    "kl_penalty": Normalizer.TOKENS,
    "approx_entropy": Normalizer.TOKENS,
    "token_mult_prob_error": Normalizer.TOKENS,
    "gen_kl_error": Normalizer.TOKENS,
    "policy_kl_error": Normalizer.TOKENS,
    "js_divergence_error": Normalizer.TOKENS,
    "sampling_importance_ratio": Normalizer.TOKENS,
    "_sampling_importance_ratio_squared": Normalizer.TOKENS,
    "is_oob_ratio": Normalizer.TOKENS,
    "nonfinite_logprob_tokens": Normalizer.NONE,
    "_masked_tokens": Normalizer.NONE,
    "global_valid_toks": Normalizer.NONE,
    "global_valid_seqs": Normalizer.NONE,
}
"""Metrics of the policy loss with their reductions (SC-11.69); an underscore marks inputs of others."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """One micro-batch's share of an optimizer step.

    Shapes:
        loss          scalar, float64, with gradient: to be divided by T (S) once per optimizer step
        valid_tokens  scalar, its share of T
        valid_rows    scalar, its share of S
        values        scalars without gradient, by metric: raw sums and extremes
    """

    loss: Tensor
    valid_tokens: Tensor
    valid_rows: Tensor
    values: Mapping[str, Tensor]
    declared: Mapping[str, Normalizer]
    token_level: bool

    def stats(self) -> dict[str, Stat]:
        """Loss and metrics as plain statistics to merge; waits for the device once."""
        names = list(self.values)
        scalars = [self.loss.detach(), self.valid_tokens, self.valid_rows, *self.values.values()]
        loss, tokens, rows, *values = torch.stack([s.to(torch.float64) for s in scalars]).tolist()
        level = Normalizer.TOKENS if self.token_level else Normalizer.SEQUENCES
        weights = {Normalizer.TOKENS: tokens, Normalizer.SEQUENCES: rows}
        stats = {"loss": Stat(level, loss, weights[level])}
        for name, value in zip(names, values, strict=True):
            kind = self.declared[name]
            extreme = kind in (Normalizer.MIN, Normalizer.MAX)
            stats[name] = Stat(kind, value, weights.get(kind, 0.0), empty=-1.0 if extreme else 0.0)
        return stats


def count_totals(token_mask: Tensor, sample_mask: Tensor, raw_rewards: Tensor | None = None) -> Totals:
    """T, S and T+ of some rows, for `policy_loss` and `normalizer`. Add the totals of chunks and ranks.

    Shapes:
        token_mask                [R, T]
        sample_mask, raw_rewards  [R]; without rewards T+ is 0
    """
    rows = ((token_mask[:, 1:] != 0).to(torch.float64) * sample_mask.to(torch.float64)[:, None]).sum(dim=1)
    positive = rows[raw_rewards > 0].sum() if raw_rewards is not None else rows.new_zeros(())
    return Totals(float(rows.sum()), float((rows > 0).sum()), float(positive))


def policy_loss(batch: PolicyBatch, settings: LossSettings, *, totals: Totals | None = None) -> LossSums:
    """Clipped surrogate, KL and likelihood terms of one micro-batch, summed and not divided.

    Args:
        batch: rows of one micro-batch; padding rows have sample mask 0 and change nothing.
        settings: of the loss.
        totals: of the whole optimizer step; needed when the likelihood term has a weight (SC-11.64).

    Raises:
        ColumnsMismatch: a column that the settings need is missing.
        TotalsMissing: the likelihood term has a weight and totals is None.
    """
    tokens = prepare(batch, settings)
    ratio, clipped = ratios(tokens, settings)
    weights, outside = correction_weights(tokens, settings)
    per_token = weights * policy_gradient(tokens, ratio, clipped, settings)
    kl = None
    if settings.kl is not None and (settings.kl.penalty > 0 or batch.reference_logprobs is not None):
        kl = kl_in_loss(batch, tokens, settings, settings.kl)
        if settings.kl.penalty > 0:
            per_token = per_token + settings.kl.penalty * kl
    loss = reduced(per_token, tokens, token_level=settings.token_level)
    if settings.nll_weight > 0:
        loss = loss + _likelihood(batch, tokens, settings, totals)
    with torch.no_grad():
        values = policy_values(tokens, settings, ratio, clipped, outside, kl)
        counts = {
            "global_valid_toks": tokens.weights.sum(dtype=torch.float64),
            "global_valid_seqs": (tokens.weights > 0).any(dim=1).sum(),
        }
    return LossSums(
        loss=loss,
        valid_tokens=counts["global_valid_toks"],
        valid_rows=counts["global_valid_seqs"],
        values={**values, **counts},
        declared=POLICY_METRICS,
        token_level=settings.token_level,
    )


def reduced(per_token: Tensor, tokens: Tokens, *, token_level: bool) -> Tensor:
    """Raw sum over tokens, or over the rows' means, in double precision so that no split shows."""
    if token_level:
        return (tokens.weights * per_token).sum(dtype=torch.float64)
    return (tokens.weights * per_token / tokens.row_tokens).sum(dtype=torch.float64)


def _likelihood(batch: PolicyBatch, tokens: Tokens, settings: LossSettings, totals: Totals | None) -> Tensor:
    """NLL on correct rows, times what the step will divide by (SC-11.64, SC-11.71)."""
    if totals is None:
        raise TotalsMissing(settings.nll_weight)
    if batch.raw_rewards is None:
        raise ColumnsMismatch("the likelihood term", ("reward",), (), ("reward",))
    if totals.positive_tokens == 0:
        return tokens.logprobs.new_zeros((), dtype=torch.float64)
    weights = tokens.weights * (batch.raw_rewards > 0)[:, None]
    nll = (weights * -tokens.logprobs).sum(dtype=torch.float64)
    divisor = normalizer(totals, token_level=settings.token_level)
    return settings.nll_weight * nll / totals.positive_tokens * divisor


def policy_metrics(parts: Sequence[Stats]) -> dict[str, float]:
    """Metrics of one optimizer step from the statistics of its micro-batches, chunks and ranks.

    Adds `effective_sample_size`, the share of tokens that equally weighted ones would be worth as much as
    (1 without mismatch), and `masked_token_fraction`, the share of generated tokens on masked rows.
    """
    metrics = finalize(parts)
    hidden = finalize({name.removeprefix("_"): stat for name, stat in part.items()} for part in parts)
    square = hidden["sampling_importance_ratio_squared"]
    metrics["effective_sample_size"] = (
        metrics["sampling_importance_ratio"] ** 2 / square if square > 0 else 0.0
    )
    masked, valid = hidden["masked_tokens"], metrics["global_valid_toks"]
    metrics["masked_token_fraction"] = masked / (masked + valid) if masked else 0.0
    return metrics
