"""Training: the split step of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from asyncrl_runtime.core.records import BatchMeta


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What was built."""

    parameters: int
    parameter_bytes: int
    device: str
    ranks: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step."""

    metrics: Mapping[str, float]
    """SC-12.10 to 12.12 and 12.17, already normalised over the whole optimizer step."""

    valid_tokens: int
    valid_rows: int


class Trainer(Protocol):
    """Trains one model; reads and writes rows through the data plane by itself.

    One optimizer step is `begin`, `accumulate` once per chunk, `finish`. Gradients are raw sums until
    `finish`, which divides once by the step's own totals, clips and steps (SC-11.71).
    Raises `TrainerFailure` (with the cause) when a call fails; nothing is half-applied then.
    """

    async def start(self) -> ModelFacts:
        """Build the model, the reference copy if one is needed, and the optimizer."""
        ...

    async def logprobs(
        self, meta: BatchMeta, *, models: frozenset[Literal["policy", "reference"]]
    ) -> Mapping[str, float]:
        """Write `previous_logprobs` and/or `reference_logprobs`; keeps the gradients of an open step."""
        ...

    async def begin(self, *, positive_tokens: float | None = None) -> None:
        """Open an optimizer step; positive_tokens is T+ of SC-11.64, over all its chunks."""
        ...

    async def accumulate(self, meta: BatchMeta) -> None:
        """Add the gradients of these rows; their advantages are in the data plane."""
        ...

    async def finish(self) -> StepReport:
        """Normalise, clip, step. A non-finite loss or gradient raises `NonFiniteStep` and changes nothing."""
        ...

    async def abort(self) -> None:
        """Forget the open step, if any."""
        ...

    async def save(self, directory: Path, *, optimizer: bool) -> None:
        """Write weights/, tokenizer/ and, if asked, optimizer/ below directory; return when on disk.

        Raises OSError when they cannot be written.
        """
        ...

    async def load(self, directory: Path, *, optimizer: bool) -> bool:
        """Load what `save` wrote. False: optimizer state was asked for and is absent."""
        ...

    async def close(self) -> None:
        """Stop. Idempotent."""
        ...
