"""Columns of rows: how tensors look between data plane, trainer and advantage stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Jagged:
    """One column of R rows of unequal length, stored back to back.

    Shapes:
        values   [sum(lengths)], any dtype
        lengths  [R] int64
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[float] | np.ndarray], dtype: np.dtype | type) -> Jagged:
        """Join rows, in order."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        arrays = [np.asarray(row, dtype=dtype) for row in rows]
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype), lengths)

    @classmethod
    def scalars(cls, values: Sequence[float] | np.ndarray, dtype: np.dtype | type) -> Jagged:
        """One value a row."""
        array = np.asarray(values, dtype=dtype)
        return cls(array, np.ones(len(array), dtype=np.int64))

    @classmethod
    def join(cls, parts: Sequence[Jagged]) -> Jagged:
        """Rows of several columns, one after the other."""
        return cls(np.concatenate([p.values for p in parts]), np.concatenate([p.lengths for p in parts]))

    @classmethod
    def unpadded(cls, padded: np.ndarray, lengths: np.ndarray) -> Jagged:
        """Rows of a right-padded [R, T] array, cut to their lengths."""
        keep = np.arange(padded.shape[1])[None, :] < np.asarray(lengths)[:, None]
        return cls(padded[keep], np.asarray(lengths, dtype=np.int64))

    def padded(self, width: int | None = None, fill: float = 0) -> np.ndarray:
        """Right-padded rows, [R, width]; width defaults to the longest row."""
        width = int(self.lengths.max(initial=0)) if width is None else width
        out = np.full((len(self.lengths), width), fill, dtype=self.values.dtype)
        out[np.arange(width)[None, :] < self.lengths[:, None]] = self.values
        return out

    def rows(self) -> list[np.ndarray]:
        """One view per row."""
        ends = np.cumsum(self.lengths).tolist()
        return [
            self.values[end - length : end] for end, length in zip(ends, self.lengths.tolist(), strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.values.nbytes


Columns = Mapping[str, Jagged]

TOKEN_IDS = "token_ids"
"""int64, tokens of prompt, completion and observations."""
TOKEN_MASK = "token_mask"
"""int8, 1 on generated tokens; position 0 is always 0."""
GENERATION_LOGPROBS = "generation_logprobs"
"""float32, of the distribution that was sampled."""
WEIGHT_VERSIONS = "weight_versions"
"""int32, weight version per generated token, -1 elsewhere."""
SAMPLE_MASK = "sample_mask"
"""float32, one value a row."""
REWARD = "reward"
"""float64, one value a row: the environment's total, before any transform."""
REWARD_COMPONENT = "reward_component/"
"""Prefix of the columns of named reward components; float64, one value a row."""
TRUNCATED = "truncated"
"""int8, one value a row."""
FLAGGED = "flagged"
"""int8, one value a row: env-flagged."""
PROMPT_TOKENS = "prompt_tokens"
"""int64, one value a row."""
PREVIOUS_LOGPROBS = "previous_logprobs"
"""float32 per token: the policy before this RL step's updates."""
REFERENCE_LOGPROBS = "reference_logprobs"
"""float32 per token: the frozen reference policy."""
ADVANTAGES = "advantages"
"""float32 per token."""
RETURNS = "returns"
"""float32 per token; PPO only."""
