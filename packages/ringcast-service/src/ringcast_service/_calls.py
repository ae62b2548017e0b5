"""Which requests of gRPC are taken, and how a call ends with an error."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from ringcast_wire import EventLog, MismatchError, RingcastError
from ringcast_wire.grpc import STATUS, error_trailers

log = EventLog(logging.getLogger(__name__))

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_ABORT_TIMEOUT_S: Final = 5.0
"""The status waits behind messages that a client has no room for."""


def check_known(request: Any, what: str) -> None:
    """Refuses a protobuf message with a field that this build does not know: what a newer client wants, a condition of
    a write say, would be left out. A client sends no field that it does not use. ``what``: the server, for the error.

    Raises:
        MismatchError: there is one, in the message or in one inside it.
    """
    size = request.ByteSize()
    request.DiscardUnknownFields()
    if request.ByteSize() != size:
        raise MismatchError(
            f"{request.DESCRIPTOR.name} has a field that this {what} does not know: upgrade it, or leave out of the "
            "call what is new in its client"
        )


async def refuse(
    context: Context, error: RingcastError, *, status: grpc.StatusCode | None = None, cause: Exception | None = None
) -> NoReturn:
    """Ends a call with an error of ours; with another ``status`` than the error's, where one is given."""
    await end_call(context, status or STATUS[error.code], str(error), error_trailers(error), cause=cause)


async def end_call(
    context: Context,
    status: grpc.StatusCode,
    message: str,
    trailers: tuple[tuple[str, str], ...] = (),
    *,
    cause: Exception | None = None,
) -> NoReturn:
    """Ends a call with a status, or by cancelling it where the client does not read the status."""
    try:
        async with asyncio.timeout(_ABORT_TIMEOUT_S):
            await context.abort(status, message, trailers)
    except grpc.aio.AbortError as aborted:
        # gRPC keeps it with the call, and its traceback has the frames that have the call: a cycle of 45 objects, with
        # which a client without a login could make the garbage collector stop all calls for 0.1 s.
        forget: Any = partial(_forget_frames, aborted)  # the stubs want a type that only they know
        context.add_done_callback(forget)
        raise
    except Exception as failed:  # noqa: BLE001  # gRPC raises errors of its own, of no common kind
        # The client does not read (gRPC gives the call up when the connection reaches its age), or is gone.
        log.debug("call.status_unsent", error=repr(failed))
        raise asyncio.CancelledError from cause
    raise AssertionError("abort returned") from cause


def _forget_frames(aborted: grpc.aio.AbortError, _context: Context) -> None:
    aborted.__traceback__ = aborted.__context__ = None
