"""Per-token terms of the policy loss: ratio, correction weight, KL (SC-11.62 to 11.70)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl_runtime.algorithms.columns import PREVIOUS_LOGPROBS, REFERENCE_LOGPROBS
from asyncrl_runtime.algorithms.errors import ColumnsMismatch, ShapeError
from asyncrl_runtime.algorithms.kl import clamped, kl_estimate
from asyncrl_runtime.algorithms.settings import KlSettings, LossSettings, Truncation


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBatch:
    """Rows of one micro-batch.

    Shapes:
        logprobs             [R, T], under the parameters being trained, with gradient
        generation_logprobs  [R, T]
        advantages           [R, T]
        token_mask           [R, T], nonzero on generated tokens
        sample_mask          [R]
        previous_logprobs    [R, T]; needed unless the ratio is forced
        reference_logprobs   [R, T]; needed for a KL penalty in the loss
        unfiltered_logprobs  [R, T] with gradient; needed for it under top-k/top-p sampling
        raw_rewards          [R]; needed for the likelihood term
    """

    logprobs: Tensor
    generation_logprobs: Tensor
    advantages: Tensor
    token_mask: Tensor
    sample_mask: Tensor
    previous_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    unfiltered_logprobs: Tensor | None = None
    raw_rewards: Tensor | None = None

    def __post_init__(self) -> None:
        rows, width = self.logprobs.shape
        for name in self.__slots__:
            tensor = getattr(self, name)
            expected = (rows,) if name in ("sample_mask", "raw_rewards") else (rows, width)
            if tensor is not None and tensor.shape != expected:
                raise ShapeError(name, tuple(tensor.shape), expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Columns from position 1 on, made safe: 0 wherever a token takes no part.

    Shapes (P = T - 1):
        mask       [R, P] float, token mask
        weights    [R, P] float, effective mask m
        live       [R, P] bool: m > 0, and neither lp nor p is -inf (SC-11.70)
        logprobs, previous, generation, advantages  [R, P]; generation may be infinite on live tokens
    """

    mask: Tensor
    weights: Tensor
    live: Tensor
    logprobs: Tensor
    previous: Tensor
    generation: Tensor
    advantages: Tensor

    @property
    def row_tokens(self) -> Tensor:
        """[R, 1] tokens of each row, at least 1 so that it can divide."""
        return self.mask.sum(dim=1, keepdim=True).clamp(min=1)


def prepare(batch: PolicyBatch, settings: LossSettings) -> Tokens:
    """Cut position 0 off and neutralise what takes no part.

    Raises:
        ColumnsMismatch: a column that the settings need is missing.
    """
    lp = _wide(batch.logprobs)
    if settings.ratio == "forced":
        previous = lp.detach()
    elif batch.previous_logprobs is None:
        raise ColumnsMismatch("the policy loss", (PREVIOUS_LOGPROBS,), (), (PREVIOUS_LOGPROBS,))
    else:
        previous = _wide(batch.previous_logprobs)
    mask = (batch.token_mask[:, 1:] != 0).to(lp.dtype)
    weights = mask * batch.sample_mask.to(lp.dtype)[:, None]
    valid = weights > 0
    live = valid & (lp.detach() != -torch.inf) & (previous != -torch.inf)
    return Tokens(
        mask=mask,
        weights=weights,
        live=live,
        logprobs=lp.where(live, 0.0),
        previous=previous.where(live, 0.0),
        generation=_wide(batch.generation_logprobs).where(live, 0.0),
        advantages=_wide(batch.advantages).where(valid, 0.0),
    )


def _wide(column: Tensor) -> Tensor:
    """Positions 1 on, in at least single precision."""
    return column[:, 1:].to(torch.promote_types(column.dtype, torch.float32))


