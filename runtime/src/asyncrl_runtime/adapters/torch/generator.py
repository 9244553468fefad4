"""A generation shard with the torch engine, seen from the controller."""

from __future__ import annotations

from typing import Any

from asyncrl_runtime.adapters.torch.entry import START_SECONDS, Bound, shard_service, torch_host
from asyncrl_runtime.adapters.torch.errors import EngineFailure
from asyncrl_runtime.adapters.torch.settings import EngineSettings
from asyncrl_runtime.adapters.workers import Host, RemoteError, Worker
from asyncrl_runtime.core.errors import InfraFailure, RunError, WorkerDied
from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, ShardState


class TorchGenerator:
    """Implements `Generator` in a worker process. `start` after `close` or a death starts a fresh one."""

    def __init__(
        self,
        index: int,
        settings: EngineSettings,
        *,
        host: Host | None = None,
        start_bound: Bound = Bound(300.0),  # noqa: B008 - immutable
        request_bound: Bound = Bound(),  # noqa: B008
        probe_bound: Bound = Bound(),  # noqa: B008
    ) -> None:
        """Runs on `host`, by default a fork of this machine.

        Bounds hold for the start, for each request or cache invalidation, and for each probe.
        """
        self.index = index
        self.name = f"generation shard {index}"
        self._settings = settings
        self._host = host or torch_host()
        self._start_bound = start_bound
        self._request_bound = request_bound
        self._probe_bound = probe_bound
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The process behind it. Raises `WorkerDied` when there is none."""
        if self._worker is None:
            raise WorkerDied(self.name, None, "it was not started")
        return self._worker

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as is known."""
        return self._worker is not None and self._worker.alive

    async def start(self) -> None:
        """Build model and engine in a new process; an earlier one is killed first."""
        self.kill()
        await self.close()
        try:
            self._worker = await self._host.launch(
                shard_service,
                self._settings,
                name=self.name,
                start_seconds=self._start_bound.seconds or START_SECONDS,
                setting=self._start_bound.setting,
            )
        except (InfraFailure, RunError):
            raise
        except Exception as problem:
            raise EngineFailure(self.name, str(problem)) from problem

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Sample one completion; see `Generator`."""
        arguments = (request.token_ids, request.sampling, request.seed)
        token_ids, logprobs, versions, reason = await self._call(
            "generate", *arguments, bound=self._request_bound
        )
        return GenerationResult(tuple(token_ids), tuple(logprobs), tuple(versions), reason)

    async def probe(self) -> ShardState:
        """Counters of the engine, between two tokens."""
        return await self._call("probe", bound=self._probe_bound)

    async def ping(self) -> None:
        """Its one process answers."""
        await self.probe()

    async def until_ended(self) -> str:
        """Wait for the end of the process that runs now."""
        if self._worker is None:
            return "it was not started"
        worker = self._worker
        await worker.ended.wait()
        return str(worker.death)

    async def invalidate_kv_cache(self) -> None:
        """Recompute the cache of running requests."""
        await self._call("invalidate_kv_cache", bound=self._request_bound)

    async def close(self) -> None:
        """End the process; running requests fail. Idempotent."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.close()

    def kill(self) -> None:
        """End the process at once."""
        if self._worker is not None:
            self._worker.kill()

    async def _call(self, method: str, *args: object, bound: Bound) -> Any:
        """What the worker raises and nobody knows is the engine's failure, not the prompt's (SC-8.24)."""
        try:
            return await self.worker.call(
                method, *args, deadline_seconds=bound.seconds, setting=bound.setting
            )
        except (RemoteError, RuntimeError) as problem:
            raise EngineFailure(self.name, str(problem)) from problem
