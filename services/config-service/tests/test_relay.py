"""From the outbox to the stream: repeats, crashes, a broker that goes away or loses its disk."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import nats
import pytest
from nats.js.errors import NotFoundError
from ringcast_config_service.nats import relay as relay_module
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.nats.relay import Relay
from ringcast_config_service.telemetry import Telemetry
from ringcast_testkit import PATIENCE_S, NatsServer, until
from ringcast_wire import MismatchError, RingcastError, StoreSettings, UnavailableError, decode_event, names
from ringcast_wire.grpc import error_from_rpc, pb

Bench = Any  # of conftest.py
Running = Any


async def stored(js: Any, store: str) -> list[tuple[str, int, int]]:
    """What the stream holds: subject, prev and rev of each event, in order."""
    info = await js.stream_info(names.notify_stream(store))
    found = []
    for sequence in range(info.state.first_seq, info.state.last_seq + 1):
        msg = await js.get_msg(names.notify_stream(store), seq=sequence)
        event = decode_event(msg.data)
        found.append((msg.subject, event.prev, event.rev))
    return found


@asynccontextmanager
async def relaying(bench: Bench, url: str, store: Any, *, batch: int = 1000) -> AsyncIterator[tuple[Relay, Any]]:
    """A relay at work, apart from a service."""
    nc = await nats.connect(url)
    js = nc.jetstream()
    provisioner = Provisioner(js, bench.repo.stores, replicas=1, interval_s=30, telemetry=Telemetry())
    await provisioner.ensure(store)
    relay = Relay(bench.repo.events, nc, provisioner, batch=batch, poll_s=0.05, telemetry=Telemetry())
    task = asyncio.create_task(relay.run())
    try:
        yield relay, js
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await nc.close()


@pytest.fixture
async def store(bench: Bench, new_store: Any, store_name: str) -> Any:
    """A store that no other test on the shared NATS server uses."""
    return await bench.repo.stores.create_store(new_store(store_name))


async def write(bench: Bench, store: Any, *rows: str) -> None:
    await bench.group([bench.request(dict.fromkeys(rows, "v"), store=store)])


async def test_events_go_out_in_order_and_leave_the_outbox(bench: Bench, store: Any, nats_url: str) -> None:
    for turn in range(20):
        await write(bench, store, "a", f"r{turn}")
    expected = [(subject, event.prev, event.rev) for subject, event in await bench.events()]
    async with relaying(bench, nats_url, store, batch=7) as (relay, js):
        await relay.flush()
        assert await stored(js, store.name) == expected
    assert await bench.events() == []


async def test_a_write_gives_the_outbox_records_that_it_has_made(bench: Bench) -> None:
    written = await bench.repo.writer.write([bench.request(dict.fromkeys("abcdef", "v"))], 1)
    assert sorted(written.events) == await bench.waiting()
    await bench.repo.events.delete_events([written.events[0].id, 1_000_000])
    assert await bench.waiting() == sorted(written.events[1:])
    (outcome,) = (await bench.repo.writer.write([bench.request({"a": None}, key="none")], 2)).outcomes
    assert isinstance(outcome, RingcastError)


async def test_a_repeated_publish_is_stored_once(bench: Bench, store: Any, nats_url: str) -> None:
    """A relay that died between publishing and deleting: the next one publishes everything again."""
    async with relaying(bench, nats_url, store):
        pass  # makes the stream
    for turn in range(10):
        await write(bench, store, f"r{turn}")
    nc = await nats.connect(nats_url)
    for record in await bench.waiting():
        headers = {names.HEADER_MSG_ID: record.msg_id}
        await nc.jetstream().publish(record.subject, record.payload, headers=headers)
    await nc.close()
    assert len(await bench.events()) == 10
    async with relaying(bench, nats_url, store) as (relay, js):
        await relay.flush()
        found = await stored(js, store.name)
        assert len(found) == len(set(found)) == 10
    assert await bench.events() == []


async def test_two_relays_share_the_work(bench: Bench, store: Any, nats_url: str) -> None:
    for turn in range(200):
        await write(bench, store, f"r{turn}")
    share = relaying(bench, nats_url, store, batch=5)
    async with share as (one, js), relaying(bench, nats_url, store, batch=5) as (two, _):
        await asyncio.gather(one.flush(), two.flush())
        found = await stored(js, store.name)
        assert len(found) == len(set(found)) == 200
    assert await bench.events() == []


async def commit(bench: Bench, relay: Relay, store: Any, *rows: str) -> list[tuple[str, int, int]]:
    """Writes as an instance does, which tells its relay; subject, prev and rev of the events."""
    written = await bench.repo.writer.write(
        [bench.request(dict.fromkeys(rows, "v"), store=store)], next(bench.clock_ms)
    )
    relay.committed(written.events)
    events = [(record.subject, decode_event(record.payload)) for record in written.events]
    return [(subject, event.prev, event.rev) for subject, event in events]


async def test_what_was_just_committed_goes_out_in_order_and_leaves_the_outbox(
    bench: Bench, store: Any, nats_url: str
) -> None:
    async with relaying(bench, nats_url, store, batch=7) as (relay, js):
        await relay.flush()
        expected = [event for turn in range(40) for event in await commit(bench, relay, store, "a", f"r{turn}")]
        await relay.flush()
        assert await stored(js, store.name) == expected
        assert await bench.events() == []


@pytest.mark.parametrize("bound", ["MAX_QUEUED_EVENTS", "MAX_QUEUED_BYTES"])
async def test_what_does_not_fit_the_queue_goes_out_from_the_outbox(
    bench: Bench, store: Any, nats_url: str, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(relay_module, bound, 1)
    async with relaying(bench, nats_url, store) as (relay, js):
        expected = [event for turn in range(20) for event in await commit(bench, relay, store, "a", f"r{turn}")]
        await relay.flush()
        assert sorted(await stored(js, store.name)) == sorted(expected)
    assert await bench.events() == []


async def test_what_another_instance_left_is_found(bench: Bench, store: Any, nats_url: str) -> None:
    """It died after a commit, while this one was at work with nothing of its own left."""
    async with relaying(bench, nats_url, store) as (relay, js):
        await relay.flush()
        subscription = await js.subscribe(names.notify_stream_subjects(store.name))
        await write(bench, store, "a")
        assert decode_event((await subscription.next_msg(timeout=PATIENCE_S)).data).rev == 1


async def test_what_the_broker_refused_goes_out_when_it_takes_it(
    bench: Bench, store: Any, new_store: Any, nats_url: str
) -> None:
    lost = await bench.repo.stores.create_store(new_store(f"{store.name}x"))
    async with relaying(bench, nats_url, store) as (relay, js):
        await relay.flush()
        refused = await commit(bench, relay, lost, "a")  # it has no stream
        taken = await commit(bench, relay, store, "a")
        subscription = await js.subscribe(names.notify_stream_subjects(store.name))
        await subscription.next_msg(timeout=PATIENCE_S)
        await relay._provisioner.ensure(lost)
        await relay.flush()
        assert await stored(js, lost.name) == refused
        assert await stored(js, store.name) == taken
    assert await bench.events() == []


async def test_a_database_that_is_away_is_asked_again_to_forget_events(
    bench: Bench, store: Any, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, asked = bench.repo.events.delete_events, asyncio.Event()

    async def away(_ids: Sequence[int]) -> None:
        asked.set()
        raise UnavailableError("the database does not answer")

    async with relaying(bench, nats_url, store) as (relay, js):
        await relay.flush()
        monkeypatch.setattr(bench.repo.events, "delete_events", away)
        expected = await commit(bench, relay, store, "a")
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        monkeypatch.setattr(bench.repo.events, "delete_events", delete)
        await relay.flush()
        assert await stored(js, store.name) == expected
    assert await bench.events() == []


async def test_a_record_without_a_stream_does_not_hold_up_the_others(
    bench: Bench, store: Any, new_store: Any, nats_url: str
) -> None:
    lost = await bench.repo.stores.create_store(new_store(f"{store.name}x"))
    for turn in range(5):
        await write(bench, lost, f"r{turn}")
    await write(bench, store, "a")
    async with relaying(bench, nats_url, store, batch=2) as (_, js):
        subscription = await js.subscribe(names.notify_stream_subjects(store.name))
        assert decode_event((await subscription.next_msg(timeout=PATIENCE_S)).data).rev == 1
    assert len(await bench.events()) >= 5
    async with relaying(bench, nats_url, store, batch=2) as (relay, js):

        async def is_provided() -> bool:
            """What the service's own loop does when it is woken, and again where NATS has not answered in time."""
            try:
                await relay._provisioner.ensure(lost)
            except UnavailableError:
                return False
            return True

        await until(is_provided)
        await relay.flush()
        assert len(await stored(js, lost.name)) == 5


