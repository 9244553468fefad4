"""Sampling from logits, with counter-based randomness."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_BELOW_ONE = 1 - 1e-12


def uniforms(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) that depend on seed and counter alone.

    Shapes:
        seeds     [N] uint64
        counters  [N] integers, such as the index of the token to be drawn
        returns   [N] float64

    Source: the splitmix64 generator; the seed is mixed before the counter steps it.
    """
    with np.errstate(over="ignore"):
        x = _mixed(seeds + _GOLDEN) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        return (_mixed(x) >> np.uint64(11)) * 2.0**-53


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


def filtered(logits: Tensor, top_k: Tensor | int, top_p: Tensor | float) -> Tensor:
    """Logits with everything outside top-k, then outside top-p of what is left, set to -inf.

    The token that crosses top-p stays, and so do ties with the last kept one.

    Shapes:
        logits  [N, V], already divided by the temperature
        top_k   one number or [N, 1]; 0 keeps all
        top_p   one number or [N, 1]; 1 keeps all
    """
    ordered, _ = logits.detach().sort(dim=-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    top_k = torch.as_tensor(top_k, device=logits.device)
    top_p = torch.as_tensor(top_p, device=logits.device)
    within_k = (rank < top_k) | (top_k <= 0)
    probs = ordered.masked_fill(~within_k, float("-inf")).float().softmax(-1)
    within_p = (probs.cumsum(-1) - probs < top_p) | (top_p >= 1)
    kept = (within_k & within_p).sum(-1, keepdim=True).clamp_min(1)
    return logits.masked_fill(logits < ordered.gather(-1, kept - 1), float("-inf"))


def draw(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Invert the distribution function of softmax(logits).

    Shapes:
        logits   [N, V] float32, at the sampling temperature and filtered
        uniform  [N] float64 in [0, 1)
        returns  tokens [N] int64 and their log-probs [N] float32
    """
    logprobs = logits.log_softmax(-1)
    cumulative = logprobs.exp().double().cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniform * total, total * _BELOW_ONE)
    tokens = (cumulative <= target[:, None]).sum(-1)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)
