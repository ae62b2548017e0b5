"""What the credential of one worker, of the tools, or none at all can do to others, with the files of infra/nats.

`docs/faults.md` names these tests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import BadRequestError, NotFoundError
from ringcast import Change, PoisonPolicy, Worker
from ringcast.topology import read_topology
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess
from ringcast_wire import EndedLeases, LeaseRecord, SlotClaim, encode_record, limits, names

from tests.integration.infra_nats import WORKER_API, Bus, InfraNats, connected, prepared_service

STREAM = names.notify_stream("gateway")
EVENT = names.notify_subject("gateway", "blocklist", 3)
NODES = names.nodes_bucket("gateway")
META = names.meta_bucket("gateway")
DEAD = names.dead_stream("gateway")
LEASES = names.LEASES_BUCKET
HOSTILE = "worker-0"
OTHERS = ("worker-1", "worker-2")
PARTITIONS = 16
BIG_ROWS = 40


@pytest.fixture(scope="module")
def service(server: InfraNats, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    """With a store of small rows in `blocklist`, and of 6 MB in `suffixes`."""
    rows = {
        "blocklist": {f"row{number}": "value" for number in range(32)},
        "suffixes": {f"row{number}": "x" * 150_000 for number in range(BIG_ROWS)},
    }
    with prepared_service(server, tmp_path_factory.mktemp("service"), partitions=PARTITIONS, rows=rows) as running:
        yield running


@pytest.fixture
async def hostile(server: InfraNats, service: ConfigServiceProcess) -> AsyncIterator[Bus]:
    async with connected(server, HOSTILE) as bus:
        yield bus


async def states(operator: Bus) -> dict[str, tuple[int, int]]:
    """Of every stream: how far it was written, and how much of that is gone; leases end by themselves."""
    js = operator.nc.jetstream()
    found: dict[str, tuple[int, int]] = {}
    for stream in (STREAM, DEAD, f"KV_{NODES}", f"KV_{META}", f"KV_{LEASES}"):
        state = (await js.stream_info(stream)).state
        found[stream] = (state.last_seq, 0 if LEASES in stream else state.num_deleted or 0)
    return found


async def accepted(bus: Bus, subject: str, payload: bytes, **headers: str) -> Msg:
    """The answer of a stream that took a message."""
    reply = await bus.nc.request(subject, payload, timeout=PATIENCE_S, headers=headers or None)
    assert b"error" not in reply.data, reply.data
    return reply


# --- A worker's records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "blocklist.slot.x1",
        f"blocklist.slot.{limits.MAX_WORKERS_PER_KEY}",
        "blocklist.slot.007",
        "blocklist.slot.-1",
        f"blocklist.slot.{'9' * 900}",
    ],
)
async def test_a_worker_can_store_no_claim_on_a_slot_that_is_none(hostile: Bus, operator: Bus, name: str) -> None:
    """Its user may write any `slot.*`: names without number would fill the bucket, and the memory of all its peers."""
    await hostile.nc.publish(f"$KV.{NODES}.{name}", b"{}")
    await accepted(hostile, f"$KV.{NODES}.blocklist.slot.199", b"{}")  # so the one before it was dealt with
    info = await operator.nc.jetstream().stream_info(f"KV_{NODES}", subjects_filter=">")
    assert f"$KV.{NODES}.{name}" not in (info.state.subjects or {})
    assert f"$KV.{NODES}.blocklist.slot.199" in (info.state.subjects or {})
    assert await hostile.refused() == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-TTL": "never"},
        {"Nats-TTL": "1000h"},
        {"Nats-Schedule": "@at 2026-01-01T00:00:00Z", "Nats-Schedule-Target": f"$KV.{LEASES}.{OTHERS[0]}"},
        {"Nats-Incr": "1"},
        {"Nats-Batch-Id": "batch", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    ],
)
@pytest.mark.parametrize("subject", [f"$KV.{LEASES}.{HOSTILE}", f"$KV.{NODES}.blocklist.{HOSTILE}"])
async def test_no_header_makes_more_of_a_record(
    hostile: Bus, operator: Bus, subject: str, headers: dict[str, str]
) -> None:
    """A lease that never ends, a message that the server writes later, a counter, a batch."""
    before = await states(operator)
    reply = await hostile.nc.request(subject, b"{}", timeout=PATIENCE_S, headers=headers)
    assert b"error" in reply.data
    assert await states(operator) == before


@pytest.mark.parametrize("target", [EVENT, f"$KV.{META}.mode", f"$KV.{LEASES}.{OTHERS[0]}", f"_INBOX_{OTHERS[0]}.x"])
async def test_a_trace_goes_nowhere_else(hostile: Bus, operator: Bus, target: str) -> None:
    """A server writes the way of a message to where a header says, if who sends it may write there."""
    before = await states(operator)
    await hostile.nc.publish(f"$KV.{LEASES}.{HOSTILE}", b"{}", headers={"Nats-Trace-Dest": target})
    (reason,) = await hostile.refused()
    assert "permissions violation for publish" in reason
    assert await states(operator) == before


async def test_claims_on_all_slots_end_no_worker_and_move_nothing(
    server: InfraNats, hostile: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims the slots of others too, in its own name and in theirs; they keep what their own records say."""
    login = server.login("tools")
    monkeypatch.setenv("RINGCAST_USER", login["user"])
    monkeypatch.setenv("RINGCAST_PASSWORD", login["password"])
    monkeypatch.setenv("RINGCAST_JETSTREAM_API", WORKER_API)
    first, second = (server.worker(name) for name in OTHERS)
    async with first, second:
        await both(first, second)
        before = await slots(server)
        owned = first.owned("blocklist"), second.owned("blocklist")
        lease = LeaseRecord(incarnation="x" * 16, host="h", pid=1, started_at_ms=1)
        await accepted(hostile, f"$KV.{LEASES}.{HOSTILE}", encode_record(lease))
        for claimant in (HOSTILE, OTHERS[1], OTHERS[0]):
            claim = encode_record(SlotClaim(worker_id=claimant, lease=claimant))
            for slot in range(limits.MAX_WORKERS_PER_KEY):
                await accepted(hostile, f"$KV.{NODES}.{names.slot_key('blocklist', slot)}", claim)
            for name, slot in before.items():
                await claimed_again(hostile, name, slot)
        assert (first.owned("blocklist"), second.owned("blocklist")) == owned
        assert await slots(server) == before
        assert (first.health().ready, second.health().ready) == (True, True)
        await second.stop()
        async with server.worker(OTHERS[1]) as again:
            await both(first, again)


