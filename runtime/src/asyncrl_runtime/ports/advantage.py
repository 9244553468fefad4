"""The advantage stage: from rewards of complete groups to advantages per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asyncrl_runtime.core.errors import TrainerFailure
from asyncrl_runtime.core.records import BatchMeta
from asyncrl_runtime.ports.columns import Columns


@dataclass(frozen=True, slots=True)
class StageResult:
    """What the stage made of one chunk.

    Shapes (R rows):
        columns              written back under the same rows
        row_valid_tokens     [R] float64, sum of the effective mask
        row_positive_tokens  [R] float64, the same on rows with a positive raw reward, else 0
        statistics           opaque; `AdvantageStage.metrics` pools those of a step's chunks
    """

    columns: Columns
    row_valid_tokens: np.ndarray
    row_positive_tokens: np.ndarray
    statistics: object

    @property
    def has_valid_tokens(self) -> bool:
        """Whether anything is left to train on."""
        return bool(self.row_valid_tokens.any())


@dataclass(eq=False)
class AdvantageFailure(TrainerFailure):
    """What computes advantages ended or did not answer; a step may be tried again (SC-5.75)."""

    def __str__(self) -> str:
        return (
            f"{self.problem}; raise spec.asyncRL.trainStepRetries to try a step again, "
            "or run the job again, it goes on from its newest checkpoint"
        )


class AdvantageStage(Protocol):
    """Runs off the event loop."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns that it reads, whatever the settings of the step."""
        ...

    async def start(self) -> None:
        """Bring workers up, if there are any."""
        ...

    async def run(self, meta: BatchMeta, columns: Columns) -> StageResult:
        """Reward transforms, filters, estimator (SC-11.12) over complete groups.

        Raises `AdvantageFailure` when the workers fail, and what the stage itself raises.
        """
        ...

    def metrics(self, results: Sequence[StageResult]) -> Mapping[str, float]:
        """Metrics of a step from the results of its chunks."""
        ...

    async def close(self) -> None:
        """Stop workers. Idempotent."""
        ...
