"""Number formats of the arithmetic: what a device does, and what a trainer needs to use them."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl_runtime.adapters.torch.errors import PrecisionUnsupported
from asyncrl_runtime.adapters.torch.optimizer import FlatAdamW
from asyncrl_runtime.adapters.torch.settings import DType

_FIRST_SCALE = 2.0**10
"""Losses are sums over tokens here, not means: the usual 2^16 would overflow at once."""

_LOWEST_SCALE = 2.0**-10


class Arithmetic:
    """The products of a trainer in `precision`, over float32 parameters and gradients.

    Under float16 the loss is multiplied before the backward pass, so that small gradients do not
    vanish. The factor halves when a gradient overflows, and doubles after 2000 steps without.
    """

    def __init__(self, precision: DType, device: torch.device) -> None:
        """Raises `PrecisionUnsupported` when the device does not compute in it."""
        check_precision(precision, device, "spec.training.precision")
        self._dtype: torch.dtype = getattr(torch, precision)
        self._device = device
        self._scaler = (
            torch.amp.GradScaler(device.type, init_scale=_FIRST_SCALE) if precision == "float16" else None
        )

    @property
    def scales(self) -> bool:
        """Whether losses are scaled."""
        return self._scaler is not None

    @property
    def scale(self) -> float:
        """The factor on the loss; 1 without scaling."""
        return self._scaler.get_scale() if self._scaler else 1.0

    @property
    def can_lower(self) -> bool:
        """Whether a smaller factor is worth another try."""
        return self.scales and self.scale > _LOWEST_SCALE

    def products(self) -> contextlib.AbstractContextManager[object]:
        """Compute in the number format."""
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to go backward from."""
        return self._scaler.scale(loss) if self._scaler else loss

    def unscale(self, optimizer: FlatAdamW) -> None:
        """Take the factor out of the gradient; adapt it to whether the gradient is finite."""
        if self._scaler is not None:
            self._scaler.unscale_(cast(Any, optimizer))  # reads param_groups only
            self._scaler.update()

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint keeps; None without scaling."""
        return self._scaler.state_dict() if self._scaler else None

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Take what `state` gave; None, as of a run without scaling, changes nothing."""
        if self._scaler is not None and state is not None:
            self._scaler.load_state_dict(state)


def check_precision(precision: DType, device: torch.device, setting: str) -> None:
    """Run the operations of a layer once, forward and backward.

    Raises:
        PrecisionUnsupported: one of them does not exist for the device; names `setting`.
    """
    if precision == "float32":
        return
    dtype = getattr(torch, precision)
    try:
        if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise RuntimeError("it has no bfloat16")
        weight = torch.ones(8, 8, dtype=dtype, device=device, requires_grad=True)
        x = F.rms_norm(F.linear(torch.ones(2, 3, 8, dtype=dtype, device=device), weight), (8,), weight[0])
        attended = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)
        attended.sum().backward()
    except (RuntimeError, NotImplementedError) as problem:
        raise PrecisionUnsupported(setting, precision, str(device), str(problem).splitlines()[0]) from problem
