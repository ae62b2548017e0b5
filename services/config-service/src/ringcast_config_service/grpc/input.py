"""How a call ends with an error, and how a message goes to a client that may not read it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

import grpc
import grpc.aio
from ringcast_service import Context, refuse
from ringcast_wire import EventLog, InternalError, RingcastError, UnavailableError

T = TypeVar("T")

log = EventLog(logging.getLogger(__name__))

SEND_TIMEOUT_S: Final = 60.0
"""How long a client may leave a message unread that it has no room for."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Takes the place of a request that is no message, such as one with text that is not UTF-8, or for which its
    principal lacks a role."""

    error: RingcastError


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
    """Ends a call with the status of an error; an unforeseen one is logged, and the client gets its name only."""
    if isinstance(error, grpc.aio.AbortError | grpc.RpcError):
        raise error
    if not isinstance(error, RingcastError):
        log.error("call.failed", exc_info=error)
        error = unforeseen(error)
    await refuse(context, error, cause=cause)


def unforeseen(error: Exception) -> InternalError:
    """What a client gets of a bug: no details, they are in the log."""
    return InternalError(f"the call failed: {type(error).__name__}")


async def answer(context: Context, call: Awaitable[T]) -> T:
    """The result of a call, or the end of the RPC with the status of what it raised."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001  # mapped to a status, logged there
        await abort(context, error)