async def test_a_report_that_others_have_died_moves_nothing(server: InfraNats, hostile: Bus, operator: Bus) -> None:
    """Workers tell each other which leases have ended, and whoever is told reads for itself."""
    js = operator.nc.jetstream()
    first, second = (server.worker(name) for name in OTHERS)
    async with first, second:
        await both(first, second)
        owned = first.owned("blocklist"), second.owned("blocklist")
        before = (await js.stream_info(f"KV_{NODES}")).state.last_seq
        report = encode_record(EndedLeases(leases=(*OTHERS, HOSTILE, "nobody")))
        await accepted(hostile, f"$KV.{NODES}.{names.ended_key(HOSTILE)}", report)
        async with asyncio.timeout(PATIENCE_S):
            while (await js.stream_info(f"KV_{NODES}")).state.last_seq < before + 3:  # both say that they live
                await hostile.nc.flush()
        for _ in range(20):
            await accepted(hostile, f"$KV.{NODES}.{names.ended_key(HOSTILE)}", report)
        assert (first.owned("blocklist"), second.owned("blocklist")) == owned
        assert (await js.stream_info(f"KV_{NODES}")).state.last_seq <= before + 3 + 20 + 4, "not at every report"
        assert (first.health().ready, second.health().ready) == (True, True)


async def both(first: Worker, second: Worker) -> None:
    """Returns once two workers share the partitions out."""

    def shared() -> bool:
        one, two = first.owned("blocklist"), second.owned("blocklist")
        return bool(one and two) and not one & two and len(one | two) == PARTITIONS

    waits = [asyncio.ensure_future(worker.wait_until("blocklist", shared)) for worker in (first, second)]
    done, waiting = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
    for wait in waiting:
        wait.cancel()
    assert done


async def slots(server: InfraNats) -> dict[str, int]:
    """The slot of each member, read as the tools do."""
    topology = await read_topology(server.url, "gateway", "blocklist")
    return {member.worker_id: member.slot for member in topology.members if member.alive and member.slot is not None}


async def claimed_again(bus: Bus, worker_id: str, slot: int) -> None:
    """Returns once the slot is claimed by this worker."""
    subject = f"{WORKER_API}.DIRECT.GET.KV_{NODES}.$KV.{NODES}.{names.slot_key('blocklist', slot)}"
    async with asyncio.timeout(PATIENCE_S):
        while json.loads((await bus.nc.request(subject, timeout=PATIENCE_S)).data)["worker_id"] != worker_id:
            await bus.nc.flush()


