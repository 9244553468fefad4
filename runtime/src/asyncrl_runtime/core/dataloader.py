"""The data cursor: which dataset positions come next, over epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.records import PromptRef


@dataclass(eq=False)
class DatasetTooSmall(RunError):
    """The dataset cannot fill one dispatch batch (SC-2.269)."""

    size: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"spec.data.source holds {self.size} prompts and a step takes {self.batch_size} "
            "(numPromptsPerStep), so nothing could be trained; add prompts or lower numPromptsPerStep"
        )


@dataclass(slots=True)
class DataCursor:
    """Batches of positions, shuffled anew each epoch; a trailing partial batch is never dispatched."""

    size: int
    batch_size: int
    shuffle: bool
    seed: int
    max_epochs: int | None
    epoch: int = 0
    next_batch: int = 0
    _order: list[int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.size < self.batch_size:
            raise DatasetTooSmall(self.size, self.batch_size)

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches in one epoch."""
        return self.size // self.batch_size

    @property
    def max_batches(self) -> int | None:
        """Batches over all epochs; None if epochs are unbounded."""
        return None if self.max_epochs is None else self.max_epochs * self.batches_per_epoch

    def take(self) -> list[PromptRef]:
        """The next batch, or an empty list when the last epoch is over. Moves the cursor."""
        if self.next_batch >= self.batches_per_epoch:
            if self.max_epochs is not None and self.epoch + 1 >= self.max_epochs:
                self.epoch, self.next_batch = self.max_epochs, 0
                return []
            self.epoch += 1
            self.next_batch = 0
            self._order = None
        if self.max_epochs is not None and self.epoch >= self.max_epochs:
            return []
        if self._order is None:
            self._order = self._permutation()
        start = self.next_batch * self.batch_size
        self.next_batch += 1
        return [PromptRef(self.epoch, position) for position in self._order[start : start + self.batch_size]]

    def state(self) -> dict[str, int]:
        """What `restore` needs."""
        return {"epoch": self.epoch, "next_batch": self.next_batch}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken."""
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]
        self._order = None

    def _permutation(self) -> list[int]:
        order = list(range(self.size))
        if self.shuffle:
            Random(f"{self.seed}/{self.epoch}").shuffle(order)
        return order
