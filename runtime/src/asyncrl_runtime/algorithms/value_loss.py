"""The critic's loss as raw sums (10.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl_runtime.algorithms.errors import ShapeError
from asyncrl_runtime.algorithms.losses import LossSums
from asyncrl_runtime.algorithms.metrics import Normalizer, Stat, finalize
from asyncrl_runtime.algorithms.settings import ValueLossSettings

VALUE_METRICS: Mapping[str, Normalizer] = {
    "values_mean": Normalizer.TOKENS,
    "values_min": Normalizer.MIN,
    "values_max": Normalizer.MAX,
    "returns_mean": Normalizer.TOKENS,
    "vf_clipfrac": Normalizer.TOKENS,
    "_returns_squared": Normalizer.TOKENS,
    "_error": Normalizer.TOKENS,
    "_error_squared": Normalizer.TOKENS,
}
"""Each metric of the critic's loss with its reduction (SC-11.69)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueBatch:
    """Rows of one critic micro-batch.

    Shapes:
        values       [R, T], with gradient; values[t] is of the state before token t
        old_values   [R, T], the column written before the first epoch
        returns      [R, T]
        token_mask   [R, T]
        sample_mask  [R]
    """

    values: Tensor
    old_values: Tensor
    returns: Tensor
    token_mask: Tensor
    sample_mask: Tensor

    def __post_init__(self) -> None:
        rows, width = self.values.shape
        for name in self.__slots__:
            shape = tuple(getattr(self, name).shape)
            expected = (rows,) if name == "sample_mask" else (rows, width)
            if shape != expected:
                raise ShapeError(name, shape, expected)


def value_loss(batch: ValueBatch, settings: ValueLossSettings) -> LossSums:
    """Squared error, clipped around the old values if asked, summed and not divided (SC-10.20)."""
    values = batch.values[:, 1:].to(torch.promote_types(batch.values.dtype, torch.float32))
    mask = (batch.token_mask[:, 1:] != 0).to(values.dtype)
    weights = mask * batch.sample_mask.to(values.dtype)[:, None]
    valid = weights > 0
    values = values.where(valid, 0.0)
    returns = batch.returns[:, 1:].to(values.dtype).where(valid, 0.0)
    squared = (values - returns) ** 2
    moved = torch.zeros_like(valid)
    if settings.clip_range is not None:
        old = batch.old_values[:, 1:].to(values.dtype).where(valid, 0.0)
        bounded = values.clamp(old - settings.clip_range, old + settings.clip_range)
        clipped = (bounded - returns) ** 2
        moved = clipped > squared
        squared = torch.maximum(squared, clipped)
    loss = settings.scale * (weights * squared / 2).sum(dtype=torch.float64)
    with torch.no_grad():
        metrics = _values(values.detach(), returns, weights, valid, moved)
    return LossSums(
        loss=loss,
        valid_tokens=weights.sum(dtype=torch.float64),
        valid_rows=valid.any(dim=1).sum(),
        values=metrics,
        declared=VALUE_METRICS,
        token_level=True,
    )


def _values(
    values: Tensor, returns: Tensor, weights: Tensor, valid: Tensor, moved: Tensor
) -> dict[str, Tensor]:
    def total(per_token: Tensor) -> Tensor:
        return (weights * per_token).sum(dtype=torch.float64)

    values, returns = values.to(torch.float64), returns.to(torch.float64)
    error = returns - values
    edge = values.new_tensor(torch.inf)
    seen = values.numel() > 0
    return {
        "values_mean": total(values),
        "values_min": values.where(valid, torch.inf).amin() if seen else edge,
        "values_max": values.where(valid, -torch.inf).amax() if seen else -edge,
        "returns_mean": total(returns),
        "vf_clipfrac": total(moved.to(weights.dtype)),
        "_returns_squared": total(returns**2),
        "_error": total(error),
        "_error_squared": total(error**2),
    }


def value_metrics(parts: list[Mapping[str, Stat]]) -> dict[str, float]:
    """Metrics of one critic step from the statistics of its parts, with `explained_var` (SC-10.21)."""
    metrics = finalize(parts)
    hidden = finalize({name.removeprefix("_"): stat for name, stat in part.items()} for part in parts)
    returns_var = hidden["returns_squared"] - hidden["returns_mean"] ** 2
    error_var = hidden["error_squared"] - hidden["error"] ** 2
    metrics["explained_var"] = 1.0 - max(error_var, 0.0) / max(returns_var, 1e-8)
    return metrics
