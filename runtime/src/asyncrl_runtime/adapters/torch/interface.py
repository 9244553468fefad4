"""What engine and trainer need of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


class SlotCache(ABC):
    """Keys and values of up to `slots` sequences; slots in use are kept at the front."""

    @abstractmethod
    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of a slot over another slot."""


class Model(nn.Module, ABC):
    """A causal language model.

    Shapes (B rows, T tokens, N sequences, V vocabulary):
        token_ids  [B, T] int64, right-padded with any valid id
        lengths    [B] int64
        logits     [..., V] in the compute type
    """

    vocab_size: int

    @abstractmethod
    def logits(self, token_ids: Tensor, wanted: Tensor) -> Tensor:
        """Next-token logits [K, V] at the K positions where `wanted` ([B, T] bool) is set, row by row."""

    @abstractmethod
    def packed_logits(self, token_ids: Tensor, lengths: np.ndarray, wanted: Tensor) -> Tensor:
        """Next-token logits [K, V] of sequences back to back in one row ([T], `wanted` too).

        `lengths` sum to T. Each sequence has its own positions, from 0, and sees no other one.
        """

    def check_packing(self) -> None:
        """Raises `PackingUnsupported` when sequences of a packed row would see each other."""

    @abstractmethod
    def new_cache(self, slots: int, tokens: int) -> SlotCache:
        """Room for `slots` sequences of at most `tokens` tokens."""

    @abstractmethod
    def prefill(
        self, cache: SlotCache, token_ids: Tensor, lengths: Tensor, rows: Tensor, slots: Tensor
    ) -> Tensor:
        """Compute rows once, store row `rows[i]` in slot `slots[i]`; logits [B, V] after last tokens."""

    @abstractmethod
    def decode(self, cache: SlotCache, token_ids: Tensor, positions: Tensor, span: int) -> Tensor:
        """Feed one token to each of the first N slots at its position (< span); logits [N, V]."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write config.json and model.safetensors in the Hugging Face layout."""

    @abstractmethod
    def load_weights(self, folder: Path) -> None:
        """Overwrite the parameters by those of such a folder."""


def finite_memory(size: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of like's type and device. On CPU untouched pages take no memory.

    A cache must be finite even where it is masked: weight 0 times NaN is NaN.
    """
    if like.device.type == "cpu" and like.dtype == torch.float32:
        return torch.from_numpy(np.zeros(size, np.float32))
    return torch.zeros(size, dtype=like.dtype, device=like.device)
