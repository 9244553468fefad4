"""Which rank computes which rows of a chunk. Without torch: the controller decides it."""

from __future__ import annotations

import heapq

import numpy as np

from asyncrl_runtime.ports.columns import Columns, Jagged


def shares(lengths: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Row numbers of each rank, ascending: the longest rows first, each to the rank with the fewest tokens.

    Every row is in exactly one share; a share is empty only when there are fewer rows than ranks.
    """
    if ranks == 1:
        return [np.arange(len(lengths))]
    members: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, 0, rank) for rank in range(ranks)]
    for row in np.argsort(-lengths, kind="stable").tolist():
        tokens, rows, rank = heapq.heappop(loads)
        members[rank].append(row)
        heapq.heappush(loads, (tokens + int(lengths[row]), rows + 1, rank))
    return [np.sort(np.asarray(rows, np.int64)) for rows in members]


def taken(columns: Columns, rows: np.ndarray) -> dict[str, Jagged]:
    """Some rows of every column, in the order of `rows`."""
    return {name: _taken(column, rows) for name, column in columns.items()}


def merged(parts: list[Columns], owners: list[np.ndarray]) -> dict[str, Jagged]:
    """The columns of all rows again, out of those of each share."""
    order = np.argsort(np.concatenate(owners), kind="stable")
    return {name: _taken(Jagged.join([part[name] for part in parts]), order) for name in parts[0]}


def _taken(column: Jagged, rows: np.ndarray) -> Jagged:
    starts, lengths = np.cumsum(column.lengths) - column.lengths, column.lengths[rows]
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return Jagged(column.values[np.repeat(starts[rows], lengths) + within], lengths)
