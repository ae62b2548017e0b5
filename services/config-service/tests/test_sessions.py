"""Which workers of a store of exclusive ownership live, as a proof asks: by the sessions that NATS has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client
from ringcast_config_service.nats.streams import StreamSizes, owners
from ringcast_testkit import until_done
from ringcast_wire import limits, names
from ringcast_wire.bucket_reads import read_sessions, server_time_s, session_counts_s

LONG_MS, SHORT_MS = 3_600_000, 1


@pytest.fixture
async def nc(nats_url: str, store_name: str) -> AsyncIterator[Client]:
    """A connection to a server that has the bucket of owners of the store."""
    client = await nats.connect(nats_url)
    await client.jetstream().add_stream(owners(store_name, StreamSizes(members_max_bytes=limits.MIB)))
    yield client
    await client.close()


class TooEarlyError(Exception):
    """The server's clock has not got there yet."""


async def test_a_session_counts_until_it_is_over_and_its_record_stays(nc: Client, store_name: str) -> None:
    bucket = names.owners_bucket(store_name)
    sessions = await nc.jetstream().key_value(bucket)
    for worker in ("a", "b", "left"):
        await sessions.put(names.session_key(worker), worker.encode(), validate_keys=False)
    await sessions.delete(names.session_key("left"), validate_keys=False)
    wanted = ["a", "left", "never-was"]
    assert await read_sessions(nc, store_name, LONG_MS, wanted) == {"a": b"a"}
    written_s = await server_time_s(nc, bucket)

    async def is_over() -> None:
        if await server_time_s(nc, bucket) <= written_s + session_counts_s(SHORT_MS):
            raise TooEarlyError

    await until_done(is_over, TooEarlyError)
    assert await read_sessions(nc, store_name, SHORT_MS, wanted) == {}
    assert await read_sessions(nc, store_name, LONG_MS, wanted) == {"a": b"a"}
    await sessions.put(names.session_key("a"), b"again", validate_keys=False)
    assert await read_sessions(nc, store_name, LONG_MS, ["a", "b"]) == {"a": b"again", "b": b"b"}


async def test_where_no_worker_is_named_nothing_is_asked(nc: Client) -> None:
    await nc.close()
    assert await read_sessions(nc, "no-store", LONG_MS, []) == {}
