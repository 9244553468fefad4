"""The advantage stage over the data plane's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from asyncrl_runtime.algorithms.columns import stage_columns
from asyncrl_runtime.algorithms.metrics import Stats, finalize
from asyncrl_runtime.algorithms.settings import StageSettings
from asyncrl_runtime.algorithms.stage import StageInput, StageOutput
from asyncrl_runtime.core.records import BatchMeta
from asyncrl_runtime.core.stats import percentile
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.advantage import StageResult
from asyncrl_runtime.ports.columns import Columns, Jagged

_ALWAYS = (col.TOKEN_MASK, col.SAMPLE_MASK, col.REWARD, col.TRUNCATED, col.FLAGGED)


class StageRunner(Protocol):
    """Where `run_stage` runs."""

    async def start(self) -> None:
        """Be ready for the first chunk."""
        ...

    async def __call__(self, batch: StageInput, settings: StageSettings) -> StageOutput:
        """One chunk, off the loop."""
        ...

    async def close(self) -> None:
        """Stop. Idempotent."""
        ...


class ColumnAdvantages:
    """Implements `AdvantageStage`: pads the columns, runs the stage off the loop, cuts the results."""

    def __init__(
        self,
        settings: StageSettings,
        *,
        has_previous_logprobs: bool,
        runner: StageRunner,
    ) -> None:
        self._settings = settings
        self._per_token = tuple(sorted(stage_columns(settings, has_previous_logprobs=has_previous_logprobs)))
        self._runner = runner
        self.fields = (*_ALWAYS, *self._per_token)

    async def start(self) -> None:
        """Bring the workers behind it up."""
        await self._runner.start()

    async def run(self, meta: BatchMeta, columns: Columns) -> StageResult:
        """One chunk of complete groups."""
        mask = columns[col.TOKEN_MASK]
        token_mask = mask.padded()
        response_tokens = token_mask.sum(axis=1, dtype=np.int64)
        prefix = col.REWARD_COMPONENT
        output = await self._runner(
            StageInput(
                group_ids=meta.group_ids,
                rewards=columns[col.REWARD].values,
                token_mask=token_mask,
                sample_mask=columns[col.SAMPLE_MASK].values,
                truncated=columns[col.TRUNCATED].values,
                flagged=columns[col.FLAGGED].values,
                response_tokens=response_tokens,
                components={
                    n.removeprefix(prefix): c.values for n, c in columns.items() if n.startswith(prefix)
                },
                columns={name: columns[name].padded() for name in self._per_token},
            ),
            self._settings,
        )
        written = {
            col.ADVANTAGES: Jagged.unpadded(output.advantages, mask.lengths),
            col.SAMPLE_MASK: Jagged.scalars(output.sample_mask, np.float32),
        }
        if output.returns is not None:
            written[col.RETURNS] = Jagged.unpadded(output.returns, mask.lengths)
        statistics = (output.stats, response_tokens.tolist())
        return StageResult(written, output.row_valid_tokens, output.row_positive_tokens, statistics)

    def metrics(self, results: Sequence[StageResult]) -> Mapping[str, float]:
        """Pooled over the step's chunks; percentiles of the lengths of all rows among them (SC-12.15)."""
        statistics = [cast("tuple[Stats, list[int]]", result.statistics) for result in results]
        lengths = [tokens for _, chunk in statistics for tokens in chunk]
        ranks = {
            "response_length/p50": percentile(lengths, 0.50),
            "response_length/p95": percentile(lengths, 0.95),
        }
        return {
            **finalize([stats for stats, _ in statistics]),
            **{name: value for name, value in ranks.items() if value is not None},
        }

    async def close(self) -> None:
        """Stop the workers behind it."""
        await self._runner.close()
