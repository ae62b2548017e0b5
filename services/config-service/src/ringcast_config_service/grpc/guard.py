"""What stands between gRPC and the methods of a service: admission, then one request within its time, then the roles of
its principal, then the call."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from ringcast_service import Context, check_known
from ringcast_wire import (
    InvalidInputError,
    MismatchError,
    PermissionDeniedError,
    RingcastError,
    UnauthenticatedError,
    UnavailableError,
)
from ringcast_wire.grpc import SERVICE_NAME

from ringcast_config_service.access import Access
from ringcast_config_service.caller import Caller
from ringcast_config_service.grpc.admission import Admission, CallKind
from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.draining import Draining
from ringcast_config_service.grpc.input import Unreadable, abort, send
from ringcast_config_service.repository import AuditFact

_READ_TIMEOUT_S: Final = 10.0
"""How long the one request of a call may be on its way."""
LOGIN_S: Final = 1.0
"""How long the login of a call counts before it is looked at again, with the next request of the stream."""


Check = Callable[[Caller, Any], AuditFact | None]
"""Raises :class:`PermissionDeniedError` where a caller may not make a request. What it returns has to be in the audit
log before the call goes on."""
Note = Callable[[AuditFact], Awaitable[None]]


class GuardedServer:
    """What generated code registers the methods of a service with.

    gRPC sees every method as one that takes a stream, so that nothing of a request is read before the call is admitted:
    for a method with one request it would read that first, up to the largest message. What is not read stays within the
    window of the connection's flow control.

    A request that is no message (such as one with text that is not UTF-8) gets INVALID_ARGUMENT and a sentence, where
    gRPC would say UNKNOWN and log a traceback. A stream gets the :class:`Unreadable` in its turn, and raises the error
    itself. The same with a request for which the principal lacks a role, or with a field that this build does not know:
    each message of a stream is looked at.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        admission: Admission,
        access: Access,
        draining: Draining,
        kinds: Mapping[str, CallKind],
    ) -> None:
        self._server = server
        self._admission = admission
        self._access = access
        self._draining = draining
        self._kinds = kinds

    def add_generic_rpc_handlers(self, _handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """The same methods in another form; :meth:`add_registered_method_handlers` registers them."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        """Registers the methods of a service; those without a kind are single calls."""
        handlers = {
            name: self._guarded(
                handler,
                self._kinds.get(f"{service}/{name}", CallKind.UNARY),
                partial(self._access.check, name) if service == SERVICE_NAME else _no_check,
                _known(handler.request_deserializer) if service == SERVICE_NAME else handler.request_deserializer,
            )
            for name, handler in methods.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _guarded(self, handler: Any, kind: CallKind, check: Check, read: Callable[[bytes], Any]) -> Any:
        method = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        one = None if handler.request_streaming else self._with_one_request(method, kind)

        def serve(requests: Any, context: Context) -> Any:
            login = partial(self._admission.check_login, context, kind)
            return (one or method)(requests, _Checked(context, login, check, self._access.break_glass))

        wire = _tolerant(read), handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(serve, kind), *wire)
        return grpc.stream_unary_rpc_method_handler(self._single(serve, kind), *wire)

    def _single(self, serve: Callable[..., Any], kind: CallKind) -> Callable[..., Any]:
        async def guarded(requests: Any, context: Context) -> Any:
            await self._admit(context, kind)
            return await serve(requests, context)

        return guarded

    def _streaming(self, serve: Callable[..., Any], kind: CallKind) -> Callable[..., Any]:
        async def guarded(requests: Any, context: Context) -> None:
            await self._admit(context, kind)
            answers = serve(requests, context)
            try:
                async with self._draining.bounded(kind):
                    if not inspect.isasyncgen(answers):
                        await answers
                        return
                    async with aclosing(answers):
                        async for answer in answers:
                            await send(context, answer)
            except RingcastError as error:
                await abort(context, error)

        return guarded

    async def _admit(self, context: Context, kind: CallKind) -> None:
        try:
            self._draining.check(kind)
            caller = self._admission.admit(context, kind)
        except RingcastError as error:
            await abort(context, error)
        # Not when the method returns: its answer may wait for a client that does not read.
        done: Any = lambda _: self._admission.leave(kind, caller)  # noqa: E731  # the stubs want what only they know
        context.add_done_callback(done)

    def _with_one_request(self, method: Callable[..., Any], kind: CallKind) -> Callable[..., Any]:
        async def serve(_requests: Any, context: Context) -> Any:
            try:
                async with self._admission.reading(kind, caller_of(context)), asyncio.timeout(_READ_TIMEOUT_S):
                    request = await context.read()
            except TimeoutError as error:
                late = UnavailableError(f"the request did not come within {_READ_TIMEOUT_S:g} s")
                await abort(context, late, error)
            if request is grpc.aio.EOF:
                await abort(context, InvalidInputError("the call came without a request"))
            if isinstance(request, Unreadable):
                await abort(context, request.error)
            return await method(request, context)

        return serve


class _Checked:
    """The context of a call, whose requests are checked as they are read: nothing is done for a token or a role that
    was withdrawn meanwhile."""

    def __init__(self, context: Context, check_login: Callable[[], None], check: Check, note: Note) -> None:
        self._context = context
        self._check_login = check_login
        self._check_login_at = time.monotonic() + LOGIN_S
        self._check = check
        self._note = note
        self._noted: AuditFact | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """The next request; an :class:`Unreadable` where it can't be read, or must not be made."""
        request: Any = await self._context.read()
        if request is grpc.aio.EOF or isinstance(request, Unreadable):
            return request
        try:
            if (now := time.monotonic()) >= self._check_login_at:
                self._check_login_at = now + LOGIN_S
                with suppress(UnavailableError):  # it was valid, and what can't be known now makes it nothing else
                    self._check_login()
            fact = self._check(caller_of(self._context), request)
            if fact is not None and fact != self._noted:  # of a stream, the first message that is about another key
                await self._note(fact)
                self._noted = fact
        except (PermissionDeniedError, UnauthenticatedError, UnavailableError) as error:
            return Unreadable(error)
        return request


def _no_check(_caller: Caller, _request: Any) -> None:
    """Health and reflection need no role."""


def _known(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Takes no request with a field that this build does not know."""

    def deserialize(data: bytes) -> Any:
        request = read(data)
        check_known(request, "config service")
        return request

    return deserialize


def _tolerant(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def deserialize(data: bytes) -> Any:
        try:
            return read(data)
        except MismatchError as error:
            return Unreadable(error)
        except DecodeError as error:
            reason = str(error).rpartition(": ")[2]
            return Unreadable(InvalidInputError(f"the request of {len(data)} bytes can't be read: {reason}"))

    return deserialize
