"""A connection to NATS of a store's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import nats.errors
from ringcast_wire import NatsLogin, UnauthenticatedError, UnavailableError, without_passwords

from ringcast_meta.nats_client import LastingClient

_FOR_EVER: Final = -1
_REFUSED: Final = "authorization violation"


async def open_connection(
    servers: Sequence[str],
    login: NatsLogin,
    *,
    inbox_prefix: str,
    timeout_s: float,
    on_error: Callable[[Exception], Awaitable[None]],
) -> LastingClient:
    """Connects to one of the servers; from then on the connection comes back for ever, also with another login where
    the files of ``login`` have one.

    ``timeout_s``: for one try. Each server is tried twice.

    Raises:
        UnauthenticatedError: a server refuses the login.
        UnavailableError: none can be reached.
    """
    causes: list[Exception] = []

    async def keep(error: Exception) -> None:
        if connected:
            await on_error(error)
        else:
            causes.append(error)

    connected = False
    connection = LastingClient()
    try:
        await connection.connect(
            list(servers),
            inbox_prefix=inbox_prefix,
            connect_timeout=timeout_s,  # type: ignore[arg-type]  # the stubs know no parts of a second
            # Negative or 0 would mean that an address where nothing listens is tried for ever, uncancellably.
            max_reconnect_attempts=1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]
            error_cb=keep,
            **login.connect_options(servers),
        )
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise _unreachable(servers, [*causes, error]) from error
    connected = True
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
