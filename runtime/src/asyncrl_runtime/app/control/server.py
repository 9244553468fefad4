"""The servers of the control API: the API itself, and the health service that probes ask."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from asyncrl_runtime.app.control.auth import TokenInterceptor
from asyncrl_runtime.app.control.service import ControlService, handlers
from asyncrl_runtime.core.errors import RunError

MAX_REQUEST_BYTES = 2 << 20
"""A manifest has at most 1 MiB (etcd's bound), and JSON is longer than YAML."""

MAX_CALLS = 64
MAX_METADATA_BYTES = 16 << 10
STOP_SECONDS = 5.0
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

LIVENESS, READINESS = "liveness", "readiness"


@dataclass(eq=False)
class PortInUse(RunError):
    """An address cannot be listened on."""

    address: str
    setting: str
    problem: str

    def __str__(self) -> str:
        return (
            f"nothing can listen on {self.address} ({self.problem}): end what does, "
            f"or choose another port with {self.setting}"
        )


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of the server's certificate."""

    certificate: Path
    key: Path

    def credentials(self) -> grpc.ServerCredentials:
        """Read now. Raises OSError."""
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.certificate.read_bytes())])


@dataclass(slots=True, kw_only=True, eq=False)
class ControlServer:
    """Serves the control API with a token, and health without, on two ports."""

    service: ControlService
    token: str
    address: str
    health_address: str | None
    tls: Tls | None = None
    port: int = field(default=0, init=False)
    health_port: int = field(default=0, init=False)
    _server: grpc.aio.Server | None = field(default=None, init=False)
    _health_server: grpc.aio.Server | None = field(default=None, init=False)
    _health: health.aio.HealthServicer = field(init=False)

    async def start(self) -> None:
        """Listen. Raises PortInUse, OSError for the certificate."""
        server = grpc.aio.server(
            interceptors=[TokenInterceptor(self.token)], options=OPTIONS, maximum_concurrent_rpcs=MAX_CALLS
        )
        server.add_generic_rpc_handlers((handlers(self.service),))
        credentials = None if self.tls is None else self.tls.credentials()
        self.port = _listen(server, self.address, "--port", credentials)
        self._health = health.aio.HealthServicer()
        if self.health_address is not None:
            self._health_server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._health_server)
            self.health_port = _listen(self._health_server, self.health_address, "--health-port", None)
            await self._health_server.start()
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready=False)
        await server.start()
        self._server = server

    async def set_ready(self, *, ready: bool) -> None:
        """Whether the pumps run."""
        serving, not_serving = (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        await self._health.set(READINESS, serving if ready else not_serving)

    async def stop(self) -> None:
        """End all calls, streams after a moment. Idempotent."""
        servers = [server for server in (self._server, self._health_server) if server is not None]
        self._server = self._health_server = None
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS + 1):
                await asyncio.gather(*(server.stop(STOP_SECONDS / 10) for server in servers))


def _listen(
    server: grpc.aio.Server, address: str, setting: str, credentials: grpc.ServerCredentials | None
) -> int:
    try:
        port = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise PortInUse(address, setting, str(error)) from error
    if not port:
        raise PortInUse(address, setting, "it is taken")
    return port
