"""What each call of the control API does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import grpc
import structlog

from asyncrl_api.control import control_pb2 as pb
from asyncrl_runtime.app.control.feed import StatusFeed
from asyncrl_runtime.app.control.messages import shard_message
from asyncrl_runtime.app.state import ShardView
from asyncrl_runtime.core.errors import RunError

log = structlog.get_logger("asyncrl.control")

MAX_DRAIN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of changed settings; nothing was applied if any were refused."""

    applied: Sequence[str] = ()
    pending: Sequence[str] = ()
    refused: Sequence[tuple[str, str]] = ()


@dataclass(eq=False)
class Unknown(Exception):
    """What was named does not exist."""

    what: str

    def __str__(self) -> str:
        return self.what


@dataclass(eq=False)
class NotNow(Exception):
    """The run is not in a state to do it."""

    why: str

    def __str__(self) -> str:
        return self.why


class Controls(Protocol):
    """A run, as it can be steered from outside. Raises Unknown, NotNow, RunError."""

    async def apply(self, job_json: str, generation: int) -> Applied:
        """Take changed settings over."""
        ...

    async def checkpoint(self) -> tuple[int, str]:
        """Save at the end of the open step; its step and path."""
        ...

    def quiesce(self, reason: str) -> None:
        """Begin to end the run."""
        ...

    async def quarantine(self, index: int, reason: str) -> ShardView:
        """Take a shard out of service."""
        ...

    async def release(self, index: int) -> ShardView:
        """Let it come back."""
        ...

    async def drain_pod(self, pod: str, timeout_seconds: float) -> tuple[Sequence[int], int]:
        """Empty the shards of a pod; which they are, and how many requests were left."""
        ...


@dataclass(slots=True, eq=False)
class ControlService:
    """Turns messages into calls, and errors into statuses: nothing that a caller sends ends the run."""

    controls: Controls
    feed: StatusFeed
    watchers: int = field(default=0, init=False)

    async def get_status(self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext) -> bytes:
        """The status of now, serialised."""
        return self.feed.latest().payload

    async def watch_status(
        self, request: pb.WatchStatusRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Statuses, serialised, until the client leaves."""
        self.watchers += 1
        try:
            async for status in self.feed.watch(request.min_interval_seconds):
                yield status.payload
        finally:
            self.watchers -= 1

    async def apply_config(
        self, request: pb.ApplyConfigRequest, context: grpc.aio.ServicerContext
    ) -> pb.ApplyConfigResponse:
        """Apply, or say why not."""
        try:
            result = await self.controls.apply(request.job_json, request.generation)
        except Exception as error:  # noqa: BLE001 - the caller's error must not become the run's
            await _tell(context, error)
        return pb.ApplyConfigResponse(
            applied=result.applied,
            pending=result.pending,
            refused=[pb.Refusal(path=path, reason=reason) for path, reason in result.refused],
        )

    async def checkpoint(
        self, request: pb.CheckpointRequest, context: grpc.aio.ServicerContext
    ) -> pb.CheckpointResponse:
        """Save."""
        try:
            step, path = await self.controls.checkpoint()
        except Exception as error:  # noqa: BLE001
            await _tell(context, error)
        return pb.CheckpointResponse(step=step, path=path)

    async def quiesce(
        self, request: pb.QuiesceRequest, context: grpc.aio.ServicerContext
    ) -> pb.QuiesceResponse:
        """Begin to end."""
        try:
            self.controls.quiesce(request.reason)
        except Exception as error:  # noqa: BLE001
            await _tell(context, error)
        return pb.QuiesceResponse()

    async def quarantine_shard(
        self, request: pb.ShardRequest, context: grpc.aio.ServicerContext
    ) -> pb.ShardResponse:
        """Take it out."""
        try:
            shard = await self.controls.quarantine(request.index, request.reason)
        except Exception as error:  # noqa: BLE001
            await _tell(context, error)
        return pb.ShardResponse(shard=shard_message(shard))

    async def release_shard(
        self, request: pb.ShardRequest, context: grpc.aio.ServicerContext
    ) -> pb.ShardResponse:
        """Let it come back."""
        try:
            shard = await self.controls.release(request.index)
        except Exception as error:  # noqa: BLE001
            await _tell(context, error)
        return pb.ShardResponse(shard=shard_message(shard))

    async def drain_pod(
        self, request: pb.DrainPodRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrainPodResponse:
        """Empty its shards."""
        seconds = request.timeout_seconds
        if not 0 <= seconds <= MAX_DRAIN_SECONDS:
            problem = f"timeout_seconds is {seconds}; it must be between 0 and {MAX_DRAIN_SECONDS:g}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        try:
            shards, left = await self.controls.drain_pod(request.pod, seconds)
        except Exception as error:  # noqa: BLE001
            await _tell(context, error)
        return pb.DrainPodResponse(shards=shards, left_requests=left)


async def _tell(context: grpc.aio.ServicerContext, error: Exception) -> NoReturn:
    """End the call with the status that fits the error."""
    code = grpc.StatusCode.INTERNAL
    if isinstance(error, Unknown):
        code = grpc.StatusCode.NOT_FOUND
    elif isinstance(error, NotNow):
        code = grpc.StatusCode.FAILED_PRECONDITION
    elif isinstance(error, TimeoutError):
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    elif not isinstance(error, RunError):
        log.error("a call of the control API failed", exc_info=error)
    await context.abort(code, str(error) or type(error).__name__)
    raise AssertionError("abort raises")


def handlers(service: ControlService) -> grpc.GenericRpcHandler:
    """The service under its name; statuses are passed on as they were serialised."""

    def unary(call, request):  # noqa: ANN001, ANN202
        return grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    methods = {
        "GetStatus": grpc.unary_unary_rpc_method_handler(
            service.get_status, request_deserializer=pb.GetStatusRequest.FromString
        ),
        "WatchStatus": grpc.unary_stream_rpc_method_handler(
            service.watch_status, request_deserializer=pb.WatchStatusRequest.FromString
        ),
        "ApplyConfig": unary(service.apply_config, pb.ApplyConfigRequest),
        "Checkpoint": unary(service.checkpoint, pb.CheckpointRequest),
        "Quiesce": unary(service.quiesce, pb.QuiesceRequest),
        "QuarantineShard": unary(service.quarantine_shard, pb.ShardRequest),
        "ReleaseShard": unary(service.release_shard, pb.ShardRequest),
        "DrainPod": unary(service.drain_pod, pb.DrainPodRequest),
    }
    return grpc.method_handlers_generic_handler("asyncrl.control.v1.Control", methods)