# --- What a worker asks for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        f"$JS.API.STREAM.DELETE.{STREAM}",
        f"$JS.API.STREAM.PURGE.{STREAM}",
        f"$JS.API.CONSUMER.DELETE.KV_{LEASES}.{names.watch_name('gateway', OTHERS[0])}",
        EVENT,
        f"$KV.{META}.mode",
        f"$KV.{NODES}.blocklist.{OTHERS[0]}",
        f"config.dead.gateway.blocklist.{OTHERS[0]}",
        names.fetch_subject("gateway", "suffixes", names.FETCH_FULL),
    ],
)
async def test_a_watch_commands_nothing(hostile: Bus, operator: Bus, target: str) -> None:
    """A consumer pushes to where it was told to: not into a stream, and not to what answers requests."""
    js = hostile.nc.jetstream(prefix=WORKER_API)
    watch = names.watch_name("gateway", HOSTILE)
    before = await states(operator)
    config = api.ConsumerConfig(
        name=watch,
        deliver_subject=target,
        deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
        ack_policy=api.AckPolicy.NONE,
        filter_subjects=[f"$KV.{NODES}.>"],
        idle_heartbeat=0.1,
    )
    await accepted(hostile, f"$KV.{NODES}.blocklist.slot.198", b"{}")
    inbox = hostile.nc.new_inbox()
    heard = await hostile.nc.subscribe(inbox)
    with suppress(BadRequestError):  # to the bucket's own subjects the server makes none
        await js.add_consumer(f"KV_{NODES}", config)
    name = names.consumer_name("ringcast", HOSTILE)
    events = config.evolve(name=name, durable_name=name, deliver_subject=inbox, filter_subjects=[EVENT])
    await js.add_consumer(STREAM, events)
    for _ in range(4):  # heartbeats of the second say that the first has had its time
        await heard.next_msg(timeout=PATIENCE_S)
    for stream, consumer in ((f"KV_{NODES}", watch), (STREAM, name)):
        with suppress(NotFoundError):
            await js.delete_consumer(stream, consumer)
    after = await states(operator)
    before[f"KV_{NODES}"] = (before[f"KV_{NODES}"][0] + 1, *after[f"KV_{NODES}"][1:])  # the record above
    assert after == before
    assert await hostile.refused() == []


async def test_a_flood_of_fetches_starves_nobody(server: InfraNats, hostile: Bus) -> None:
    """Of the largest key, with nobody who reads the answers: hundreds stand before each request of another worker."""
    inbox, full = hostile.nc.new_inbox(), names.fetch_subject("gateway", "suffixes", names.FETCH_FULL)
    heads = names.fetch_subject("gateway", "blocklist", names.FETCH_HEADS)
    async with connected(server, OTHERS[0]) as other:
        for _ in range(20):
            for _ in range(300):
                await hostile.nc.publish(full, reply=inbox)
            await hostile.nc.flush()
            reply = await other.nc.request(heads, timeout=PATIENCE_S)
            assert names.HEADER_ERROR not in (reply.headers or {}), reply.data


async def test_a_worker_can_suppress_no_dead_letter_of_another(
    server: InfraNats, service: ConfigServiceProcess, hostile: Bus, operator: Bus
) -> None:
    """A stream drops the second message of an id: here every part of it that can be known is known."""

    def refuse(change: Change) -> None:
        if change.row_id == "poison":
            raise ValueError("no")

    row = hashlib.blake2b(b"poison", digest_size=12).hexdigest()
    settings: dict[str, Any] = {"handler": refuse, "handler_tries": 1, "poison_policy": PoisonPolicy.DEAD_LETTER}
    async with ConfigServiceClient(service.address) as client, server.worker(OTHERS[0], **settings) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        first = await client.put("gateway", "blocklist", "poison", "v")
        await worker.wait_for("blocklist", first.partition, first.version, timeout_s=PATIENCE_S)
        subject = names.dead_subject("gateway", "blocklist", first.partition)
        version = first.version + 1
        forged = f"dead.gateway.blocklist.{first.partition}.{version}.{row}"
        await accepted(hostile, subject, b"{}", **{names.HEADER_MSG_ID: forged})
        second = await client.put("gateway", "blocklist", "poison", "w")
        assert second.version == version
        await worker.wait_for("blocklist", second.partition, second.version, timeout_s=PATIENCE_S)
        assert worker.stats("blocklist").dead_letters == 2
    letters = []
    state = (await operator.nc.jetstream().stream_info(DEAD)).state
    for sequence in range(state.first_seq, state.last_seq + 1):
        message = await operator.nc.jetstream().get_msg(DEAD, sequence, direct=True)
        letters.append(json.loads(message.data or b"{}").get("version"))
    assert letters == [first.version, None, version]


