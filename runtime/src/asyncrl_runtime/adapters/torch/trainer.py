"""The torch trainer of one or several ranks, seen from the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from asyncrl_runtime.adapters.torch.entry import Bound, torch_host, trainer_service
from asyncrl_runtime.adapters.torch.rank_workers import RankWorkers
from asyncrl_runtime.adapters.torch.settings import TrainerSettings
from asyncrl_runtime.adapters.torch.shares import merged, shares, taken
from asyncrl_runtime.adapters.workers import Host, Worker
from asyncrl_runtime.core.errors import RunError, TrainerFailure
from asyncrl_runtime.core.records import BatchMeta
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Columns
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.ports.prompts import Tokenizer
from asyncrl_runtime.ports.trainer import ModelFacts, StepReport

_LOGPROB_FIELDS = (col.TOKEN_IDS, col.TOKEN_MASK)


class TorchTrainer:
    """Implements `Trainer` in one or several worker processes, over the data plane.

    Each rank computes its share of the rows of every call.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        plane: DataPlane,
        *,
        tokenizer: Tokenizer | None = None,
        hosts: Sequence[Host] = (),
        start_bound: Bound = Bound(300.0),  # noqa: B008 - immutable
        call_bound: Bound = Bound(),  # noqa: B008
    ) -> None:
        """`tokenizer` is saved beside the weights. One rank for each of `hosts`, by default one fork.

        Bounds hold for the start and for each call, and so for every sum over ranks.
        """
        self._settings = settings
        self._plane = plane
        self._tokenizer = tokenizer
        self._ranks = RankWorkers(hosts or (torch_host(),), start_bound=start_bound, call_bound=call_bound)
        self._has_reference_column = False

    @property
    def worker(self) -> Worker:
        """The process of rank 0, which has all parameters. Raises `TrainerFailure` when there is none."""
        return self._ranks.first

    async def start(self) -> ModelFacts:
        """Build everything in new processes; earlier ones are ended first."""
        await self.close()
        try:
            await self._ranks.start(trainer_service, self._settings)
        except RunError:
            raise
        except Exception as problem:
            raise TrainerFailure("start", str(problem)) from problem
        return ModelFacts(*await self._call("facts"))

    async def logprobs(
        self, meta: BatchMeta, *, models: frozenset[Literal["policy", "reference"]]
    ) -> Mapping[str, float]:
        """Write log-prob columns; see `Trainer`."""
        columns = await self._plane.get(meta.sample_ids, _LOGPROB_FIELDS)
        owners, parts = self._shared(columns)
        found = await self._each("logprobs", [(part, models) for part in parts])
        await self._plane.put(meta.sample_ids, merged(found, owners))
        self._has_reference_column |= "reference" in models
        return {}

    async def begin(self, *, positive_tokens: float | None = None) -> None:
        """Open an optimizer step."""
        await self._call("begin", positive_tokens)

    async def accumulate(self, meta: BatchMeta) -> None:
        """Add the gradients of these rows."""
        _, parts = self._shared(await self._plane.get(meta.sample_ids, self._fields()))
        await self._each("accumulate", [(part,) for part in parts])

    async def finish(self) -> StepReport:
        """Normalise, clip, step; see `Trainer`."""
        return StepReport(*await self._call("finish"))

    async def abort(self) -> None:
        """Forget the open step, if any."""
        await self._call("abort")

    async def save(self, directory: Path, *, optimizer: bool) -> None:
        """Write weights/, tokenizer/ and, if asked, optimizer/. Raises OSError."""
        try:
            await self._call("save", str(directory), optimizer)
        except TrainerFailure as failure:
            if isinstance(failure.__cause__, OSError):
                raise failure.__cause__ from failure
            raise
        if self._tokenizer is not None:
            await asyncio.to_thread(self._tokenizer.save, str(directory / "tokenizer"))

    async def load(self, directory: Path, *, optimizer: bool) -> bool:
        """Read what `save` wrote, on this number of ranks or another."""
        return await self._call("load", str(directory), optimizer)

    async def close(self) -> None:
        """End the processes. Idempotent."""
        await self._ranks.close()

    def _shared(self, columns: Columns) -> tuple[list[np.ndarray], list[Columns]]:
        """Row numbers of each rank's share, and its columns."""
        owners = shares(columns[col.TOKEN_IDS].lengths, len(self._ranks))
        return owners, [taken(columns, rows) for rows in owners] if len(owners) > 1 else [columns]

    def _fields(self) -> list[str]:
        """Columns of the loss: those that this step produced, and no others (SC-11.5)."""
        loss = self._settings.loss
        fields = [*_LOGPROB_FIELDS, col.SAMPLE_MASK, col.GENERATION_LOGPROBS, col.ADVANTAGES]
        if loss.ratio != "forced":
            fields.append(col.PREVIOUS_LOGPROBS)
        if loss.kl is not None and (loss.kl.penalty > 0 or self._has_reference_column):
            fields.append(col.REFERENCE_LOGPROBS)
        if loss.nll_weight > 0:
            fields.append(col.REWARD)
        return fields

    async def _call(self, method: str, *args: Any) -> Any:
        return (await self._each(method, [args] * len(self._ranks)))[0]

    async def _each(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        try:
            return await self._ranks.call_each(method, arguments)
        except RunError:
            raise
        except Exception as problem:
            raise TrainerFailure(method, str(problem)) from problem
