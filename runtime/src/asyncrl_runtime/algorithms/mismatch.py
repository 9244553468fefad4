"""Metrics of the policy loss: ratios, entropy, mismatch of generation and training (SC-12.10 to 12.12)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncrl_runtime.algorithms.settings import LossSettings
from asyncrl_runtime.algorithms.surrogate import Tokens


def policy_values(
    tokens: Tokens,
    settings: LossSettings,
    ratio: Tensor,
    clipped: Tensor,
    outside: Tensor,
    kl: Tensor | None,
) -> dict[str, Tensor]:
    """Raw sums and extremes of one micro-batch by metric name, scalars; call without gradient.

    Shapes (R rows, P positions):
        ratio, clipped  [R, P] or [R, 1], as of `surrogate.ratios`
        outside         [R, P] bool, as of `surrogate.correction_weights`
        kl              [R, P], as of `surrogate.kl_in_loss`; None leaves the metric out
    """
    if settings.ratio == "disabled":  # ρ is a log-prob there; what is reported stays a ratio
        ratio = clipped = torch.exp(tokens.logprobs - tokens.previous)
    valid = tokens.weights > 0
    values = {
        **_spread(tokens, "probs_ratio", ratio),
        **_spread(tokens, "probs_ratio_clamped", clipped),
        "clip_fraction": _sum(tokens, (ratio != clipped).expand_as(tokens.weights).to(tokens.mask.dtype)),
        **_generation_mismatch(tokens),
        "is_oob_ratio": _sum(tokens, outside.to(tokens.mask.dtype)),
        "nonfinite_logprob_tokens": (valid & ~tokens.live).sum(),
        "_masked_tokens": (tokens.mask.bool() & ~valid).sum(),
    }
    if kl is not None:
        values["kl_penalty"] = _sum(tokens, kl.detach())
    return values


def _sum(tokens: Tokens, per_token: Tensor) -> Tensor:
    """Σ m·x over live tokens."""
    return (tokens.weights * per_token).where(tokens.live, 0.0).sum(dtype=torch.float64)


def _spread(tokens: Tokens, name: str, ratio: Tensor) -> dict[str, Tensor]:
    """Sum and extremes over live tokens; masked ones never reach an extreme (SC-14.132)."""
    per_token = ratio.detach().expand_as(tokens.weights)
    if not per_token.numel():
        edge = tokens.weights.new_tensor(math.inf)
        return {name: _sum(tokens, per_token), f"{name}_min": edge, f"{name}_max": -edge}
    return {
        name: _sum(tokens, per_token),
        f"{name}_min": per_token.where(tokens.live, math.inf).amin(),
        f"{name}_max": per_token.where(tokens.live, -math.inf).amax(),
    }


def _generation_mismatch(tokens: Tokens) -> dict[str, Tensor]:
    """How the generating and the training distribution differ on the sampled tokens.

    Divergences are the non-negative k3 estimates exp(d) - 1 - d: `gen_kl_error` of generation against
    training, `policy_kl_error` of the reverse. `js_divergence_error` averages those of both against their
    equal mixture. A token without a finite generation log-prob adds nothing.
    """
    known = tokens.generation.isfinite()
    generation = tokens.generation.where(known, 0.0)
    previous = tokens.previous.where(known, 0.0)
    logprobs = tokens.logprobs.detach().where(known, 0.0)
    difference = previous - generation
    weight = difference.exp()
    weight = weight.where(weight.isfinite(), 0.0)
    mixture = torch.logaddexp(previous, generation) - math.log(2)
    seen = {
        "token_mult_prob_error": difference.abs().exp(),
        "gen_kl_error": _k3(difference),
        "policy_kl_error": _k3(-difference),
        "js_divergence_error": (_k3(previous - mixture) + _k3(generation - mixture)) / 2,
        "sampling_importance_ratio": weight,
        "_sampling_importance_ratio_squared": weight**2,
        "approx_entropy": -torch.exp(logprobs - generation) * logprobs,
    }
    return {name: _sum(tokens, value.where(known, 0.0)) for name, value in seen.items()}


def _k3(difference: Tensor) -> Tensor:
    return torch.expm1(difference) - difference
