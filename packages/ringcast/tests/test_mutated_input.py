"""Damaged messages of every kind, fed to a worker that runs: it never stops, never holds a wrong row, counts each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.js.errors import NoStreamResponseError
from ringcast import Worker
from ringcast._bus.bus import Delivery
from ringcast._protocol.decode import read_batch, read_event, read_full, read_heads, read_partition
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S
from ringcast_wire import (
    WIRE_VERSION,
    Change,
    Event,
    FetchReply,
    HeadsReply,
    LeaseRecord,
    NodeRecord,
    PartitionRows,
    ProtocolError,
    Row,
    SlotClaim,
    encode,
    encode_record,
    names,
)

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

MUTATIONS = 10_000
PARTITIONS = 4
TOKEN = "_INBOX_nobody.ack"


def mutated(data: bytes, random: Random) -> bytes:
    """A copy with a few bits, bytes or stretches changed; never the same bytes."""
    while True:
        copy = bytearray(data)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(copy)) if copy else 0
            match random.randrange(6):
                case 0 if copy:
                    copy[at] ^= 1 << random.randrange(8)
                case 1 if copy:
                    copy[at] = random.randrange(256)
                case 2:
                    del copy[at:]
                case 3:
                    copy[at:at] = random.randbytes(random.randint(1, 8))
                case 4:
                    del copy[at : at + random.randint(1, 4)]
                case 5:
                    copy[at : at + 1] = random.choice((b"\xc0", b"\xcf" + b"\xff" * 8, b"\xd3" + b"\x80" * 8, b"\xdf"))
        if copy != data:
            return bytes(copy)


def in_partition(partition: int, count: int, start: str) -> list[str]:
    """Row ids that belong to a partition."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if row_partition(row_id := f"{start}{number}", PARTITIONS) == partition:
            found.append(row_id)
        number += 1
    return found


async def is_right(store: Store, worker: Worker) -> None:
    """Waits until the worker holds what the service has, at the revisions that the service has."""
    heads = await store.client.heads(store.name, "list")
    truth = {row.row_id: (row.value, row.version) async for row in store.client.list(store.name, "list")}

    def right() -> bool:
        held = {row.row_id: (row.value, row.version) for row in worker.rows("list")}
        return worker.applied("list") == dict(enumerate(heads)) and held == truth

    await worker.wait_until("list", right, timeout_s=PATIENCE_S)


def damaged_events(heads: Sequence[int], inline: bool, random: Random) -> Callable[[], tuple[int, bytes]]:
    """Mutations of the event that would come next, of one that came, and of one that is ahead."""

    def make() -> tuple[int, bytes]:
        partition = random.randrange(PARTITIONS)
        prev = max(0, heads[partition] + random.choice((-1, 0, 0, 0, 5)))
        row_ids = in_partition(partition, random.randint(1, 3), "row")
        changes = [
            Change(row_id, prev + at, False, "forged" if inline else None) for at, row_id in enumerate(row_ids, 1)
        ]
        event = Event(WIRE_VERSION, prev, prev + len(row_ids), 1, changes if random.random() < 0.9 else None)
        return partition, mutated(encode(event), random)

    return make