async def test_events_of_a_running_service_arrive(service: Running, store_name: str) -> None:
    await service.create(store_name)
    subscription = await service.nc.jetstream().subscribe(names.notify_stream_subjects(store_name))
    put = await service.put(store_name, "a", "hello")
    msg = await subscription.next_msg(timeout=PATIENCE_S)
    event = decode_event(msg.data)
    assert msg.subject == names.notify_subject(store_name, "k", put.partition)
    assert (event.prev, event.rev) == (0, 1)
    assert [(c.row_id, c.version, c.value) for c in event.changes or []] == [("a", 1, "hello")]
    assert msg.headers == {names.HEADER_MSG_ID: names.event_msg_id(store_name, "k", put.partition, 1, event.history)}


async def test_writes_go_on_while_the_broker_is_away(
    start: Any, nats_server: NatsServer, tmp_path: Path, store_name: str
) -> None:
    async with start(nats_server.url, f"sqlite:{tmp_path / 'x.db'}") as service:
        await service.create(store_name, 1)
        await service.put(store_name, "a")
        await asyncio.to_thread(nats_server.kill)
        for turn in range(10):
            await service.put(store_name, f"r{turn}")
        await asyncio.to_thread(nats_server.start)
        nc = await nats.connect(nats_server.url)
        subscription = await nc.jetstream().subscribe(names.notify_stream_subjects(store_name))
        revisions = [decode_event((await subscription.next_msg(timeout=PATIENCE_S)).data).rev for _ in range(11)]
        assert revisions == list(range(1, 12))
        await nc.close()


