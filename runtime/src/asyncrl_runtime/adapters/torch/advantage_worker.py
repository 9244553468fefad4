"""Runs the advantage stage in worker processes, off the controller's loop."""

from __future__ import annotations

import asyncio

from asyncrl_runtime.adapters.torch.entry import START_SECONDS, Bound, advantage_service, torch_server
from asyncrl_runtime.adapters.workers import ForkServer, WorkerProcess
from asyncrl_runtime.algorithms.settings import StageSettings
from asyncrl_runtime.algorithms.stage import StageInput, StageOutput, run_stage
from asyncrl_runtime.core.errors import InfraFailure
from asyncrl_runtime.ports.advantage import AdvantageFailure


class AdvantageWorkers:
    """Implements `StageRunner`: `await workers(batch, settings)`.

    Each chunk goes to the least busy of `count` processes, or to a thread when count is 0. A process
    that ended or did not answer is replaced by the next call.
    """

    def __init__(
        self,
        count: int,
        *,
        server: ForkServer | None = None,
        start_bound: Bound = Bound(60.0),  # noqa: B008 - immutable
        call_bound: Bound = Bound(),  # noqa: B008
    ) -> None:
        """Bounds hold for the start of a process and for each chunk."""
        self._server = server
        self._start_bound = start_bound
        self._call_bound = call_bound
        self._workers: list[WorkerProcess | None] = [None] * count
        self._running = [0] * count
        self._starting = [asyncio.Lock() for _ in range(count)]

    async def __call__(self, batch: StageInput, settings: StageSettings) -> StageOutput:
        """One chunk. Raises what `run_stage` raises, or `AdvantageFailure`; the next call may succeed."""
        if not self._workers:
            return await asyncio.to_thread(run_stage, batch, settings)
        index = self._running.index(min(self._running))
        self._running[index] += 1
        try:
            return await self._run(index, batch, settings)
        except InfraFailure as problem:
            self._give_up(index)
            raise AdvantageFailure("advantages", str(problem)) from problem
        finally:
            self._running[index] -= 1

    async def start(self) -> None:
        """Start every process now, so that the first chunk does not wait. Raises `AdvantageFailure`."""
        try:
            await asyncio.gather(*(self._ready(index) for index in range(len(self._workers))))
        except InfraFailure as problem:
            raise AdvantageFailure("start", str(problem)) from problem

    async def close(self) -> None:
        """End the processes. Idempotent."""
        workers = [worker for worker in self._workers if worker is not None]
        self._workers = [None] * len(self._workers)
        await asyncio.gather(*(worker.close() for worker in workers))

    async def _run(self, index: int, batch: StageInput, settings: StageSettings) -> StageOutput:
        worker = await self._ready(index)
        bound = self._call_bound
        return await worker.call(
            "run", batch, settings, deadline_seconds=bound.seconds, setting=bound.setting
        )

    def _give_up(self, index: int) -> None:
        """End a process that died or hangs; the next call starts another one."""
        worker, self._workers[index] = self._workers[index], None
        if worker is not None:
            worker.kill()

    async def _ready(self, index: int) -> WorkerProcess:
        async with self._starting[index]:
            worker = self._workers[index]
            if worker is None or not worker.alive:
                worker = self._workers[index] = await WorkerProcess.start(
                    advantage_service,
                    name=f"advantage worker {index}",
                    start_seconds=self._start_bound.seconds or START_SECONDS,
                    setting=self._start_bound.setting,
                    server=self._server or torch_server(),
                )
            return worker