@pytest.mark.parametrize("inline", [True, False])
async def test_damaged_events_do_no_harm(store: Store, inline: bool) -> None:
    await store.create(partition_count=PARTITIONS, inline=None if inline else 0)
    for number in range(20):
        await store.put(f"row{number}", f"v{number}")
    async with store.worker(heads_s=0.2) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        make = damaged_events(await store.client.heads(store.name, "list"), inline, Random(20261120))
        assert worker._life.runtime is not None
        session = worker._life.runtime.sessions["list"]
        before = worker.stats()
        refused = taken = 0
        for count in range(MUTATIONS // 2):
            partition, data = make()
            try:
                read_event(data, partition, PARTITIONS)
            except ProtocolError:
                refused += 1
            so_far = session.machine.stats.events
            session.take_in(partition, data, TOKEN)
            session.pump()
            taken += session.machine.stats.events - so_far  # what the stream delivers meanwhile is not among them
            if count % 50 == 0:
                await asyncio.sleep(0)
        after = worker.stats()
        assert refused > MUTATIONS // 4
        assert taken == MUTATIONS // 2 - refused
        assert after.unreadable - before.unreadable >= refused  # and those that the service does not bear out
        await is_right(store, worker)
        partition, version = await store.put("row1", "after")  # and it hears of what is true
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        await is_right(store, worker)


async def test_damaged_events_come_over_nats(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    for number in range(20):
        await store.put(f"row{number}", f"v{number}")
    random = Random(7)
    client = await nats.connect(store.nats_url)
    try:
        async with store.worker(heads_s=0.2) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            make = damaged_events(await store.client.heads(store.name, "list"), True, random)
            sent = 0

            def all_in() -> bool:
                stats = worker.stats("list")
                return stats.events + stats.unreadable >= sent

            for _ in range(15):  # the stream keeps no more than 64 events a partition
                for _ in range(40):
                    partition, data = make()
                    await client.publish(names.notify_subject(store.name, "list", partition), data)
                sent += 40
                await worker.wait_until("list", all_in, timeout_s=PATIENCE_S)
            assert worker.stats("list").unreadable > sent / 4
            await is_right(store, worker)
            assert worker._life.runtime is not None
            assert worker._life.runtime.joined is not None
            others = "config.notify.other.list.0", f"config.notify.{store.name}.list.9"
            worker._life.runtime.joined.routes.deliver([Delivery(subject, TOKEN, b"") for subject in others])
            assert worker.stats().unreadable == worker.stats("list").unreadable + 2
    finally:
        await client.close()


async def test_damaged_answers_are_asked_for_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all answers are damaged behind the checksum of their chunks; in the end every row is right."""
    await store.create(partition_count=PARTITIONS, inline=0)
    for number in range(40):
        await store.put(f"row{number}", f"v{number}")
    random = Random(3)
    damaged = 0
    worker = store.worker(heads_s=0.1, window_s=0.0)
    await worker.start()
    try:
        assert worker._life.runtime is not None
        session = worker._life.runtime.sessions["list"]
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert session.fetches.client is not None
        request = session.fetches.client.request

        async def unreliable(*args: Any, **words: Any) -> bytes:
            nonlocal damaged
            body = await request(*args, **words)
            if random.random() < 0.5:
                cut = body[: random.randrange(len(body))]  # never a whole message
                damaged += 1
                return cut
            return body

        monkeypatch.setattr(session.fetches.client, "request", unreliable)
        for number in range(40):
            await store.put(f"row{number}", f"w{number}")
            session.machine.fetches.reconnected(session._now())  # what waits for another try goes at once
            session.pump()
        while damaged < 20:
            session.anti_entropy.compare_now()
            await asyncio.sleep(0)
        monkeypatch.undo()
        session._reconnected()
        await is_right(store, worker)
        assert damaged - 1 <= worker.stats("list").bad_replies <= damaged
    finally:
        await worker.stop()


@pytest.mark.parametrize("kind", ["partition", "since", "batch", "full", "heads"])
def test_an_answer_that_is_taken_keeps_the_rules(kind: str) -> None:
    random = Random(kind)
    ids = in_partition(1, 5, "row")
    rows = [Row(row_id, "v", at, False, {"a": "b"}) for at, row_id in enumerate(ids, 6)]
    good: FetchReply | HeadsReply = FetchReply(
        WIRE_VERSION, [PartitionRows(1, 10, kind in ("partition", "full"), rows)]
    )
    if kind == "heads":
        good = HeadsReply(WIRE_VERSION, [1, 10, 2**40, 0], "h1", [1, 2, 3, 0])
    readers: dict[str, Callable[[bytes], Any]] = {
        "partition": lambda data: read_partition(data, 1, None, PARTITIONS).parts,
        "since": lambda data: read_partition(data, 1, 5, PARTITIONS).parts,
        "batch": lambda data: read_batch(data, ids, PARTITIONS).parts,
        "full": lambda data: read_full(data, PARTITIONS).parts,
        "heads": lambda data: read_heads(data, PARTITIONS).heads,
    }
    read = readers[kind]
    assert read(encode(good))
    taken = 0
    for _ in range(MUTATIONS):
        try:
            found = read(mutated(encode(good), random))
        except ProtocolError:
            continue
        taken += 1
        if kind == "heads":
            assert len(found) == PARTITIONS
            assert all(0 <= head < 2**63 for head in found)
            continue
        for part in found:
            assert 0 <= part.partition < PARTITIONS
            assert all(0 < row.version <= part.revision < 2**63 for row in part.rows)
            assert all(row_partition(row.row_id, PARTITIONS) == part.partition for row in part.rows)
            assert len({row.row_id for row in part.rows}) == len(part.rows)
            if kind == "batch":
                assert {row.row_id for row in part.rows} <= set(ids)
    assert 0 < taken < MUTATIONS / 2


def test_damaged_records_are_passed_over() -> None:
    random = Random(11)
    for round_number in range(MUTATIONS // 10):
        membership = Membership()
        records: dict[str, bytes] = {}
        for number in range(5):
            node = NodeRecord(slot=number, lease=f"w{number}", incarnation="i")
            records[names.node_key("k", f"w{number}")] = encode_record(node)
            records[names.slot_key("k", number)] = encode_record(SlotClaim(worker_id=f"w{number}", lease=f"w{number}"))
        broken = random.sample(sorted(records), 2)
        records |= {name: mutated(records[name], random) for name in broken}
        membership.nodes.replace({name: Entry(1, value) for name, value in records.items()})
        lease = encode_record(LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1))
        membership.leases.replace({f"w{number}": Entry(1, lease) for number in range(5)})
        members = membership.members("k")
        hurt = {name.split(".")[-1] for name in broken}
        sound = {f"w{number}" for number in range(5)} - hurt
        assert all(0 <= member.slot < 200 for member in members), round_number
        assert len({member.slot for member in members}) == len(members)
        if not any("slot" in name for name in broken) and len(members) == 5 - len(broken):
            assert {member.worker_id for member in members} == sound
        again = membership.nodes.unreadable
        assert membership.members("k") == members
        assert membership.nodes.unreadable == again  # each is counted once


async def test_damaged_records_do_not_stop_a_worker(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    client = await nats.connect(store.nats_url)
    try:
        js = client.jetstream()
        bucket = await js.key_value(names.nodes_bucket(store.name))
        async with store.worker() as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            leases = await js.key_value(names.LEASES_BUCKET)
            await leases.put("ghost", b"\xff no lease")
            forged = [NodeRecord(slot=slot, lease="ghost", incarnation="g") for slot in (-1, 200, 2**40)]
            for number, record in enumerate(forged):
                await bucket.put(names.node_key("list", f"ghost{number}"), encode_record(record))
            await bucket.put(names.node_key("list", "ghost9"), b"{")
            with pytest.raises(NoStreamResponseError):  # there is no such slot, and no place for its record
                await bucket.put("list.slot.99999999999999999999", b"[]")
            async with asyncio.timeout(PATIENCE_S):
                while worker.stats().bad_records < 4:
                    partition, version = await store.put("a", str(worker.stats().bad_records))
                    await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            assert worker.owned("list") == frozenset(range(PARTITIONS))
            with contextlib.suppress(Exception):
                await leases.purge("ghost")
    finally:
        await client.close()
