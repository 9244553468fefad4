"""What excuses that nothing moves for a while."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class Busy:
    """Until when no commit or step is expected: a drain, a weight transfer, a validation, a save (SC-8.3)."""

    allowance_seconds: float = 600.0
    """What each finished part of a piece of work without a bound of its own is good for."""

    until: float = float("-inf")
    """Loop time."""

    def for_seconds(self, seconds: float | None) -> None:
        """Something with this bound begins; without a bound nothing is excused."""
        if seconds is not None:
            self.until = max(self.until, asyncio.get_running_loop().time() + seconds)

    def moved(self) -> None:
        """A batch, a model or a stage of longer work is done."""
        self.for_seconds(self.allowance_seconds)