async def test_a_broker_that_lost_its_disk(start: Any, tmp_path: Path, store_name: str) -> None:
    """Streams and buckets are created again, and what was not yet published arrives."""
    server = NatsServer(tmp_path / "nats")
    with server:
        async with start(server.url, f"sqlite:{tmp_path / 'x.db'}") as service:
            await service.create(store_name, 1)
            await asyncio.to_thread(server.kill)
            shutil.rmtree(tmp_path / "nats" / "jetstream")
            await service.put(store_name, "a")
            await asyncio.to_thread(server.start)
            nc = await nats.connect(server.url)
            js = nc.jetstream()
            async with asyncio.timeout(PATIENCE_S):
                while True:  # nothing tells when a bucket appears
                    try:
                        bucket = await js.key_value(names.meta_bucket(store_name))
                        entries = {
                            key: (await bucket.get(key)).value or b""
                            for key in StoreSettings(partition_count=1).to_kv()
                        }
                        break
                    except NotFoundError:
                        await asyncio.sleep(0.05)
            assert StoreSettings.from_kv(entries).partition_count == 1
            subscription = await js.subscribe(names.notify_stream_subjects(store_name))
            assert decode_event((await subscription.next_msg(timeout=PATIENCE_S)).data).rev == 1
            await nc.close()


async def test_what_a_store_has_on_the_bus(service: Running, store_name: str) -> None:
    await service.create(store_name, 16, mode=pb.MODE_FULL)
    js = service.nc.jetstream()
    stream = (await js.stream_info(names.notify_stream(store_name))).config
    assert (stream.subjects, stream.max_msgs_per_subject, stream.duplicate_window, stream.allow_direct) == (
        [f"config.notify.{store_name}.*.*"],
        64,
        120,
        True,
    )
    for bucket, ttl in (
        (names.nodes_bucket(store_name), 86_400),
        (names.LEASES_BUCKET, 10),
        (names.groups_bucket(store_name), 30 * 86_400),
    ):
        status = await (await js.key_value(bucket)).status()
        assert (status.ttl, status.history, status.marker_ttl) == (ttl, 1, None)
    meta = await js.key_value(names.meta_bucket(store_name))
    # The bucket's keys() may miss what is on its way to it.
    fields = [field for field in StoreSettings.__struct_fields__ if field not in StoreSettings.OPTIONAL]
    settings = StoreSettings.from_kv({field: (await meta.get(field)).value or b"" for field in fields})
    assert (settings.partition_count, settings.mode.value) == (16, "FULL")


async def test_settings_of_another_database(
    start: Any, nats_url: str, tmp_path: Path, store_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same NATS, an empty database: the store's old settings stand, and the contradiction is told."""
    async with start(nats_url, f"sqlite:{tmp_path / 'a.db'}") as service:
        await service.create(store_name, 8)
    async with start(nats_url, f"sqlite:{tmp_path / 'b.db'}") as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.create(store_name, 16)
        error = error_from_rpc(caught.value)
        assert isinstance(error, MismatchError)
        assert str(error).endswith("has partition_count 16 in the database, NATS says 8")
    caplog.set_level(logging.CRITICAL)
    async with start(nats_url, f"sqlite:{tmp_path / 'b.db'}"):
        async with asyncio.timeout(PATIENCE_S):
            while "NATS says 8" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
