"""How a client calls the config service: its channel, turns, time-outs, spans and errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from ringcast_wire import (
    LimitExceededError,
    MismatchError,
    OutcomeUnknownError,
    RingcastError,
    UnavailableError,
)
from ringcast_wire.grpc import ServiceLogin, error_from_rpc, says_elsewhere
from ringcast_wire.tracing import Tracing, make_tracing

from ringcast_client._bulk.write import StatusLostError
from ringcast_client._calls.endpoints import Endpoint, Endpoints
from ringcast_client._common.addresses import Addresses, source_of
from ringcast_client._common.input import cause, is_said

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

MAX_CALLS: Final = 128
"""Single calls of one client that are under way at once; further ones wait for their turn. The service refuses a
thousand."""
_READS: Final = frozenset(
    {
        *("Get", "Heads", "List", "History", "ListAsOf", "Diff"),
        *("GetStore", "GetStorePolicy", "ListStores", "WhoAmI", "GetServiceStatus"),
        *("ListRoles", "ListAudit", "ListDeadLetters", "CheckSchema", "ListSchemas", "GetSchema"),
        *("ListReleases", "GetRelease", "ListReleaseRows", "ProveRelease", "GetReleaseCertificate", "ListRowReleases"),
    }
)
"""They change nothing that a second one would change again, so they may be made again wherever they have failed."""
_NOT_SENT: Final = re.compile(r"failed to connect to all addresses|connections to all backends failing", re.IGNORECASE)
"""What gRPC says of a call that has not left this process."""
_BROKEN: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)
"""What a connection that breaks, or a proxy, ends a call with whose request the service may have."""


class Method:
    """A method of the service, called at the instance that calls go to."""

    def __init__(self, endpoints: Endpoints, name: str) -> None:
        self._endpoints = endpoints
        self.name = name

    def __call__(self, *words: Any, **settings: Any) -> Any:
        return getattr(self._endpoints.current.stub, self.name)(*words, **settings)


class Methods:
    """The methods by their names."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def __getattr__(self, name: str) -> Method:
        return Method(self._endpoints, name)


