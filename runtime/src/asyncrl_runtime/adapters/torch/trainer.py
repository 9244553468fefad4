"""The torch trainer, seen from the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from asyncrl_runtime.adapters.torch.entry import START_SECONDS, Bound, torch_host, trainer_service
from asyncrl_runtime.adapters.torch.settings import TrainerSettings
from asyncrl_runtime.adapters.workers import Host, Worker
from asyncrl_runtime.core.errors import RunError, TrainerFailure
from asyncrl_runtime.core.records import BatchMeta
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.ports.prompts import Tokenizer
from asyncrl_runtime.ports.trainer import ModelFacts, StepReport

_LOGPROB_FIELDS = (col.TOKEN_IDS, col.TOKEN_MASK)


class TorchTrainer:
    """Implements `Trainer` in a worker process, over the data plane."""

    def __init__(
        self,
        settings: TrainerSettings,
        plane: DataPlane,
        *,
        tokenizer: Tokenizer | None = None,
        host: Host | None = None,
        start_bound: Bound = Bound(300.0),  # noqa: B008 - immutable
        call_bound: Bound = Bound(),  # noqa: B008
    ) -> None:
        """`tokenizer` is saved beside the weights. Runs on `host`, by default a fork of this machine.

        Bounds hold for the start and for each call.
        """
        self._settings = settings
        self._plane = plane
        self._tokenizer = tokenizer
        self._host = host or torch_host()
        self._start_bound = start_bound
        self._call_bound = call_bound
        self._worker: Worker | None = None
        self._has_reference_column = False

    @property
    def worker(self) -> Worker:
        """The process behind it. Raises `TrainerFailure` when there is none."""
        if self._worker is None:
            raise TrainerFailure("start", "the trainer was not started")
        return self._worker

    async def start(self) -> ModelFacts:
        """Build everything in a new process; an earlier process is ended first."""
        await self.close()
        try:
            self._worker = await self._host.launch(
                trainer_service,
                self._settings,
                name="trainer",
                start_seconds=self._start_bound.seconds or START_SECONDS,
                setting=self._start_bound.setting,
            )
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
        await self._plane.put(meta.sample_ids, await self._call("logprobs", columns, models))
        self._has_reference_column |= "reference" in models
        return {}

    async def begin(self, *, positive_tokens: float | None = None) -> None:
        """Open an optimizer step."""
        await self._call("begin", positive_tokens)

    async def accumulate(self, meta: BatchMeta) -> None:
        """Add the gradients of these rows."""
        await self._call("accumulate", await self._plane.get(meta.sample_ids, self._fields()))

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
        """Read what `save` wrote."""
        return await self._call("load", str(directory), optimizer)

    async def close(self) -> None:
        """End the process. Idempotent."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.close()

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
        bound = self._call_bound
        try:
            return await self.worker.call(
                method, *args, deadline_seconds=bound.seconds, setting=bound.setting
            )
        except RunError:
            raise
        except Exception as problem:
            raise TrainerFailure(method, str(problem)) from problem
