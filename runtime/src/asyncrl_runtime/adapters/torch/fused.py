"""Parts of the decoder whose backward passes are written out: fewer kernels and no copies of wide tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """SiLU of the first half times the second half: [..., 2 W] to [..., W]."""
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return _SwiGlu.apply(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: x * cos + swapped halves of x * sin.

    Shapes:
        x         [..., heads, D]
        cos, sin  [..., 1, D], both halves of cos alike, sin negated in its first half; without gradient
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rotation.apply(x, cos, sin)
    return _rotate(x, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((second, first), -1), sin)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyrefly: ignore[bad-override]  the decorator hides that it is static
        ctx: Any, *grad_outputs: Tensor
    ) -> Tensor:
        (grad,) = grad_outputs
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        result = torch.empty_like(gate_up)
        to_gate, to_up = result.chunk(2, -1)
        torch.mul(grad, F.silu(gate), out=to_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=to_gate)
        return result


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyrefly: ignore[bad-override]  the decorator hides that it is static
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        (grad,) = grad_outputs
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, -sin), None, None
