"""Which rows are computed together. Plain numpy: a plan depends on the lengths alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from asyncrl_runtime.adapters.torch.settings import TrainerSettings
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Columns

_ONE_A_ROW = (col.SAMPLE_MASK, col.REWARD)


def padded_runs(lengths: np.ndarray, budget: int) -> list[slice]:
    """Cut ascending lengths into runs whose padded size stays within the budget, at least one row each."""
    cuts = [0]
    for row, length in enumerate(lengths):
        if row > cuts[-1] and (row + 1 - cuts[-1]) * length > budget:
            cuts.append(row)
    return [slice(start, end) for start, end in itertools.pairwise([*cuts, len(lengths)])]


def packed_rows(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Row numbers of each packed row: the longest first, each into the first one with room for it.

    No packed row holds more than `budget` tokens, except a sequence that is longer and alone in its own.
    """
    members: list[list[int]] = []
    room = np.zeros(len(lengths), np.int64)
    for row in np.argsort(-lengths, kind="stable").tolist():
        fitting = np.flatnonzero(room[: len(members)] >= lengths[row])
        if fitting.size:
            at = int(fitting[0])
            members[at].append(row)
            room[at] -= lengths[row]
        else:
            room[len(members)] = budget - lengths[row]
            members.append([row])
    return [np.asarray(rows) for rows in members]


def micro_batches(
    lengths: np.ndarray, settings: TrainerSettings, work: Literal["train", "logprobs"]
) -> Sequence[np.ndarray]:
    """Row numbers of each micro-batch, every row in exactly one.

    With `micro_batch_tokens` the bound is on tokens, padding included; a longer row is alone in its own.
    """
    if not len(lengths):
        return []
    budget = settings.micro_batch_tokens
    if budget is not None and settings.packing:
        return packed_rows(lengths, budget)
    if budget is not None:
        order = np.argsort(lengths, kind="stable")
        multiple = settings.pad_to_multiple
        widths = -(-lengths[order] // multiple) * multiple
        return [order[part] for part in padded_runs(widths, budget)]
    rows = settings.micro_batch_rows if work == "train" else settings.logprob_batch_rows
    count = len(lengths)
    order = np.argsort(lengths, kind="stable") if settings.sort_by_length else np.arange(count)
    return [order[start : start + rows] for start in range(0, count, rows)]


@dataclass(frozen=True, slots=True)
class Rows:
    """Padded columns of a chunk: [R, T], or [R] for one value a row; rows in data-plane order."""

    lengths: np.ndarray
    columns: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, columns: Columns) -> Rows:
        """Pad to the longest row."""
        lengths = columns[col.TOKEN_IDS].lengths
        width = int(lengths.max(initial=1))
        return cls(
            lengths,
            {name: c.values if name in _ONE_A_ROW else c.padded(width) for name, c in columns.items()},
        )

    def tensors(self, picked: np.ndarray, multiple: int, device: torch.device) -> dict[str, Tensor]:
        """Some rows, cut to their longest one rounded up."""
        width = math.ceil(int(self.lengths[picked].max()) / multiple) * multiple
        result = {}
        for name, array in self.columns.items():
            rows = array[picked] if array.ndim == 1 else array[picked, :width]
            if array.ndim == 2 and rows.shape[1] < width:
                rows = np.pad(rows, ((0, 0), (0, width - rows.shape[1])))
            result[name] = torch.from_numpy(rows).to(device)
        return result
