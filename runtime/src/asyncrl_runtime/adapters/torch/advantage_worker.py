"""Runs the advantage stage in worker processes, off the controller's loop."""

from __future__ import annotations

import asyncio

from asyncrl_runtime.adapters.torch.entry import START_SECONDS, Bound, advantage_service, torch_server
from asyncrl_runtime.adapters.workers import ForkServer, WorkerProcess
from asyncrl_runtime.algorithms.settings import StageSettings
from asyncrl_runtime.algorithms.stage import StageInput, StageOutput, run_stage


class AdvantageWorkers:
    """A runner of the stage: `await workers(batch, settings)`.

    Each chunk goes to the least busy of `count` processes, or to a thread when count is 0. A process
    that ended is replaced by the next call.
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
        """One chunk. Raises what `run_stage` raises, `WorkerDied` or `DeadlinePassed`."""
        if not self._workers:
            return await asyncio.to_thread(run_stage, batch, settings)
        index = self._running.index(min(self._running))
        self._running[index] += 1
        try:
            worker = await self._ready(index)
            bound = self._call_bound
            return await worker.call(
                "run", batch, settings, deadline_seconds=bound.seconds, setting=bound.setting
            )
        finally:
            self._running[index] -= 1

    async def start(self) -> None:
        """Start every process now, so that the first chunk does not wait for it."""
        await asyncio.gather(*(self._ready(index) for index in range(len(self._workers))))

    async def close(self) -> None:
        """End the processes. Idempotent."""
        workers = [worker for worker in self._workers if worker is not None]
        self._workers = [None] * len(self._workers)
        await asyncio.gather(*(worker.close() for worker in workers))

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