class Calls:
    """Calls to the config service, between :meth:`open` and :meth:`close`. Any number of them may be made at once.

    A call that an instance refuses since it drains is made at another, within its time-out; with one address over a new
    connection. Where there are several addresses, a call that could not be sent goes to another as well, and so do
    reads when the connection breaks. After a call that was not answered in time, the next ones go to another.

    ``reason``: why, as each of them says; empty: nothing.
    """

    def __init__(
        self,
        addresses: Addresses,
        login: ServiceLogin,
        timeout_s: float,
        tracer_provider: TracerProvider | None,
        *,
        reason: str = "",
    ) -> None:
        self.timeout_s = timeout_s
        self.tracing: Tracing | None = None
        self._endpoints = Endpoints(addresses, login, reason)
        self._fixed = "" if callable(addresses) else ",".join(source_of(addresses)())
        self._tracer_provider = tracer_provider
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self._methods: Methods | None = None

    @property
    def address(self) -> str:
        """Where the service is; several addresses with commas between."""
        return self._fixed or self._endpoints.description

    def open(self) -> None:
        """Makes the channels, which connect at the first call."""
        self._endpoints.open()
        self._methods = Methods(self._endpoints)
        self.tracing = make_tracing("ringcast_client", self._tracer_provider)

    async def close(self) -> None:
        """Ends the calls that are under way, and the connections. Calling it twice is harmless."""
        self._methods = None
        await self._endpoints.close()

    @property
    def rpc(self) -> Any:
        """The methods of the service, to pass to :meth:`unary`, :meth:`write` and :meth:`stream`."""
        if self._methods is None:
            raise RuntimeError("the client is not open: use it as `async with ConfigServiceClient() as client`")
        return self._methods

    def trace_headers(self) -> tuple[tuple[str, str], ...] | None:
        """The headers that carry the current span to the service, if there is one."""
        span = self.tracing.here() if self.tracing is not None else None
        return tuple(self.tracing.headers(span).items()) if self.tracing is not None and span is not None else None

    async def write(self, span: str, method: Method, request: Any) -> Any:
        """A write, in a span of its own below the current one."""
        if self.tracing is None:
            return await self.unary(method, request, late=self.unknown)
        facts = {"store": request.store, "key": getattr(request, "key", "")}
        with self.tracing.current(span, facts, kind="CLIENT"):
            return await self.unary(method, request, self.trace_headers(), late=self.unknown)

    async def unary(
        self,
        method: Method,
        request: Any,
        metadata: tuple[tuple[str, str], ...] | None = None,
        *,
        late: Callable[[], UnavailableError] | None = None,
        more_s: float = 0.0,
    ) -> Any:
        """One call; ``late`` makes what is raised when it is not answered in time: in the time-out and ``more_s``. With
        it a call whose connection broke is ``OutcomeUnknownError`` too, unless it was not sent.

        Where the service asks to come again after a time, and that is within the time-out, the call waits and is made
        again: nothing of it was done.
        """
        loop, deadline_s, refused = asyncio.get_running_loop(), None, None
        while True:
            async with self._turns:
                if deadline_s is None:  # the time-out begins with the call's first turn
                    deadline_s = loop.time() + self.timeout_s + more_s
                elif refused is not None and loop.time() + self._endpoints.enough_s >= deadline_s:
                    raise refused
                endpoint = await self._endpoints.settle(deadline_s)
                try:
                    return await method(request, timeout=_left_s(deadline_s), metadata=metadata)
                except grpc.aio.AioRpcError as error:
                    if self._goes_elsewhere(method.name, endpoint, error, deadline_s):
                        refused = self.error(error, method)
                    else:
                        await asyncio.sleep(self._wait_s(method, endpoint, error, deadline_s, late))
            if refused is not None:
                await asyncio.sleep(self._endpoints.pause_s)  # without a turn, which calls of others may need

    def _wait_s(
        self,
        method: Method,
        endpoint: Endpoint,
        error: grpc.aio.AioRpcError,
        deadline_s: float,
        late: Callable[[], UnavailableError] | None,
    ) -> float:
        """After how long a call that has failed is made again, as the service asks; otherwise raises what it failed
        with."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._endpoints.left(endpoint)  # it hangs, perhaps: the next calls go to another
            if late is not None:
                raise late() from error
        refusal = self.error(error, method)
        if late is not None and _may_be_done(error):
            raise OutcomeUnknownError(f"{refusal}: whether the write was stored is not known") from error
        wait_s = refusal.retry_after_s
        if wait_s is None or not isinstance(refusal, LimitExceededError):
            raise refusal from error
        if asyncio.get_running_loop().time() + wait_s >= deadline_s:
            raise refusal from error
        return wait_s

    async def stream(self, method: Method, request: object) -> AsyncGenerator[Any, None]:
        """The messages of a streamed answer, each within the time-out."""
        deadline_s = asyncio.get_running_loop().time() + self.timeout_s
        begun = False
        while True:
            endpoint = await self._endpoints.settle(deadline_s)
            call = method(request)
            try:
                while True:
                    async with asyncio.timeout(self.timeout_s):
                        message = await call.read()
                    if message is grpc.aio.EOF:
                        return
                    begun = True
                    yield message
            except grpc.aio.AioRpcError as error:
                if begun or not self._goes_elsewhere(method.name, endpoint, error, deadline_s):
                    raise self.error(error, method) from error
                await asyncio.sleep(self._endpoints.pause_s)
            except TimeoutError:
                self._endpoints.left(endpoint)
                raise self.silent() from None
            finally:
                call.cancel()

    async def items(self, method: Method, request: object, field: str = "rows") -> AsyncGenerator[Any, None]:
        """What the messages of a streamed answer have in this field, one by one."""
        async with aclosing(self.stream(method, request)) as replies:
            async for reply in replies:
                for item in getattr(reply, field):
                    yield item

    def streams(self, name: str, metadata: tuple[tuple[str, str], ...] | None = None) -> Streams:
        """What opens the streams of one writer, one after the other."""
        return Streams(self, self._endpoints, getattr(self.rpc, name), metadata)

    def _goes_elsewhere(self, name: str, endpoint: Endpoint, error: grpc.aio.AioRpcError, deadline_s: float) -> bool:
        """Whether a call that has failed is to be made at another instance, after ``pause_s`` of the endpoints."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        if is_said(error):
            if not says_elsewhere(error):
                return False
            self._endpoints.refused(endpoint)
        elif self._endpoints.several and (name in _READS or _NOT_SENT.search(error.details() or "") is not None):
            self._endpoints.left(endpoint)
        else:
            return False
        needed_s = self._endpoints.pause_s + self._endpoints.enough_s
        return asyncio.get_running_loop().time() + needed_s < deadline_s

    def unknown(self) -> OutcomeUnknownError:
        """The error of a write that was sent and not answered in time."""
        return OutcomeUnknownError(
            f"config service {self.address} did not answer within {self.timeout_s:g} s: whether the write was stored "
            "is not known"
        )

    def silent(self) -> UnavailableError:
        """The error of any other call that was not answered in time."""
        return UnavailableError(f"config service {self.address} did not answer within {self.timeout_s:g} s")

    def error(self, error: grpc.aio.AioRpcError, method: Method | None = None) -> RingcastError:
        """What the service refused with, or a sentence that says it can't be reached, or does not know the method."""
        if error.details() == StatusLostError.SAID:
            return StatusLostError()
        if is_said(error):
            return error_from_rpc(error)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self.silent()
        if error.code() is grpc.StatusCode.UNIMPLEMENTED and method is not None:
            return MismatchError(
                f"config service {self.address} does not know the call {method.name}: it is older than this client"
            )
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(f"config service {self.address} can't be reached: {cause(error.details())}")
        return error_from_rpc(error)


def _may_be_done(error: grpc.aio.AioRpcError) -> bool:
    """Whether the service may have had a call that failed."""
    return error.code() in _BROKEN and not is_said(error) and not _NOT_SENT.search(error.details() or "")


def _left_s(deadline_s: float) -> float:
    return max(0.001, deadline_s - asyncio.get_running_loop().time())


class Streams:
    """The streams of one writer. :meth:`settle` is awaited before each."""

    def __init__(
        self, calls: Calls, endpoints: Endpoints, method: Method, metadata: tuple[tuple[str, str], ...] | None
    ) -> None:
        self._calls = calls
        self._endpoints = endpoints
        self._method = method
        self._metadata = metadata
        self._endpoint: Endpoint | None = None

    async def settle(self) -> None:
        """Waits until an instance is connected, where there are several.

        Raises:
            UnavailableError: none is within the time-out.
        """
        self._endpoint = await self._endpoints.settle(asyncio.get_running_loop().time() + self._calls.timeout_s)

    def open(self) -> Any:
        """A stream of its own."""
        return self._method(metadata=self._metadata)

    def left(self) -> bool:
        """The instance does not answer. Whether there is another one, to which the next stream goes."""
        if self._endpoint is not None:
            self._endpoints.left(self._endpoint)
        return self._endpoints.several

    def error(self, error: grpc.aio.AioRpcError) -> RingcastError:
        """What a stream broke with; the next goes to another instance if this one says so."""
        found = self._calls.error(error)
        if isinstance(found, UnavailableError) and self._endpoint is not None:
            (self._endpoints.refused if found.elsewhere else self._endpoints.left)(self._endpoint)
        return found
