"""A short-lived NATS connection for tools: no reconnecting, clear errors, and one-off reads of buckets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_wire import UnavailableError, names, without_passwords

from ringcast._config import resolve_login


@asynccontextmanager
async def open_bus(servers: Sequence[str], *, timeout_s: float, name: str) -> AsyncIterator[Client]:
    """Connects, and closes at the end. The environment says how to log in, as it does for a worker.

    Raises:
        InvalidInputError: what it says can't be used.
        UnavailableError: no server can be reached within ``timeout_s``, or it does not answer while it is used.
    """
    shown = without_passwords(servers)
    options = resolve_login().connect_options(servers)
    causes: list[Exception] = []

    async def keep(error: Exception) -> None:  # without it nats-py would log the error as well
        causes[:] = [error]

    try:
        async with asyncio.timeout(timeout_s):
            client = await nats.connect(
                list(servers),
                name=name,
                inbox_prefix=names.TOOLS_INBOX_PREFIX,
                **options,
                connect_timeout=max(1, int(timeout_s)),
                allow_reconnect=False,
                max_reconnect_attempts=1,  # also counts the attempts of the first connection; 0 is "for ever"
                reconnect_time_wait=0.1,
                error_cb=keep,
            )
    except (OSError, TimeoutError, nats.errors.Error) as error:
        raise UnavailableError(f"NATS at {shown} can't be reached: {_reason([*causes, error][0])}") from error
    try:
        yield client
    except (nats.errors.TimeoutError, nats.errors.ConnectionClosedError, nats.errors.NoRespondersError) as error:
        raise UnavailableError(f"NATS at {shown} did not answer: {error}") from error
    except nats.js.errors.ServiceUnavailableError as error:
        raise UnavailableError(f"NATS at {shown} has no JetStream: {error}") from error
    finally:
        await client.close()


async def read_bucket(js: JetStreamContext, bucket: str, keys: str = ">") -> dict[str, bytes] | None:
    """What is in a bucket now under the keys that match, or ``None`` when there is no such bucket."""
    try:
        kv = await js.key_value(bucket)
    except nats.js.errors.NotFoundError:
        return None
    watcher = await kv.watch(keys, ignore_deletes=True)
    entries: dict[str, bytes] = {}
    try:
        async for entry in watcher:
            if entry is None:  # the end of what was there when the watch began
                break
            if entry.value:
                entries[entry.key] = entry.value
    finally:
        await watcher.stop()
    return entries


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or "no answer in time"
