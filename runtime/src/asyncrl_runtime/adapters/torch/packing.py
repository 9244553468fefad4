"""Attention over sequences that stand back to back in one row."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class CausalBlocks:
    """Block-diagonal causal attention: each sequence of a packed row sees itself alone.

    Sequences whose lengths lie within a factor of two are padded to the longest of them and computed
    together: few kernels, and less than four times the pairs that are needed.

    Shapes (T tokens of the row, N sequences):
        lengths    [N] int64, sum T, each at least 1
        positions  [T] int64, of each token in its sequence
    """

    def __init__(self, lengths: np.ndarray, device: torch.device) -> None:
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        self.positions = torch.from_numpy(positions).to(device)
        self._places: list[Tensor] = []
        """Per bucket [sequences, width]: which token of the row stands there; its last one beyond its end."""

        back = np.empty(len(positions), np.int64)
        offset = 0
        for members in _like(lengths):
            width = int(lengths[members].max())
            columns = np.arange(width)
            inside = columns < lengths[members, None]
            places = starts[members, None] + np.minimum(columns, lengths[members, None] - 1)
            back[places[inside]] = offset + np.flatnonzero(inside)
            offset += places.size
            self._places.append(torch.from_numpy(places).to(device))
        self._back = torch.from_numpy(back).to(device)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, *, grouped: bool) -> Tensor:
        """Attention of [T, heads, head_dim]; with `grouped` keys and values may have fewer heads."""
        parts = []
        for places in self._places:
            q, k, v = (states[places].transpose(1, 2) for states in (queries, keys, values))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            parts.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(parts)[self._back]


def _like(lengths: np.ndarray) -> list[np.ndarray]:
    """Sequence numbers by bucket: from 1, from 2, from 4 tokens and so on."""
    exponents = np.frexp(lengths)[1]
    return [np.flatnonzero(exponents == exponent) for exponent in np.unique(exponents)]
