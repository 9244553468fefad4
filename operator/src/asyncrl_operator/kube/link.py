"""The operator's line to one job's controller: reports come in, requests go out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog

from asyncrl_api.control import control_pb2 as pb
from asyncrl_api.control.control_pb2_grpc import ControlStub
from asyncrl_operator.core.actions import Ask
from asyncrl_operator.core.facts import Report
from asyncrl_operator.kube.reading import report_of, utc_now

log = structlog.get_logger("asyncrl.operator")

CALL_SECONDS = 10.0
REPORT_SECONDS = 1.0
_SILENT_SECONDS = 30.0
_RETRY_SECONDS = 2.0
_MAX_MESSAGE_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class Link:
    """Watches one controller until it is closed. Belongs to one pod of one attempt."""

    address: str
    token: str
    pod_uid: str
    changed: Callable[[], None]
    report: Report | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._watch(), name=f"reports of {self.address}")

    async def close(self) -> None:
        """Stop watching. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def ask(self, wish: Ask, *, job: Mapping[str, Any], generation: int) -> tuple[str, ...]:
        """Make a request; gives the fields that wait for the controller's next start.

        Raises:
            grpc.aio.AioRpcError: it was refused, or not answered in time.
        """
        async with self._channel() as channel:
            stub: Any = ControlStub(channel)
            options = {"metadata": self._metadata, "timeout": CALL_SECONDS}
            match wish.what:
                case "quiesce":
                    await stub.Quiesce(pb.QuiesceRequest(reason=wish.key), **options)
                case "apply_config":
                    request = pb.ApplyConfigRequest(job_json=json.dumps(job), generation=generation)
                    answer = await stub.ApplyConfig(request, **options)
                    refused = (f"{found.path}: {found.reason}" for found in answer.refused)
                    return (*answer.pending, *refused)
                case "quarantine":
                    request = pb.ShardRequest(index=wish.shard, reason="annotated")
                    await stub.QuarantineShard(request, **options)
                case "release":
                    await stub.ReleaseShard(pb.ShardRequest(index=wish.shard, reason="annotated"), **options)
        return ()

    async def _watch(self) -> None:
        while True:
            try:
                async with self._channel() as channel:
                    stub: Any = ControlStub(channel)
                    request = pb.WatchStatusRequest(min_interval_seconds=REPORT_SECONDS)
                    stream = stub.WatchStatus(request, metadata=self._metadata)
                    while (message := await asyncio.wait_for(stream.read(), _SILENT_SECONDS)) != grpc.aio.EOF:
                        self._take(message)
            except (grpc.aio.AioRpcError, TimeoutError) as problem:
                log.debug("no reports", address=self.address, reason=str(problem)[:200])
            await asyncio.sleep(_RETRY_SECONDS)

    def _take(self, message: pb.RunStatus) -> None:
        self.report = report_of(message, pod_uid=self.pod_uid, received=utc_now())
        self.changed()

    def _channel(self) -> grpc.aio.Channel:
        options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
        return grpc.aio.insecure_channel(self.address, options=options)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)