async def test_connections_of_workers_leave_room_for_the_service(tmp_path: Path) -> None:
    """With three connections in the place of thousands."""
    server = InfraNats(tmp_path)
    file = server.configuration / "accounts.conf"
    text = file.read_text()
    assert text.count("max_connections: 9000") == 1
    assert "max_connections: 10000 " in (server.configuration / "nats.conf").read_text()
    file.write_text(text.replace("max_connections: 9000", "max_connections: 3"))
    async with AsyncExitStack() as opened:
        opened.enter_context(server)
        for _ in range(3):
            await opened.enter_async_context(connected(server, HOSTILE))
        with pytest.raises(nats.errors.Error, match="maximum account active connections exceeded"):
            await nats.connect(server.url, allow_reconnect=False, max_reconnect_attempts=1, **server.login(HOSTILE))
        await opened.enter_async_context(connected(server, "config-service"))
        await opened.enter_async_context(connected(server, "tools"))


# --- The tools --------------------------------------------------------------------------------------------------------


async def test_the_tools_can_have_no_answer_put_into_a_stream(
    server: InfraNats, service: ConfigServiceProcess, operator: Bus
) -> None:
    """Each would overwrite a setting of the store, or forge an event or a lease."""
    requests = {
        f"{WORKER_API}.STREAM.INFO.KV_{META}": b"",
        f"{WORKER_API}.DIRECT.GET.KV_{META}": b'{"last_by_subj": "$KV.config_meta_gateway.mode"}',
        names.fetch_subject("gateway", "blocklist", names.FETCH_HEADS): b"",
    }
    targets = (EVENT, f"$KV.{META}.partition_count", f"$KV.{LEASES}.{OTHERS[0]}", f"$JS.API.STREAM.DELETE.{STREAM}")
    async with connected(server, "tools") as tools:
        before = await states(operator)
        for subject, payload in requests.items():
            for target in targets:
                await tools.nc.publish(subject, payload, reply=target)
        for subject, payload in requests.items():  # once these are answered, those before them are
            reply = await tools.nc.request(subject, payload, timeout=PATIENCE_S)
            assert reply.data
            assert b"error" not in reply.data
        assert await tools.refused() == []
        assert await states(operator) == before


@pytest.mark.parametrize(
    "subject",
    [
        EVENT,
        f"$KV.{META}.mode",
        f"$KV.{LEASES}.{OTHERS[0]}",
        f"$KV.{NODES}.blocklist.{OTHERS[0]}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{LEASES}",
        f"$KV.{NODES}.{names.ended_key(OTHERS[0])}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{LEASES}.{names.watch_name('gateway', HOSTILE)}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{LEASES}.{names.watch_name('gateway', OTHERS[0])}",
        f"{WORKER_API}.CONSUMER.DELETE.KV_{LEASES}.{names.watch_name('gateway', OTHERS[0])}",
        f"{WORKER_API}.STREAM.DELETE.{STREAM}",
        f"{WORKER_API}.STREAM.INFO.{DEAD}",
        f"{WORKER_API}.STREAM.MSG.GET.{STREAM}",
        f"{WORKER_API}.STREAM.MSG.GET.KV_{LEASES}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{names.CLUSTER_BUCKET}.x.$KV.{names.CLUSTER_BUCKET}.>",
        f"$KV.{names.CLUSTER_BUCKET}.services.x",
        f"$KV.{names.CLUSTER_BUCKET}.wishes.services.x",
        f"{WORKER_API}.DIRECT.GET.{STREAM}",
        f"{WORKER_API}.DIRECT.GET.{DEAD}",
        "$JS.API.STREAM.NAMES",
        names.fetch_subject("gateway", "blocklist", names.FETCH_FULL),
        names.dead_subject("gateway", "blocklist", 0),
    ],
)
async def test_the_tools_may_not_publish(server: InfraNats, service: ConfigServiceProcess, subject: str) -> None:
    async with connected(server, "tools") as tools:
        await tools.nc.publish(subject, b"x", reply=tools.nc.new_inbox())
        (reason,) = await tools.refused()
    assert "permissions violation for publish" in reason


# --- No login ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("login", [{}, {"user": "worker-0", "password": ""}, {"user": "sys", "password": "sys"}])
async def test_without_a_password_nobody_connects(server: InfraNats, login: dict[str, str]) -> None:
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await nats.connect(server.url, allow_reconnect=False, max_reconnect_attempts=1, **login)


@pytest.mark.parametrize(
    "said",
    [
        b"PUB config.notify.gateway.blocklist.3 1\r\nx\r\n",
        b"SUB > 1\r\n",
        b'CONNECT {"verbose":false}\r\nSUB > 1\r\n',
        b"A" * 100_000,
        b"",  # nothing at all
    ],
)
async def test_a_connection_that_does_not_log_in_is_ended(server: InfraNats, operator: Bus, said: bytes) -> None:
    before = await states(operator)
    host, _, port = server.url.removeprefix("nats://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(said)
        async with asyncio.timeout(PATIENCE_S):
            heard = await reader.read()
    except ConnectionResetError:
        heard = b""
    finally:
        writer.close()
    assert b"MSG" not in heard
    assert await states(operator) == before
