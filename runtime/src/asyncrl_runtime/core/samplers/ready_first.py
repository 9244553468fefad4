"""ready_first: whatever is finished, in the order of dispatch, of any age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from asyncrl_runtime.core.replay import Slot
from asyncrl_runtime.core.samplers.base import GatedSampler


@dataclass(slots=True)
class ReadyFirst(GatedSampler):
    """Discards nothing, so its window bounds dispatch and not the lag (SC-3.55)."""

    name: ClassVar[str] = "ready_first"

    def evict(self, current_train_weight: int) -> list[Slot]:
        """Nothing, ever."""
        return []

    def _take(self, current: int, minimum: int, maximum: int) -> list[Slot]:
        weights = [w for w in self.buffer.ready_weights() if w <= current]
        if self.buffer.count_ready(weights=weights) < minimum:
            return []
        return self.buffer.take_by_weight(weights, maximum)
