"""Who may call: whoever knows the job's token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

HEADER = "authorization"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Answers UNAUTHENTICATED to every call without the token, whatever it calls, also where nothing is."""

    def __init__(self, token: str) -> None:
        """`token` must not be empty."""
        if not token:
            raise ValueError("the control API needs a token")
        self._expected = f"Bearer {token}".encode()
        self._refuse = grpc.unary_unary_rpc_method_handler(_unauthenticated)
        self._refuse_stream = grpc.unary_stream_rpc_method_handler(_unauthenticated_stream)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Compare in constant time, then let the call through."""
        given = b""
        for key, value in handler_call_details.invocation_metadata or ():
            if key == HEADER:
                given = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        if hmac.compare_digest(given, self._expected):
            return await continuation(handler_call_details)
        handler = await continuation(handler_call_details)
        return self._refuse_stream if handler is not None and handler.response_streaming else self._refuse


async def _unauthenticated(request: Any, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call carries no valid bearer token")


async def _unauthenticated_stream(request: Any, context: grpc.aio.ServicerContext) -> None:
    await _unauthenticated(request, context)
