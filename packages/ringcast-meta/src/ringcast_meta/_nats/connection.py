"""A connection to NATS of a store's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import nats
import nats.errors
from nats.aio.client import Client
from ringcast_wire import NatsLogin, UnauthenticatedError, UnavailableError, without_passwords

_FOR_EVER: Final = -1
_REFUSED: Final = "authorization violation"


async def open_connection(
    servers: Sequence[str],
    login: NatsLogin,
    *,
    inbox_prefix: str,
    timeout_s: float,
    on_error: Callable[[Exception], Awaitable[None]],
) -> Client:
    """Connects to one of the servers; from then on the connection comes back for ever.

    ``timeout_s``: for one try. Each server is tried twice.

    Raises:
        UnauthenticatedError: a server refuses the login.
        UnavailableError: none can be reached.
    """
    causes: list[Exception] = []

    async def keep(error: Exception) -> None:
        if connection is None:
            causes.append(error)
        else:
            await on_error(error)

    connection: Client | None = None
    try:
        found = await nats.connect(
            list(servers),
            inbox_prefix=inbox_prefix,
            connect_timeout=timeout_s,
            # Negative or 0 would mean that an address where nothing listens is tried for ever, uncancellably.
            max_reconnect_attempts=1,
            reconnect_time_wait=0.2,
            error_cb=keep,
            **login.connect_options(servers),
        )
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise _unreachable(servers, [*causes, error]) from error
    connection = found
    connection.options["max_reconnect_attempts"] = _FOR_EVER
    return connection


def _unreachable(servers: Sequence[str], causes: list[Exception]) -> UnauthenticatedError | UnavailableError:
    shown = without_passwords(servers)
    for cause in causes:
        if isinstance(cause, nats.errors.AuthorizationError) or _REFUSED in str(cause).lower():
            return UnauthenticatedError(f"NATS at {shown} refuses the login, or asks for one that was not given")
    # The last one is that there is no server left to try.
    cause = next((each for each in causes if not isinstance(each, nats.errors.NoServersError)), causes[-1])
    why = "connection refused" if isinstance(cause, ConnectionRefusedError) else str(cause) or "no answer in time"
    return UnavailableError(f"NATS at {shown} can't be reached: {why}")