def ratios(tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """ρ and ρ_c (SC-11.65).

    Shapes:
        returns  [R, P] twice, or [R, 1] under sequence-level ratios
    """
    lp = tokens.logprobs
    match settings.ratio:
        case "forced":
            ratio = torch.exp(lp - lp.detach())
            return ratio, ratio
        case "disabled":
            return lp, lp
        case "sequence":
            mean = (tokens.mask * (lp - tokens.previous)).sum(dim=1, keepdim=True) / tokens.row_tokens
            ratio = torch.exp(mean)
        case "token":
            ratio = torch.exp(lp - tokens.previous)
    return ratio, ratio.clamp(1 - settings.clip_min, 1 + settings.clip_max)


def policy_gradient(tokens: Tokens, ratio: Tensor, clipped: Tensor, settings: LossSettings) -> Tensor:
    """pg per token (SC-11.62): [R, P], 0 where not live.

    Source: arXiv:1707.06347 (clipping), arXiv:1912.09729 (dual clipping), arXiv:2506.13585 (CISPO).
    """
    advantages = tokens.advantages
    if settings.cispo:
        surrogate = -advantages * clipped.detach() * tokens.logprobs
    else:
        surrogate = torch.maximum(-advantages * ratio, -advantages * clipped)
        if settings.dual_clip is not None:
            bounded = torch.minimum(surrogate, -settings.dual_clip * advantages)
            surrogate = torch.where(advantages < 0, bounded, surrogate)
    return surrogate.where(tokens.live, 0.0)


def correction_weights(tokens: Tokens, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """w per token, and whether it was out of bounds (SC-11.66, SC-11.67).

    Shapes:
        returns  [R, P] without gradient, 0 where not live; [R, P] bool

    Source: arXiv:2510.18855 (icepop).
    """
    outside = torch.zeros_like(tokens.live)
    if not settings.correction:
        return tokens.live.to(tokens.mask.dtype), outside
    difference = (tokens.previous - tokens.generation).detach()
    if settings.ratio == "sequence":
        weights = difference.sum(dim=1, keepdim=True).exp().expand_as(difference)
    else:
        weights = difference.exp()
    weights = weights.where(weights.isfinite(), 0.0)
    if settings.truncation is not None:
        weights, outside = _truncated(weights, difference, tokens, settings.truncation)
    return weights.where(tokens.live, 0.0), outside & tokens.live


def _truncated(
    weights: Tensor, difference: Tensor, tokens: Tokens, bounds: Truncation
) -> tuple[Tensor, Tensor]:
    lower = 0.0 if bounds.lower is None else bounds.lower
    if bounds.kind == "seq-mask-tis":
        finite = difference.where(difference.isfinite(), 0.0)
        mean = finite.sum(dim=1, keepdim=True) / tokens.row_tokens
        judged = mean.exp().expand_as(weights)
    else:
        judged = weights
    outside = (judged < lower) | (judged > bounds.upper)
    if bounds.kind == "tis":
        return weights.clamp(lower, bounds.upper), outside
    return weights.where(~outside, 0.0), outside


def kl_in_loss(batch: PolicyBatch, tokens: Tokens, settings: LossSettings, kl: KlSettings) -> Tensor:
    """k per token, unweighted (SC-11.63): [R, P], 0 where not live.

    Raises:
        ColumnsMismatch: the batch has no reference log-probs.
    """
    if batch.reference_logprobs is None:
        raise ColumnsMismatch("the KL penalty", (REFERENCE_LOGPROBS,), (), (REFERENCE_LOGPROBS,))
    policy = tokens.logprobs
    if batch.unfiltered_logprobs is not None:
        policy = _wide(batch.unfiltered_logprobs).where(tokens.live, 0.0)
    difference = _wide(batch.reference_logprobs).where(tokens.live, 0.0) - policy
    if settings.on_policy_kl:
        known = tokens.generation.isfinite()
        weight = torch.exp(policy - tokens.generation.where(known, policy.detach()))
    else:
        weight = torch.exp(policy - policy.detach())
    if kl.input_clamp is not None:
        weight = torch.where(difference.detach().abs() > kl.input_clamp, weight.detach(), weight)
    estimate = weight * kl_estimate(clamped(difference, kl.input_clamp), kl.kind, torch.exp)
    return clamped(estimate, kl.output_clamp).where(tokens.live, 0.0)
