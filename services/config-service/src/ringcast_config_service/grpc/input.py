"""How a call ends with an error, and how a message goes to a client that may not read it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from ringcast_wire import InternalError, InvalidInputError, RingcastError, UnavailableError
from ringcast_wire.grpc import STATUS, error_trailers

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

SEND_TIMEOUT_S: Final = 60.0
"""How long a client may leave a message unread that it has no room for."""
_ABORT_TIMEOUT_S: Final = 5.0
"""The status waits behind messages that a client has no room for."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Takes the place of a request that is no message, such as one with text that is not UTF-8."""

    error: InvalidInputError


async def send(context: Context, message: object) -> None:
    """Sends a message of a stream.

    Raises:
        UnavailableError: the client has read nothing for a minute.
    """
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await context.write(message)
    except TimeoutError as error:
        raise UnavailableError(f"nothing was read for {SEND_TIMEOUT_S:g} s: the stream was ended") from error


async def abort(context: Context, error: Exception, cause: Exception | None = None) -> NoReturn:
    """Ends a call with the status of an error; one that nobody foresaw is logged and told by its name only."""
    if isinstance(error, grpc.aio.AbortError | grpc.RpcError):
        raise error
    if not isinstance(error, RingcastError):
        log.error("a call failed", exc_info=error)
        error = unforeseen(error)
    try:
        async with asyncio.timeout(_ABORT_TIMEOUT_S):
            await context.abort(STATUS[error.code], str(error), error_trailers(error))
    except grpc.aio.AbortError as aborted:
        # gRPC keeps it with the call, and its traceback has the frames that have the call: a cycle of 45 objects, with
        # which a client without a login could make the garbage collector stop all calls for 0.1 s.
        forget: Any = partial(_forget_frames, aborted)  # the stubs want a type that only they know
        context.add_done_callback(forget)
        raise
    except Exception as failed:  # noqa: BLE001  # gRPC raises errors of its own, of no common kind
        # The client does not read (gRPC gives the call up when the connection reaches its age), or is gone.
        log.debug("a call ended without its status: %r", failed)
        raise asyncio.CancelledError from cause
    raise AssertionError("abort returned") from cause


def _forget_frames(aborted: grpc.aio.AbortError, _context: Context) -> None:
    aborted.__traceback__ = aborted.__context__ = None


def unforeseen(error: Exception) -> InternalError:
    """What a client is told of a bug: no details, they are in the log."""
    return InternalError(f"the call failed: {type(error).__name__}")
