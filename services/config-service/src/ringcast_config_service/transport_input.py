"""What gRPC would refuse in its own words: requests that can't be read, and how any refusal travels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from ringcast_wire import InternalError, InvalidInputError, RingcastError
from ringcast_wire.grpc import STATUS, error_trailers

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Takes the place of a request that is no message, such as one with text that is not UTF-8."""

    error: InvalidInputError


class RefusingServer:
    """What generated code registers the methods of a service with: it refuses requests that can't be read.

    INVALID_ARGUMENT and a sentence is the answer, where gRPC would say UNKNOWN and log a traceback. A stream gets the
    :class:`Unreadable` in its turn, and raises the error itself. An interceptor would cost every call a fifth more.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, _handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """The same methods by another way; the server is told of them in the other call."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        """Registers the methods of a service."""
        handlers = {name: _refusing(handler) for name, handler in methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _refusing(handler: Any) -> Any:
    read = handler.request_deserializer

    def deserialize(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError as error:
            reason = str(error).rpartition(": ")[2]
            return Unreadable(InvalidInputError(f"the request of {len(data)} bytes can't be read: {reason}"))

    return handler._replace(
        request_deserializer=deserialize,
        unary_unary=_checked(handler.unary_unary),
        unary_stream=_checked(handler.unary_stream),
    )


def _checked(method: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any] | None:
    if method is None:
        return None

    async def checked(request: Any, context: Context) -> Any:
        if isinstance(request, Unreadable):
            await abort(context, request.error)
        return await method(request, context)

    return checked


async def abort(context: Context, error: Exception, cause: Exception | None = None) -> NoReturn:
    """Ends a call with the status of an error; one that nobody foresaw is logged and told by its name only."""
    if isinstance(error, grpc.aio.AbortError | grpc.RpcError):
        raise error
    if not isinstance(error, RingcastError):
        log.error("a call failed", exc_info=error)
        error = unforeseen(error)
    await context.abort(STATUS[error.code], str(error), error_trailers(error))
    raise AssertionError("abort returned") from cause


def unforeseen(error: Exception) -> InternalError:
    """What a client is told of a bug: no details, they are in the log."""
    return InternalError(f"the call failed: {type(error).__name__}")
