"""A short-lived NATS connection for tools: no reconnecting, clear errors, and one-off reads of buckets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from ringcast_wire import ChunkAssembler, UnavailableError, names, take_answer, without_passwords
from ringcast_wire.bucket_reads import read_newest, read_sessions
from ringcast_wire.buckets import EXPECTED, WRONG_SEQUENCE, StoredRecord, fixed, subject_of

from ringcast._bus.bus import Message
from ringcast._common.config import resolve_jetstream_api, resolve_login

ToolBus: TypeAlias = Client
"""What :func:`open_bus` opens."""


@asynccontextmanager
async def open_bus(servers: Sequence[str], *, timeout_s: float, name: str) -> AsyncIterator[Client]:
    """Connects, and closes at the end. The login is read from the environment, as for a worker.

    Raises:
        InvalidInputError: the login can't be used.
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
    except (nats.errors.TimeoutError, nats.errors.ConnectionClosedError) as error:
        raise UnavailableError(f"NATS at {shown} did not answer: {error}") from error
    except (nats.errors.NoRespondersError, nats.js.errors.ServiceUnavailableError) as error:
        raise UnavailableError(f"NATS at {shown} has no JetStream: {error}") from error
    finally:
        await client.close()


@asynccontextmanager
async def answered_within(servers: Sequence[str], timeout_s: float) -> AsyncIterator[None]:
    """Bounds requests that may wait for ever.

    Raises:
        UnavailableError: they took longer than ``timeout_s``; the message names the servers.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise UnavailableError(f"NATS at {without_passwords(servers)} did not answer within {timeout_s:g} s") from None


async def read_bucket(nc: Client, bucket: str, keys: str = ">", *, timeout_s: float) -> dict[str, bytes] | None:
    """What is in a bucket now under the keys that match, or ``None`` when there is no such bucket.

    As :func:`read_bucket_entries`, without the revisions.
    """
    entries = await read_bucket_entries(nc, bucket, keys, timeout_s=timeout_s)
    return {key: data for key, (_, data) in entries.items()} if entries is not None else None


async def read_bucket_entries(
    nc: Client, bucket: str, keys: str = ">", *, timeout_s: float
) -> dict[str, tuple[int, bytes]] | None:
    """Revision and value of each entry of a bucket whose key matches, or ``None`` when there is no such bucket.

    As :func:`read_bucket_revisions`, without the entries that are gone.
    """
    entries = await read_bucket_revisions(nc, bucket, keys, timeout_s=timeout_s)
    if entries is None:
        return None
    return {key: (revision, data) for key, (revision, data) in entries.items() if data is not None}


async def read_bucket_revisions(
    nc: Client, bucket: str, keys: str = ">", *, timeout_s: float
) -> dict[str, tuple[int, bytes | None]] | None:
    """Revision and value of each key of a bucket that matches, or ``None`` when there is no such bucket.

    The value of a key whose entry was deleted is ``None``: a compare-and-set has to name the revision of its marker.
    The prefix of the JetStream API is read from the environment, as for a worker. May wait for ever: bound it.

    Raises:
        UnavailableError: for half of ``timeout_s`` only servers that lag behind have answered, or one refuses.
    """
    entries = await read_stored_entries(nc, bucket, keys, timeout_s=timeout_s)
    return {key: (entry.revision, entry.data) for key, entry in entries.items()} if entries is not None else None


async def read_stored_entries(
    nc: Client, bucket: str, keys: str = ">", *, timeout_s: float
) -> dict[str, StoredRecord] | None:
    """As :func:`read_bucket_revisions`, and when each entry was stored."""
    api = resolve_jetstream_api()
    found = await read_newest(nc, bucket, keys, api=api, answer_s=timeout_s, patience_s=timeout_s / 2)
    if found is None:
        return None
    return {key: record if record.data else record._replace(data=None) for key, record in found.items()}


async def live_sessions(
    nc: Client, store: str, lease_ttl_ms: int, workers: Collection[str], *, timeout_s: float
) -> dict[str, bytes]:
    """As :func:`ringcast_wire.bucket_reads.read_sessions`."""
    api = resolve_jetstream_api()
    return await read_sessions(nc, store, lease_ttl_ms, workers, api=api, answer_s=timeout_s, patience_s=timeout_s / 2)


async def write_entry(nc: Client, bucket: str, key: str, value: bytes, *, last: int, timeout_s: float) -> bool:
    """Writes an entry if it is at revision ``last``; says whether it was.

    Raises:
        UnavailableError: the bucket does not take it.
    """
    js, headers = nc.jetstream(timeout=timeout_s), {EXPECTED: fixed(last)}
    try:
        await js.publish(subject_of(bucket, key), value, headers=headers)
    except nats.js.errors.APIError as error:
        if error.err_code in WRONG_SEQUENCE:
            return False
        raise UnavailableError(f"bucket {bucket} does not take {key}: {error}") from error
    return True


async def ask(nc: Client, subject: str, *, timeout_s: float) -> Message | None:
    """The answer to a request without a body; ``None`` if nothing answers."""
    try:
        return await nc.request(subject, timeout=timeout_s)
    except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
        return None


async def fetch(nc: Client, subject: str, *, timeout_s: float) -> bytes:
    """The whole answer of a config service to a fetch without a body.

    Raises:
        UnavailableError: no service answers, or not within ``timeout_s``.
        RingcastError: what the service refused with, or a damaged answer.
    """
    inbox, parts = nc.new_inbox(), ChunkAssembler()
    answers = await nc.subscribe(inbox)
    try:
        async with asyncio.timeout(timeout_s):
            await nc.publish(subject, reply=inbox)
            async for message in answers.messages:
                if (body := take_answer(parts, message.headers, message.data)) is not None:
                    return body
    except TimeoutError:
        pass
    finally:
        await answers.unsubscribe()
    raise UnavailableError(f"no config service answered {subject} within {timeout_s:g} s")


async def last_event(nc: Client, store: str, key: str, partition: int, *, timeout_s: float) -> tuple[bytes, str] | None:
    """The newest event of a partition that its stream has, and its message id; ``None`` if there is none."""
    js = nc.jetstream(prefix=resolve_jetstream_api(), timeout=timeout_s)
    stream, subject = names.notify_stream(store), names.notify_subject(store, key, partition)
    try:
        found = await js.get_last_msg(stream, subject, direct=True)
    except (nats.js.errors.NotFoundError, nats.errors.NoRespondersError):
        return None
    return found.data or b"", (found.headers or {}).get(names.HEADER_MSG_ID, "")


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or "no answer in time"
