"""Streams that a newer build has made are left as they are, and one that was lost goes on above its revisions."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import msgspec
import nats
import pytest
from nats.js.api import StreamConfig
from ringcast_config_service.nats import streams
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.nats.streams import StreamSizes, layout_of
from ringcast_config_service.telemetry import Telemetry
from ringcast_testkit import NatsServer
from ringcast_wire import Strategy, limits, names

Bench = Any  # of conftest.py

SMALL = StreamSizes(
    events_max_bytes=limits.MIB,
    dead_letters_max_bytes=limits.MIB,
    members_max_bytes=limits.MIB,
    leases_max_bytes=limits.MIB,
)


async def test_a_stream_of_a_newer_build_is_left_as_it_is(
    sqlite_bench: Bench,
    new_store: Any,
    nats_server: NatsServer,  # of this test alone: the bucket of leases is everybody's
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    nc = await nats.connect(nats_server.url)
    try:
        js = nc.jetstream()
        provisioner = Provisioner(
            js, sqlite_bench.repo.stores, replicas=1, interval_s=30, sizes=SMALL, telemetry=Telemetry()
        )
        store = await sqlite_bench.repo.stores.create_store(new_store("s"))
        await provisioner.ensure(store)
        bucket = f"KV_{names.nodes_bucket(store.name)}"
        with monkeypatch.context() as newer:
            newer.setattr(streams, "LAYOUT", 2)
            newer.setattr(streams, "NODE_TTL_S", 3_600.0)
            await provisioner.ensure(store)
            config = (await js.stream_info(bucket)).config
            assert (config.max_age, layout_of(config)) == (3_600, 2)
        for _ in range(2):
            await provisioner.ensure(store)
        config = (await js.stream_info(bucket)).config
        assert (config.max_age, layout_of(config)) == (3_600, 2)
    finally:
        await nc.close()
    said = [record.getMessage() for record in caplog.records if "newer_stream" in record.getMessage()]
    assert f"event=provision.newer_stream stream={bucket} layout=2 known=1" in said
    assert len(said) == len(set(said))


@pytest.mark.parametrize(("said", "layout"), [("7", 7), ("", 1), ("x", 1), ("-1", 1), ("²", 1), ("9" * 100, 1)])
def test_what_is_no_layout_counts_as_the_first(said: str, layout: int) -> None:
    assert layout_of(StreamConfig(metadata={"ringcast.layout": said})) == layout
    assert layout_of(StreamConfig()) == 1


async def test_a_bucket_of_owners_that_was_lost_goes_on_above_its_revisions(
    sqlite_bench: Bench, new_store: Any, nats_server: NatsServer
) -> None:
    """Tokens are revisions of it, and databases of applications refuse older ones."""
    sticky = new_store("sticky")
    settings = msgspec.structs.replace(
        sticky.settings, strategy=Strategy.STICKY, lease_ttl_ms=10_000, call_bound_ms=1_000
    )
    sticky = await sqlite_bench.repo.stores.create_store(replace(sticky, settings=settings))
    bucket = names.owners_bucket(sticky.name)
    nc = await nats.connect(nats_server.url)
    try:
        js, last = nc.jetstream(), 0
        provisioner = Provisioner(
            js, sqlite_bench.repo.stores, replicas=1, interval_s=30, sizes=SMALL, telemetry=Telemetry()
        )
        for _ in range(3):
            await provisioner.ensure(sticky)
            for _ in range(20):
                stored = await js.publish(f"$KV.{bucket}.{names.load_key('w')}", b"{}")
                assert stored.seq > last
                last = stored.seq
            await js.delete_stream(f"KV_{bucket}")
    finally:
        await nc.close()
