"""What keeps one event from its stream must keep no other from its own: slow links, streams that don't answer, records
that no broker takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nats
import pytest
from nats.js.api import StreamConfig
from ringcast_config_service.nats import flights, lane
from ringcast_config_service.nats.bus_client import BusClient
from ringcast_config_service.nats.claims import Claims
from ringcast_config_service.nats.outgoing import UnpublishableError, header_bytes, shape
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.nats.published import PublishedRecords
from ringcast_config_service.nats.publisher import EventPublisher
from ringcast_config_service.nats.relay import Relay
from ringcast_config_service.nats.sweep import Sweep
from ringcast_config_service.repository import OutboxRecord
from ringcast_config_service.telemetry import Telemetry
from ringcast_testkit import PATIENCE_S, NatsServer, TcpProxy, until
from ringcast_wire import Change, Event, decode_event, encode, names
from ringcast_wire.grpc import pb

Bench = Any  # of conftest.py

SUBJECT = names.notify_subject("s", "k", 0)


def record(payload: bytes, subject: str = SUBJECT, msg_id: str = "s.k.0.1", number: int = 1) -> OutboxRecord:
    return OutboxRecord(number, subject, msg_id, payload)


def event(size: int) -> bytes:
    return encode(Event(1, 0, 1, 0, [Change("a", 1, False, "x" * size, None)]))


class Bus:
    """A relay over a connection of the service's kind, and one beside it that reads streams."""

    def __init__(self, relay: Relay, nc: BusClient, js: Any, telemetry: Telemetry) -> None:
        self.relay = relay
        self.nc = nc
        self.js = js
        self.measures = telemetry.measures


@asynccontextmanager
async def relaying(bench: Bench, url: str, *stores: Any, through: int | None = None) -> AsyncIterator[Bus]:
    watcher = await nats.connect(url)
    nc = BusClient()
    relays: list[Relay] = []

    async def down() -> None:
        for relay in relays:
            relay.disconnected()

    async def up() -> None:
        for relay in relays:
            relay.reconnected()

    def protocol_error(text: str) -> None:
        for relay in relays:
            relay.protocol_error(text)

    nc.on_protocol_error = protocol_error
    await nc.connect(
        url if through is None else f"nats://127.0.0.1:{through}",
        disconnected_cb=down,
        reconnected_cb=up,
        reconnect_time_wait=0.05,  # type: ignore[arg-type]
        max_reconnect_attempts=-1,
    )
    telemetry = Telemetry()
    provisioner = Provisioner(nc.jetstream(), bench.repo.stores, replicas=1, interval_s=30, telemetry=telemetry)
    for store in stores:
        await provisioner.ensure(store)
    relay = Relay(bench.repo.events, nc, provisioner, batch=1000, poll_s=0.05, telemetry=telemetry)
    relays.append(relay)
    task = asyncio.create_task(relay.run())
    try:
        yield Bus(relay, nc, watcher.jetstream(), telemetry)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await nc.close()
        await watcher.close()


@pytest.fixture
async def store(bench: Bench, new_store: Any, store_name: str) -> Any:
    return await bench.repo.stores.create_store(new_store(store_name, inline_max_bytes=4096))


async def commit(bench: Bench, relay: Relay, store: Any, *rows: str, value: str = "v") -> None:
    written = await bench.repo.writer.write(
        [bench.request(dict.fromkeys(rows, value), store=store)], next(bench.clock_ms)
    )
    relay.committed(written.events)


async def messages(js: Any, store: Any) -> int:
    return int((await js.stream_info(names.notify_stream(store.name))).state.messages)


# --- The form of a message --------------------------------------------------------------------------------------------


def test_headers_count_towards_the_limit() -> None:
    headers = {names.HEADER_MSG_ID: "s.k.0.1", names.HEADER_TRACE: "00-1-2-03"}
    assert header_bytes(headers) == len(b"NATS/1.0\r\nNats-Msg-Id: s.k.0.1\r\ntraceparent: 00-1-2-03\r\n\r\n")
    payload = event(1000)
    whole = shape(record(payload), headers, len(payload) + header_bytes(headers))
    assert (whole.payload, whole.bare) == (payload, False)
    bare = shape(record(payload), headers, len(payload) + header_bytes(headers) - 1)
    assert bare.bare
    assert decode_event(bare.payload).changes is None
    assert (decode_event(bare.payload).prev, decode_event(bare.payload).rev) == (0, 1)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (record(event(1), subject="config.notify.s k.k.0"), "subject"),
        (record(event(1), subject="config.notify.s.k.x"), "partition number"),
        (record(event(1), msg_id="s.k.0.1\r\nEvil: 1"), "Nats-Msg-Id"),
        (record(event(1), msg_id="s.k.0.é"), "Nats-Msg-Id"),
        (record(b"\xc1" * 2000), "can't be shortened"),
    ],
)
def test_what_can_not_be_published_in_any_form(bad: OutboxRecord, why: str) -> None:
    with pytest.raises(UnpublishableError, match=why):
        shape(bad, {names.HEADER_MSG_ID: bad.msg_id}, 1024)


