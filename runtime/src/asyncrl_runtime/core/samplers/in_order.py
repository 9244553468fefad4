"""in_order: every group is trained in the step that it was admitted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from asyncrl_runtime.core.replay import BufferFault, Slot
from asyncrl_runtime.core.samplers.base import GatedSampler


@dataclass(slots=True)
class InOrder(GatedSampler):
    """Stamps each batch with its step; lookahead 0 is synchronous training.

    Its window may be retuned while it runs (critic warm-up, hot settings), between steps.
    """

    peak_window: int | None = None
    """Widest window that it will ever have, where that is more than `window` (SC-2.321)."""

    name: ClassVar[str] = "in_order"
    stamps: ClassVar[bool] = True

    def admit(self, trainer_version: int) -> int | None:
        """Move the cursor; the new cursor is the stamp, and no group may own it yet (SC-3.34)."""
        stamp = GatedSampler.admit(self, trainer_version)
        if stamp is not None and self.buffer.count_for_target_step(stamp):
            raise BufferFault(
                f"step {stamp} was admitted while {self.buffer.count_for_target_step(stamp)} groups own it"
            )
        return stamp

    def evict(self, current_train_weight: int) -> list[Slot]:
        """Ready groups of steps that are over, whatever their weight."""
        if self.buffer.unstamped:
            raise BufferFault(f"{self.buffer.unstamped} groups under in_order belong to no step")
        return [
            slot
            for target in self.buffer.ready_targets()
            if target < current_train_weight
            for slot in self.buffer.take_by_target(target, len(self.buffer))
        ]

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """From the widest window of the run."""
        return groups_per_step * (max(self.window, self.peak_window or 0) + 1)

    def _take(self, current: int, minimum: int, maximum: int) -> list[Slot]:
        if self.buffer.count_ready_for(current) < minimum:
            return []
        return self.buffer.take_by_target(current, maximum)


def lookahead(steps: int, *, ordinary: int, warmup: int | None, first_policy_step: int) -> int:
    """Window of in_order after `steps` RL steps, wider while the critic warms up (SC-3.71).

    steps + lookahead(steps) never falls, so shrinking the window strands no admitted stamp.
    """
    if warmup is None or steps >= first_policy_step:
        return ordinary
    return max(ordinary, min(warmup, first_policy_step + ordinary - steps))
