"""weight_fifo: strictly oldest weights first, never two in one selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from asyncrl_runtime.core.replay import Slot
from asyncrl_runtime.core.samplers.base import GatedSampler, staleness_floor


@dataclass(slots=True)
class WeightFifo(GatedSampler):
    """Waits for unready groups of the oldest in-window weight instead of skipping ahead (SC-3.52)."""

    name: ClassVar[str] = "weight_fifo"
    oldest_first: ClassVar[bool] = True

    def evict(self, current_train_weight: int) -> list[Slot]:
        """Ready groups older than the window."""
        floor = staleness_floor(current_train_weight, self.window)
        return self.buffer.take_by_weight(
            [w for w in self.buffer.ready_weights() if w < floor], len(self.buffer)
        )

    def oldest_weight(self, current_train_weight: int) -> int | None:
        """The weight that a selection would be of."""
        floor = staleness_floor(current_train_weight, self.window)
        return next((w for w in self.buffer.weights() if floor <= w <= current_train_weight), None)

    def oldest_can_grow(self, current_train_weight: int, *, stamp: int) -> bool:
        """Whether more groups of the oldest weight may still become ready (SC-3.65).

        `stamp` is the weight that new dispatches carry.
        """
        oldest = self.oldest_weight(current_train_weight)
        return oldest is None or oldest == stamp or self.buffer.has_unready(oldest)

    def _take(self, current: int, minimum: int, maximum: int) -> list[Slot]:
        oldest = self.oldest_weight(current)
        if oldest is None or self.buffer.count_ready(weights=[oldest]) < minimum:
            return []
        return self.buffer.take_by_weight([oldest], maximum)
