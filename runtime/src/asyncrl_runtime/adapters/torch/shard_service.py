"""A generation shard's own process: the engine behind calls."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import torch

from asyncrl_runtime.adapters.torch.engine import Engine, Output, Request
from asyncrl_runtime.adapters.torch.errors import EngineFailure
from asyncrl_runtime.adapters.torch.loading import build_model, resolve_device
from asyncrl_runtime.adapters.torch.precision import check_precision
from asyncrl_runtime.adapters.torch.settings import EngineSettings
from asyncrl_runtime.adapters.torch.weight_buffers import WeightReader, read_buffer
from asyncrl_runtime.adapters.torch.weight_link import WeightLink, in_thread
from asyncrl_runtime.adapters.workers import Deferred
from asyncrl_runtime.ports.generator import Sampling, ShardState


class ShardService:
    """Steps the engine while it has work, and serves calls between two tokens."""

    def __init__(self, settings: EngineSettings) -> None:
        """Build model and engine, and run both once so that the first request is as fast as the next."""
        torch.set_num_threads(settings.num_threads)
        asked = settings.model
        check_precision(asked.dtype, resolve_device(asked.device), "spec.model.dtype")
        model = build_model(asked)
        model.requires_grad_(False)
        decode_text = None
        if settings.decoder is not None:
            build, args = settings.decoder
            decode_text = build(*args)
        self._weights = WeightReader(model)
        self._link = WeightLink()
        self._engine = Engine(model, settings, clock=time.monotonic, decode_text=decode_text)
        self._failure: EngineFailure | None = None
        self._open: set[Deferred] = set()
        self._work = asyncio.Event()
        self._whole = True
        """False after a load that failed: nothing is generated until one succeeds."""

        self._engine.warm_up()
        self._loop_task = asyncio.get_running_loop().create_task(self._run())

    def generate(self, token_ids: tuple[int, ...], sampling: Sampling, seed: int) -> Deferred:
        """Answers with the fields of a `GenerationResult`."""
        self._check()
        deferred = Deferred()

        def done(output: Output) -> None:
            self._open.discard(deferred)
            deferred.resolve(output)

        request = self._engine.submit(token_ids, sampling, seed, done)
        deferred.on_cancel = lambda: self._abort(deferred, request)
        self._open.add(deferred)
        self._work.set()
        return deferred

    def probe(self) -> ShardState:
        """The engine's counters. Raises `EngineFailure` once the engine has failed."""
        self._check()
        return replace(self._engine.state, busy=self._whole and self._engine.busy)

    def invalidate_kv_cache(self) -> None:
        """Compute the cache of running requests again."""
        self._check()
        self._engine.invalidate_kv_cache()

    def attach_weights(self, paths: tuple[str, ...], layout: str) -> None:
        """Map the trainer's buffers. Raises ValueError when its model is another one."""
        self._weights.attach(paths, layout)

    def stage_weights(self, layout: str) -> None:
        """Make a buffer to receive in. Raises ValueError when the trainer's model is another one."""
        self._weights.stage(layout)

    async def join_weights(self, address: str, rank: int, size: int, seconds: float) -> None:
        """Meet trainer and other shards. Raises RuntimeError when they do not come within `seconds`."""
        await self._link.join(address, rank, size, self._weights.staged.device, seconds)

    async def receive_weights(self) -> None:
        """Fill the buffer by the trainer's broadcast, while requests run on. Raises RuntimeError."""
        await self._link.broadcast(self._weights.staged)

    async def read_weights(self, path: str) -> None:
        """Fill the buffer from a file, while requests run on. Raises OSError."""
        staged = self._weights.staged
        await in_thread(lambda: read_buffer(staged, path))

    def load_weights(self, version: int, buffer: int, checksum: str) -> float:
        """Copy the buffer's weights in; returns the seconds that running requests waited.

        After a copy that is not whole the engine stands still until the next one is.
        """
        began = time.perf_counter()
        self._whole, self._engine.version = False, -1
        self._weights.load(buffer, checksum)
        self._whole, self._engine.version = True, version
        self._work.set()
        return time.perf_counter() - began

    def weights_digest(self) -> str:
        """Digest of the weights in use."""
        return self._weights.digest()

    async def close(self) -> None:
        """Fail what still runs."""
        self._loop_task.cancel()
        self._fail_open("it was closed")

    async def _run(self) -> None:
        engine = self._engine
        try:
            while True:
                if engine.busy and self._whole:
                    engine.step()
                    await asyncio.sleep(0)
                else:
                    await self._idle()
        except Exception as problem:  # noqa: BLE001 - whatever the model raised, the shard is of no more use
            self._failure = EngineFailure("the engine", f"{type(problem).__name__}: {problem}")
            self._fail_open(self._failure.problem)

    async def _idle(self) -> None:
        """Wait for a request, or until a held one is due."""
        due = self._engine.next_release()
        self._work.clear()
        wait = None if due is None else max(0.0, due - time.monotonic())
        try:
            await asyncio.wait_for(self._work.wait(), wait)
        except TimeoutError:
            self._engine.release_held()

    def _abort(self, deferred: Deferred, request: Request) -> None:
        self._open.discard(deferred)
        self._engine.abort(request)

    def _fail_open(self, problem: str) -> None:
        pending, self._open = self._open, set()
        for deferred in pending:
            deferred.fail(EngineFailure("the engine", problem))

    def _check(self) -> None:
        if self._failure is not None:
            raise EngineFailure(self._failure.shard, self._failure.problem)