def test_what_does_not_even_fit_without_its_changes() -> None:
    with pytest.raises(UnpublishableError, match="over max_payload 32"):
        shape(record(event(10)), {names.HEADER_MSG_ID: "s.k.0.1"}, 32)


async def test_the_acknowledgement_says_where_a_message_is(nats_url: str, store_name: str) -> None:
    nc = await nats.connect(nats_url)
    await nc.jetstream().add_stream(StreamConfig(name=store_name, subjects=[f"{store_name}.>"]))
    publisher = EventPublisher(nc)
    acks = []
    for number in (1, 1, 2):
        sent = await publisher.send(f"{store_name}.x", b"", {names.HEADER_MSG_ID: str(number)})
        acks.append(tuple(await asyncio.wait_for(sent.stored, PATIENCE_S)))
    assert acks == [(1, False), (1, True), (2, False)]
    assert publisher.reached == 3
    await nc.close()


# --- One record, one stream, one link ---------------------------------------------------------------------------------


async def test_a_stream_that_does_not_answer_holds_up_no_other(
    bench: Bench, store: Any, new_store: Any, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are sent again and again meanwhile, one at a time; they go out once it answers."""
    monkeypatch.setattr(flights, "ACK_TIMEOUT_S", 2.0)
    stuck = await bench.repo.stores.create_store(new_store(f"{store.name}x"))
    async with relaying(bench, nats_url, store) as bus:
        subjects = names.notify_stream_subjects(stuck.name)
        await bus.js.add_stream(StreamConfig(name=f"{stuck.name}-audit", subjects=[subjects], no_ack=True))
        await bus.relay.flush()
        for number in range(3):
            await commit(bench, bus.relay, stuck, f"r{number}")
        heard = await bus.js.subscribe(names.notify_stream_subjects(store.name))
        began = asyncio.get_running_loop().time()
        for number in range(20):
            await commit(bench, bus.relay, store, f"r{number}")
            await heard.next_msg(timeout=PATIENCE_S)
        # If each waited for an acknowledgement that does not come, it would be twenty times that.
        assert asyncio.get_running_loop().time() - began < 5 * flights.ACK_TIMEOUT_S
        assert {subject.split(".")[2] for subject, _ in await bench.events()} >= {stuck.name}
        await bus.js.delete_stream(f"{stuck.name}-audit")
        await bus.relay._provisioner.ensure(stuck)
        await bus.relay.flush()
        assert await messages(bus.js, stuck) == 3
    assert await bench.events() == []


async def test_a_backlog_over_a_slow_link_is_sent_once(
    bench: Bench, store: Any, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes many times as long as an acknowledgement may: the link is slow, and not the broker silent."""
    # Longer than a busy machine lets the link stand still, and shorter by far than all takes.
    monkeypatch.setattr(flights, "ACK_TIMEOUT_S", 2.0)
    monkeypatch.setattr(lane, "_TICK_S", 0.05)
    for number in range(100):
        await bench.group([bench.request({f"r{number}": "x" * 4000}, store=store)])
    with TcpProxy(nats_server.port) as link:
        async with relaying(bench, nats_server.url, store, through=link.port) as bus:
            link.trickle(50_000)
            await bus.relay.flush()
            assert await messages(bus.js, store) == 100
            assert bus.measures.events_published == 100
            assert bus.relay._publisher._number == 100, "none was sent again"
            assert not any(bus.measures.publish_failures.values())
    assert await bench.events() == []


async def test_what_is_stored_and_deleted_while_a_sweep_reads_is_not_sent_again(
    bench: Bench, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read had begun before, and finds the record still."""
    events = bench.repo.events
    for row_id in "ab":
        await bench.group([bench.request({row_id: "v"}, store=store)])
    on_its_way, left = await events.outbox(store.name, 0, 10, 1000)
    host = SimpleNamespace(in_memory={on_its_way.id}, claims=Claims(events, "an instance"))
    published = PublishedRecords(events, host.in_memory, batch=10)
    read = events.outbox

    async def read_slowly(*args: Any) -> list[OutboxRecord]:
        found: list[OutboxRecord] = await read(*args)
        published.add(on_its_way.id)
        await published.delete()
        return found

    monkeypatch.setattr(events, "outbox", read_slowly)
    sweep = Sweep(store.name, cast(Any, host), events)
    sweep.begin(left.id)
    assert await sweep.read_page(10)
    assert [record.id for record in sweep.page] == [left.id]
    assert host.in_memory == {left.id}


async def test_what_a_sweep_has_read_before_its_commit_is_heard_of_is_sent_once(
    bench: Bench, store: Any, nats_url: str
) -> None:
    async with relaying(bench, nats_url, store) as bus:
        written = await bench.repo.writer.write([bench.request({"a": "v"}, store=store)], next(bench.clock_ms))
        bus.relay.in_memory.update(record.id for record in written.events)  # as a sweep does
        bus.relay.committed(written.events)
        assert bus.relay._lane(store.name).queued == (0, 0)


async def test_what_does_not_fit_a_stream_goes_without_its_changes_or_is_set_apart(
    bench: Bench, store: Any, nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with relaying(bench, nats_url, store) as bus:
        config = (await bus.js.stream_info(names.notify_stream(store.name))).config
        config.max_msg_size = 1000
        await bus.js.update_stream(config)
        await commit(bench, bus.relay, store, "a", value="x" * 3000)
        await commit(bench, bus.relay, store, "b")
        await bus.relay.flush()
        assert await messages(bus.js, store) == 2
        assert await bench.repo.events.refused_events(0, 10) == []
        config.max_msg_size = 40
        await bus.js.update_stream(config)
        await commit(bench, bus.relay, store, "c")
        await bus.relay.flush()
        ((refused, reason),) = await bench.repo.events.refused_events(0, 10)
        assert refused.subject.startswith(f"config.notify.{store.name}.")
        assert "message size exceeds maximum allowed" in reason
        assert bus.measures.events_refused == 1
        assert "event=relay.event_refused" in caplog.text
    assert await bench.events() == []


async def test_an_event_that_fits_only_without_its_headers(start: Any, tmp_path: Path, store_name: str) -> None:
    """Sent as it is, it would end the connection, and the service with it, at every start."""
    most = 16_384  # the settings of the members' stream, which names 200 slots, have to fit too
    with NatsServer(tmp_path / "nats", max_payload=most) as server:
        async with start(server.url, f"sqlite:{tmp_path / 'x.db'}") as service:
            await service.create(store_name, 1, inline_max_bytes=4096)
            subscription = await service.nc.jetstream().subscribe(names.notify_stream_subjects(store_name))
            for size in range(most - 250, most + 10, 10):
                rows = [*((row_id, "x" * 4096) for row_id in "abc"), ("d", "x" * (size - 3 * 4096))]
                batch = [pb.RowWrite(row_id=row_id, value=value) for row_id, value in rows]
                await service.write(store_name, batch)
                msg = await subscription.next_msg(timeout=PATIENCE_S)
            assert decode_event(msg.data).changes is None
            assert not service.task.done()


async def test_a_record_that_ends_the_connection_is_found_and_set_apart(
    bench: Bench, store: Any, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason is: the others go out, and the connection comes back."""
    caplog.set_level(logging.ERROR)
    send = BusClient.publish

    async def poisoned(self: Any, subject: str, payload: bytes = b"", **more: Any) -> None:
        if b"poison" in payload:
            await self._send_command(b"POISON\r\n")
            await self._flush_pending()
            return
        await send(self, subject, payload, **more)

    monkeypatch.setattr(BusClient, "publish", poisoned)
    async with relaying(bench, nats_server.url, store) as bus:
        await bus.relay.flush()
        for number in range(10):
            await commit(bench, bus.relay, store, f"r{number}", value="poison" if number == 5 else "v")
        await bus.relay.flush()
        assert await messages(bus.js, store) == 9
        ((refused, reason),) = await bench.repo.events.refused_events(0, 10)
        assert b"poison" in refused.payload
        assert "ended the connection" in reason
        assert bus.nc.is_connected
        await commit(bench, bus.relay, store, "after")
        await bus.relay.flush()
        assert await messages(bus.js, store) == 10


async def test_a_record_that_the_server_never_answers_does_not_hold_up_its_store(
    bench: Bench, store: Any, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subject that permissions deny: nothing comes back."""
    monkeypatch.setattr(flights, "ACK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(lane, "_TICK_S", 0.05)
    send = BusClient.publish

    async def denied(self: Any, subject: str, payload: bytes = b"", **more: Any) -> None:
        if b"denied" not in payload:
            await send(self, subject, payload, **more)

    monkeypatch.setattr(BusClient, "publish", denied)
    async with relaying(bench, nats_url, store) as bus:
        await bus.relay.flush()
        await commit(bench, bus.relay, store, "a", value="denied")
        for number in range(20):
            await commit(bench, bus.relay, store, f"r{number}")
        await until(lambda: _has(bus, store, 20))
        await until(lambda: _given_up(bus))
        monkeypatch.setattr(BusClient, "publish", send)
        await bus.relay.flush()
        assert await messages(bus.js, store) == 21
    assert await bench.events() == []


async def _has(bus: Bus, store: Any, count: int) -> bool:
    return await messages(bus.js, store) >= count


async def _given_up(bus: Bus) -> bool:
    return bus.measures.publish_failures["unacknowledged"] > 0
