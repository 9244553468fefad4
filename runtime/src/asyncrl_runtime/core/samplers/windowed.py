"""windowed: over-sampled streaming inside a staleness window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from asyncrl_runtime.core.exact import ceil_product
from asyncrl_runtime.core.replay import Slot
from asyncrl_runtime.core.samplers.base import BufferedSampler, staleness_floor


@dataclass(slots=True)
class Windowed(BufferedSampler):
    """Never gates; what falls out of the window is evicted, or aborted while it runs."""

    window: int = 1
    freshest_first: bool = False
    over_sampling_ratio: float | None = None

    name: ClassVar[str] = "windowed"

    @property
    def is_on_policy(self) -> bool:
        """No staleness is admitted."""
        return self.window == 0

    def admissible(self, trainer_version: int) -> bool:
        """Always: only room bounds it."""
        return True

    def admit(self, trainer_version: int) -> int | None:
        """No stamp; the cursor stays (SC-3.32)."""
        return None

    def evict(self, current_train_weight: int) -> list[Slot]:
        """Ready groups older than the window."""
        floor = staleness_floor(current_train_weight, self.window)
        return self.buffer.take_by_weight(
            [w for w in self.buffer.ready_weights() if w < floor], len(self.buffer)
        )

    def should_abort_inflight(self, start_weight_version: int, current_train_weight: int) -> bool:
        """Whether the window has passed it."""
        return start_weight_version < staleness_floor(current_train_weight, self.window)

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Any capacity will do."""
        return None

    def outstanding(self, current_train_weight: int) -> int:
        """Launched groups that have not committed, and ready ones inside the window (SC-3.41)."""
        return self.buffer.launched + self.buffer.count_ready(weights=self._weights(current_train_weight))

    def cap(self, groups_per_step: int, *, smallest_chunk: int) -> int | None:
        """Most outstanding groups under the over-sampling ratio (SC-3.43, 3.44); None without one."""
        if self.over_sampling_ratio is None:
            return None
        cap = ceil_product(self.over_sampling_ratio, groups_per_step * (self.window + 1))
        return max(smallest_chunk, min(cap, self.buffer.capacity))

    def _weights(self, current: int) -> list[int]:
        floor = staleness_floor(current, self.window)
        return [w for w in self.buffer.ready_weights() if floor <= w <= current]

    def _take(self, current: int, minimum: int, maximum: int) -> list[Slot]:
        weights = self._weights(current)
        if self.buffer.count_ready(weights=weights) < minimum:
            return []
        if not self.freshest_first:
            return self.buffer.take_by_weight(weights, maximum)
        taken: list[Slot] = []
        for weight in reversed(weights):
            taken += self.buffer.take_by_weight([weight], maximum - len(taken))
        return taken
