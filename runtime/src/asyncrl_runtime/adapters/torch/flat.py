"""All parameters of a model in one flat buffer."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn


def flatten_parameters(model: nn.Module) -> Tensor:
    """Move the parameters into one contiguous tensor and make them views of it.

    Tied parameters count once. The order is that of `named_parameters`, so equal models agree on it.

    Raises:
        ValueError: the parameters differ in type or device.
    """
    parameters = list(model.parameters())
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) != 1:
        raise ValueError(f"the parameters must share one type and device, not {sorted(map(str, kinds))}")
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    at = 0
    for parameter in parameters:
        parameter.data = flat[at : at + parameter.numel()].view(parameter.shape)
        at += parameter.numel()
    return flat


def layout_digest(model: nn.Module) -> str:
    """Equal for models whose flat buffers mean the same."""
    text = "\n".join(f"{name} {tuple(parameter.shape)}" for name, parameter in model.named_parameters())
    return hashlib.sha256(text.encode()).hexdigest()[:16]
