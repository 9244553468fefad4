"""AdamW over one flat parameter, and its learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from asyncrl_runtime.adapters.torch.settings import OptimizerSettings

_PART = 1 << 26
"""Elements updated at once; bounds the memory that an update needs besides its state."""


def learning_rate(settings: OptimizerSettings, tick: int) -> float:
    """Rate of optimizer step `tick`, counted from 0: linear warm-up, then the schedule down to `min_lr`."""
    if tick < settings.warmup_steps:
        return settings.lr * (tick + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    if settings.total_steps is None:
        raise ValueError(f"schedule {settings.schedule} needs total_steps")
    span = max(1, settings.total_steps - settings.warmup_steps)
    done = min(1.0, (tick - settings.warmup_steps) / span)
    left = 1.0 - done if settings.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return settings.min_lr + (settings.lr - settings.min_lr) * left


class FlatAdamW:
    """Steps all parameters of a model as one tensor: decoupled weight decay, bias-corrected moments.

    The model's parameters are views of `flat`, and their gradients of `grad`, so that backward passes
    add into one buffer. Of several ranks each keeps the moments of its slice, and steps that slice alone.
    (torch.optim would do as well, but its first use imports torch's compiler, which takes longer than
    everything else at start.)

    Source: arXiv:1711.05101.
    """

    def __init__(
        self, model: nn.Module, flat: Tensor, settings: OptimizerSettings, *, owned: slice = slice(None)
    ) -> None:
        """`flat` is what `flatten_parameters` returned for the model; `owned` is the slice to step."""
        self.tick = 0
        self.settings = settings
        self.grad = torch.zeros_like(flat)
        self._flat = flat
        flat.grad = self.grad
        self.param_groups = [{"params": [flat]}]  # where torch's loss scaling looks for gradients
        self._owned = owned
        self._exp_avg = torch.zeros_like(flat[owned])
        self._exp_avg_sq = torch.zeros_like(flat[owned])
        at = 0
        for parameter in model.parameters():
            parameter.grad = self.grad[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()

    def clip(self) -> float:
        """Scale the gradient down to `max_grad_norm`; returns its norm before."""
        norm = float(torch.linalg.vector_norm(self.grad, dtype=torch.float64))
        limit = self.settings.max_grad_norm
        if limit is not None and norm > limit:
            self.grad.mul_(limit / norm)
        return norm

    @torch.no_grad()
    def step(self) -> float:
        """Apply the gradient to the owned slice; returns the learning rate that was used."""
        rate = learning_rate(self.settings, self.tick)
        self.tick += 1
        parts = (self._flat[self._owned], self.grad[self._owned], self._exp_avg, self._exp_avg_sq)
        for flat, grad, mean, square in zip(*(part.split(_PART) for part in parts), strict=True):
            self._update(flat, grad, mean, square, rate)
        return rate

    def _update(self, flat: Tensor, grad: Tensor, mean: Tensor, square: Tensor, rate: float) -> None:
        settings = self.settings
        beta1, beta2 = settings.betas
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        spread = square.sqrt().div_(math.sqrt(1 - beta2**self.tick)).add_(settings.epsilon)
        flat.mul_(1 - rate * settings.weight_decay)
        flat.addcdiv_(mean, spread, value=-rate / (1 - beta1**self.tick))

    def state(self) -> dict[str, Tensor]:
        """Moments of the owned slice, flat."""
        return {"exp_avg": self._exp_avg.cpu(), "exp_avg_sq": self._exp_avg_sq.cpu()}

    def load_state(self, tick: int, state: dict[str, Tensor]) -> None:
        """Take what `state` gave."""
        self.tick = tick
        self._exp_avg.copy_(state["exp_avg"])
        self._exp_avg_sq.copy_(state["exp_avg_sq"])
