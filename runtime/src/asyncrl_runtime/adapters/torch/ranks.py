"""Data-parallel training: every rank computes some rows, and steps its own slice of the parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from asyncrl_runtime.adapters.torch.collectives import Group
from asyncrl_runtime.algorithms.metrics import Moments, Normalizer, Stat, Stats, Totals, merge


@dataclass(slots=True)
class Ranks:
    """This rank among those of one trainer. Alone unless told otherwise; more than one must `join`."""

    rank: int = 0
    size: int = 1
    _group: Group | None = field(default=None, init=False)

    def join(self, group: Group) -> None:
        """Exchange through this group from now on."""
        self._group = group

    def slice_of(self, numel: int, rank: int | None = None) -> slice:
        """The part of a flat tensor that a rank, by default this one, keeps the optimizer's state of."""
        rank = self.rank if rank is None else rank
        return slice(numel * rank // self.size, numel * (rank + 1) // self.size)

    def sum(self, tensor: Tensor) -> None:
        """Sum a tensor over the ranks, in place."""
        if self.size > 1:
            self._joined.sum(tensor)

    def share(self, flat: Tensor) -> None:
        """Give the others this rank's slice, and take theirs."""
        if self.size > 1:
            for rank in range(self.size):
                self._joined.broadcast(flat[self.slice_of(flat.numel(), rank)], rank)

    def check_alike(self, digest: str) -> None:
        """Raises ValueError when the ranks do not hold the same parameters."""
        if self.size == 1:
            return
        found = self._joined.gathered(digest)
        others = [rank for rank, text in enumerate(found) if text != found[0]]
        if others:
            raise ValueError(
                f"rank {', '.join(map(str, others))} holds other parameters than rank 0: "
                "every rank must read the same model folder and the same checkpoint"
            )

    def totals(self, mine: Totals) -> Totals:
        """Counts over all ranks."""
        if self.size == 1:
            return mine
        return _added(self._told(asdict(mine)))

    def step(self, parts: Iterable[Stats], totals: Totals, flops: float) -> tuple[list[Stats], Totals, float]:
        """Statistics, counts and work of a step, over all ranks."""
        if self.size == 1:
            return list(parts), totals, flops
        mine = {"stats": _plain(merge(parts)), "totals": asdict(totals), "flops": flops}
        found = self._told(mine)
        return (
            [_stats(told["stats"]) for told in found],
            _added(told["totals"] for told in found),
            sum(told["flops"] for told in found),
        )

    def _told(self, mine: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each rank says, by rank."""
        return [json.loads(text) for text in self._joined.gathered(json.dumps(mine))]

    @property
    def _joined(self) -> Group:
        if self._group is None:
            raise RuntimeError(f"rank {self.rank} of {self.size} has not joined the others")
        return self._group


def _added(counts: Iterable[Mapping[str, float]]) -> Totals:
    return sum((Totals(**count) for count in counts), start=Totals(0.0, 0.0, 0.0))


def _plain(stats: Stats) -> dict[str, Any]:
    return {name: asdict(stat) for name, stat in stats.items()}


def _stats(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Stat | Moments]:
    return {
        name: Stat(Normalizer(facts["normalizer"]), facts["value"], facts["weight"], facts["empty"])
        if "normalizer" in facts
        else Moments(**facts)
        for name, facts in plain.items()
    }
