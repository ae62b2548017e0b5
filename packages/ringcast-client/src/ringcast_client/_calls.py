"""How a client calls the config service: its channel, turns, time-outs, spans and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from ringcast_wire import OutcomeUnknownError, RingcastError, UnavailableError, names
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, error_from_rpc
from ringcast_wire.tracing import Tracing, make_tracing

from ringcast_client._bulk_write import StatusLostError
from ringcast_client._channel import CHANNEL_OPTIONS, StubWithReason
from ringcast_client._input import cause

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

MAX_CALLS: Final = 128
"""Single calls of one client that are under way at once; further ones wait for their turn. The service refuses a
thousand."""


class Calls:
    """Calls to one service, between :meth:`open` and :meth:`close`. Any number of them may be made at once.

    ``reason``: why, as each of them says; empty: nothing.
    """

    def __init__(
        self,
        address: str,
        login: ServiceLogin,
        timeout_s: float,
        tracer_provider: TracerProvider | None,
        *,
        reason: str = "",
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.tracing: Tracing | None = None
        self._login = login
        self._reason = reason
        self._tracer_provider = tracer_provider
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    def open(self) -> None:
        """Makes the channel, which connects at the first call."""
        self._channel = self._login.aio_channel(self.address, CHANNEL_OPTIONS)
        stub: Any = ConfigServiceStub(self._channel)
        self._stub = StubWithReason(stub, self._reason) if self._reason else stub
        self.tracing = make_tracing("ringcast_client", self._tracer_provider)

    async def close(self) -> None:
        """Ends the calls that are under way, and the connection. Calling it twice is harmless."""
        if self._channel is not None:
            channel, self._channel, self._stub = self._channel, None, None
            await channel.close()

    @property
    def rpc(self) -> Any:
        """The methods of the service, to pass to :meth:`unary`, :meth:`write` and :meth:`stream`."""
        if self._stub is None:
            raise RuntimeError("the client is not open: use it as `async with ConfigServiceClient() as client`")
        return self._stub

    def trace_headers(self) -> tuple[tuple[str, str], ...] | None:
        """The headers that carry the current span to the service, if there is one."""
        span = self.tracing.here() if self.tracing is not None else None
        return tuple(self.tracing.headers(span).items()) if self.tracing is not None and span is not None else None

    async def write(self, span: str, method: Callable[..., Awaitable[Any]], request: Any) -> Any:
        """A write, in a span of its own below the current one."""
        if self.tracing is None:
            return await self.unary(method, request, late=self.unknown)
        facts = {"store": request.store, "key": getattr(request, "key", "")}
        with self.tracing.current(span, facts, kind="CLIENT"):
            return await self.unary(method, request, self.trace_headers(), late=self.unknown)

    async def unary(
        self,
        method: Callable[..., Awaitable[Any]],
        request: Any,
        metadata: tuple[tuple[str, str], ...] | None = None,
        *,
        late: Callable[[], UnavailableError] | None = None,
    ) -> Any:
        """One call; ``late`` makes what is raised when it is not answered in time."""
        try:
            async with self._turns:  # the time-out begins with the call's turn
                return await method(request, timeout=self.timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if late is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise late() from error
            raise self.error(error) from error

    async def stream(self, method: Callable[..., Any], request: object) -> AsyncGenerator[Any, None]:
        """The messages of a streamed answer, each within the time-out."""
        call = method(request)
        try:
            while True:
                async with asyncio.timeout(self.timeout_s):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return
                yield message
        except grpc.aio.AioRpcError as error:
            raise self.error(error) from error
        except TimeoutError:
            raise self.silent() from None
        finally:
            call.cancel()

    def unknown(self) -> OutcomeUnknownError:
        """The error of a write that was sent and not answered in time."""
        return OutcomeUnknownError(
            f"config service {self.address} did not answer within {self.timeout_s:g} s: whether the write was stored "
            "is not known"
        )

    def silent(self) -> UnavailableError:
        """The error of any other call that was not answered in time."""
        return UnavailableError(f"config service {self.address} did not answer within {self.timeout_s:g} s")

    def error(self, error: grpc.aio.AioRpcError) -> RingcastError:
        """What the service refused with, or a sentence that says it can't be reached."""
        if error.details() == StatusLostError.SAID:
            return StatusLostError()
        if any(key == names.GRPC_ERROR_KEY for key, _ in error.trailing_metadata() or ()):
            return error_from_rpc(error)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self.silent()
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(f"config service {self.address} can't be reached: {cause(error.details())}")
        return error_from_rpc(error)
