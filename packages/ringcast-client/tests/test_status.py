"""What an instance of the service says of itself."""

from __future__ import annotations

import time

from ringcast_client import ConfigServiceClient


async def test_an_instance_says_how_it_is_and_how_nats_is(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    status = await client.service_status()
    assert status.version
    assert abs(status.now_ms / 1000 - time.time()) < 60
    assert (status.not_served, status.problems, status.replicas) == ((), {}, 1)
    events = next(each for each in status.streams if (each.store, each.kind) == (store_name, "events"))
    assert 0 < events.max_bytes == events.wanted_bytes
    assert (events.refuses, events.consumer_limit, events.differs, events.problem) == (False, 1_000, (), "")
    assert 0 <= events.age_ms < 60_000
    # The account was read when the service started.
    assert status.jetstream is not None
    account = status.jetstream
    assert (account.consumer_limit, account.disk_limit, account.stream_limit, status.jetstream_problem) == (0, 0, 0, "")
