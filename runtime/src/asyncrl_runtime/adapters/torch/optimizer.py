"""AdamW over one flat parameter, and its learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from asyncrl_runtime.adapters.torch.settings import OptimizerSettings


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
    """Steps all parameters of a model as one tensor.

    The model's parameters are views of `flat`, and their gradients of `grad`, so that backward passes
    add into one buffer.
    """

    def __init__(self, model: nn.Module, flat: Tensor, settings: OptimizerSettings) -> None:
        """`flat` is what `flatten_parameters` returned for the model."""
        self.tick = 0
        self.settings = settings
        self.grad = torch.zeros_like(flat)
        self._master = nn.Parameter(flat)
        self._master.grad = self.grad
        at = 0
        for parameter in model.parameters():
            parameter.grad = self.grad[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()
        self._adam = torch.optim.AdamW(
            [self._master],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._restore(0, torch.zeros_like(flat), torch.zeros_like(flat))

    def clip(self) -> float:
        """Scale the gradient down to `max_grad_norm`; returns its norm before."""
        norm = float(torch.linalg.vector_norm(self.grad, dtype=torch.float64))
        limit = self.settings.max_grad_norm
        if limit is not None and norm > limit:
            self.grad.mul_(limit / norm)
        return norm

    def step(self) -> float:
        """Apply the gradient; returns the learning rate that was used."""
        rate = learning_rate(self.settings, self.tick)
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()
        self.tick += 1
        return rate

    def state(self) -> dict[str, Tensor]:
        """Moments, flat."""
        kept = self._adam.state[self._master]
        return {"exp_avg": kept["exp_avg"].cpu(), "exp_avg_sq": kept["exp_avg_sq"].cpu()}

    def load_state(self, tick: int, state: dict[str, Tensor]) -> None:
        """Take what `state` gave."""
        self._restore(tick, state["exp_avg"], state["exp_avg_sq"])

    def _restore(self, tick: int, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
        device = self.grad.device
        self.tick = tick
        self._adam.state[self._master] = {
            "step": torch.tensor(float(tick), device=device),
            "exp_avg": exp_avg.to(device, copy=True),
            "exp_avg_sq": exp_avg_sq.to(device, copy=True),
        }
