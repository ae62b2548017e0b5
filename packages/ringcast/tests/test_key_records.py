"""The records of a worker's keys, and the check for another process with its id, over buckets in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from ringcast._bus.buckets import ConflictError
from ringcast._bus.bus import NotFoundError, RejectedError, StoredMessage
from ringcast._bus.kv import NatsBucket, NatsBuckets
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._coordination import duplicate_id
from ringcast._coordination.duplicate_id import DuplicateIdCheck, DuplicateIdError
from ringcast._coordination.full_records import FullRecords
from ringcast._coordination.key_records import TOUCH_S, KeyRecords
from ringcast._coordination.observer import NoLease
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.lease_reading import Lease
from ringcast._protocol.membership import Membership
from ringcast._protocol.planned import PlannedChange
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import InUseError, LeaseRecord, NodePhase, NodeRecord, SlotClaim, decode_record, encode_record, names

LOG = worker_log(logging.getLogger("ringcast"))
CONFIG = WorkerConfig(store="s", keys=("k",), servers=("nats://nowhere",), worker_id="w")
NODE = names.node_key("k", "w")
LEASE = encode_record(LeaseRecord(incarnation="other", host="h", pid=1, started_at_ms=1))


def slot(number: int) -> str:
    return names.slot_key("k", number)


class KvBus:
    """The bucket of nodes, by the two calls of a bus that a bucket makes, with a connection that never breaks."""

    def __init__(self) -> None:
        self.found: dict[str, StoredMessage] = {}
        self.written: list[str] = []
        self.failure: Exception | None = None
        self.unanswered = ""
        """The record whose next write has no answer."""
        self._sequence = 0

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        name = subject.removeprefix(f"$KV.{names.nodes_bucket('s')}.")
        if name == self.unanswered:
            self.unanswered = ""
            await self.store(subject, payload, headers)
            raise TimeoutError
        known = self.found.get(name)
        if int(headers["Nats-Expected-Last-Subject-Sequence"]) != (known.sequence if known else 0):
            raise RejectedError("wrong last sequence", 10071)
        self.written.append(f"-{name}" if "KV-Operation" in headers else name)
        return self.put(name, payload, headers)

    def on_back(self, callback: Callable[[], None]) -> None:
        """Never."""

    async def last_message(self, stream: str, subject: str, *, newest: bool = False) -> StoredMessage:
        if self.failure is not None:
            raise self.failure
        try:
            return self.found[subject.removeprefix(f"$KV.{names.nodes_bucket('s')}.")]
        except KeyError:
            raise NotFoundError("no message", 10037) from None

    def put(self, name: str, payload: bytes, headers: dict[str, str] | None = None) -> int:
        """Another process writes, without a check, if the worker itself does not."""
        self._sequence += 1
        self.found[name] = StoredMessage(self._sequence, payload, headers or {})
        return self._sequence


class Records:
    """The records of worker ``w``, which has been given incarnation ``i``."""

    def __init__(self, **settings: Any) -> None:
        self.bus = KvBus()
        self.membership = Membership()
        self.membership.nodes.replace({})
        self.membership.leases.replace({})
        self.records = KeyRecords(
            NatsBucket(cast(Any, self.bus), names.nodes_bucket("s")),
            self.membership,
            msgspec.structs.replace(CONFIG, **settings),
            "i",
            LOG,
        )
        self.planned = PlannedChange("k", "w", self.membership, 0.0)
        self.planned.join(0.0)

    async def publish(self, lease: str = "w") -> list[str]:
        """Publishes; returns what was written."""
        self.bus.written = []
        await self.records.publish("k", lease, self.planned)
        return self.bus.written

    @property
    def may_call(self) -> bool:
        """Whether the marker of the registration says that calls may run."""
        return names.HEADER_MAY_CALL in self.bus.found[NODE].headers

    def sees(self) -> None:
        """The mirror shows that the registration is gone."""
        self.membership.nodes.put(NODE, Entry(self.bus.found[NODE].sequence, None))

    def see(self, name: str, record: NodeRecord | SlotClaim) -> None:
        """The bucket has a record of another process, and the mirror shows it."""
        value = encode_record(record)
        self.membership.nodes.put(name, Entry(self.bus.put(name, value), value))


async def test_a_claim_and_a_record_are_written_once_and_again_for_another_lease() -> None:
    made = Records()
    assert not made.records.registered("k")
    assert await made.publish() == [slot(0), NODE]
    assert made.records.registered("k")
    assert await made.publish() == []
    assert made.membership.nodes.get(NODE, NodeRecord) == NodeRecord(slot=0, lease="w", incarnation="i")
    assert await made.publish("host.1") == [slot(0), NODE]
    assert made.membership.nodes.get(slot(0), SlotClaim) == SlotClaim(worker_id="w", lease="host.1")


async def test_an_announcement_writes_the_record_and_not_the_claim() -> None:
    made = Records()
    await made.publish()
    made.records.announce()
    assert await made.publish() == [NODE]
    assert await made.publish() == []


async def test_records_are_refreshed_before_the_bucket_deletes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Records()
    await made.publish()
    loop = asyncio.get_running_loop()
    later = loop.time() + TOUCH_S + 1
    monkeypatch.setattr(loop, "time", lambda: later)
    assert await made.publish() == [slot(0), NODE]


async def test_a_phase_is_written_into_the_record() -> None:
    made = Records()
    await made.publish()
    made.planned.phase = NodePhase.LEAVING
    assert await made.publish() == [NODE]
    record = made.membership.nodes.get(NODE, NodeRecord)
    assert record is not None
    assert record.phase is NodePhase.LEAVING


async def test_after_a_lost_race_the_mirror_shows_the_winner_and_the_next_slot_is_chosen() -> None:
    made = Records()
    made.membership.leases.correct("v", Entry(1, LEASE))
    made.bus.put(slot(0), encode_record(SlotClaim(worker_id="v", lease="v")))
    with pytest.raises(ConflictError):
        await made.publish()
    assert made.membership.nodes.get(slot(0), SlotClaim) == SlotClaim(worker_id="v", lease="v")
    assert await made.publish() == [slot(1), NODE]


async def test_leaving_deletes_the_claim_before_the_record() -> None:
    made = Records()
    await made.publish()
    made.bus.written = []
    await made.records.leave("k", may_call=False)
    assert made.bus.written == [f"-{slot(0)}", f"-{NODE}"]
    assert not made.may_call


@pytest.mark.parametrize("name", [slot(0), NODE])
@pytest.mark.parametrize("again", [False, True])
async def test_leaving_deletes_what_was_written_without_an_answer(name: str, again: bool) -> None:
    """The mirror has the record of before, or none; nobody else would delete it for a day."""
    made = Records()
    if again:
        await made.publish()
    made.bus.unanswered = name
    with pytest.raises(TimeoutError):
        await made.publish("host.1")
    made.bus.written = []
    await made.records.leave("k", may_call=False)
    expected = [f"-{slot(0)}", f"-{NODE}"] if again or name == NODE else [f"-{slot(0)}"]
    assert made.bus.written == expected


async def test_what_another_process_has_written_over_an_unanswered_record_is_left_alone() -> None:
    made = Records()
    made.bus.unanswered = NODE
    with pytest.raises(TimeoutError):
        await made.publish()
    made.bus.put(NODE, encode_record(NodeRecord(slot=0, lease="w", incarnation="other")))
    made.bus.written = []
    await made.records.leave("k", may_call=False)
    assert made.bus.written == [f"-{slot(0)}"]


async def test_a_write_that_comes_after_the_worker_has_left_is_kept_out() -> None:
    made = Records()
    store, late = made.bus.store, asyncio.Event()

    async def slow(subject: str, payload: bytes, headers: dict[str, str]) -> int:
        made.bus.store = store  # type: ignore[method-assign]
        await late.wait()
        return await store(subject, payload, headers)

    made.bus.store = slow  # type: ignore[method-assign]
    record = NodeRecord(slot=0, lease="w", incarnation="i")
    writing = asyncio.create_task(made.records.write(NODE, encode_record(record), 0))
    await asyncio.sleep(0)
    await made.records.leave("k", may_call=False)
    late.set()
    with pytest.raises(ConflictError):
        await writing
    assert made.bus.written == [f"-{NODE}"]


async def test_a_key_that_was_left_while_calls_ran_is_counted_until_they_have_ended() -> None:
    """An operator must not take the store to owners before."""
    made = Records()
    await made.publish()
    await made.records.leave("k", may_call=True)
    assert made.may_call
    made.sees()
    await made.records.leave("k", may_call=True)
    assert made.may_call
    await made.records.leave("k", may_call=False)
    assert not made.may_call


async def test_a_worker_with_a_cache_is_counted_after_its_end() -> None:
    """Its next process hands over what the cache has before it is registered."""
    made = Records(cache_dir="/nowhere")
    await made.publish()
    await made.records.leave("k", may_call=False)
    assert made.may_call
    assert names.HEADER_MAY_CALL not in made.bus.found[slot(0)].headers
    made.sees()
    await made.records.leave("k", may_call=False)
    assert made.may_call


async def test_the_records_of_another_process_of_this_id_are_left_alone() -> None:
    made = Records()
    made.see(slot(0), SlotClaim(worker_id="w", lease="w"))
    made.see(NODE, NodeRecord(slot=0, lease="w", incarnation="other"))
    await made.records.leave("k", may_call=False)
    assert made.bus.written == []


async def test_a_record_that_has_changed_since_it_was_seen_is_not_deleted() -> None:
    made = Records()
    await made.publish()
    made.bus.put(NODE, b"{}")
    made.bus.written = []
    await made.records.drop(NODE)
    await made.records.drop("k.never")
    assert made.bus.written == []
    await made.records.drop_slots("k", [0, 7])
    assert made.bus.written == [f"-{slot(0)}"]


async def written(records: FullRecords, bus: KvBus) -> None:
    """Has the records written once, and ends the task that does."""
    running = asyncio.create_task(records.run())
    await until(lambda: bool(bus.written))
    running.cancel()
    await asyncio.wait({running})


async def test_a_worker_says_which_versions_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("key_records", "full_records"):
        monkeypatch.setattr(f"ringcast._coordination.{kind}.NEWEST_WIRE_VERSION", 3)
    made, bus = Records(), KvBus()
    await made.publish()
    assert decode_record(made.bus.found[NODE].data, NodeRecord).wire == 3
    await written(FullRecords(NatsBuckets(cast(Any, bus)), CONFIG, NoLease(), "i", LOG), bus)
    assert b'"wire":3' in bus.found[NODE].data


@pytest.mark.parametrize("answered", [True, False])
async def test_a_worker_of_a_full_store_deletes_its_records_when_it_leaves(answered: bool) -> None:
    bus = KvBus()
    records = FullRecords(NatsBuckets(cast(Any, bus)), CONFIG, NoLease(), "i", LOG)
    bus.unanswered = "" if answered else NODE
    await written(records, bus)
    await records.leave()
    assert bus.written == [NODE, f"-{NODE}"]


async def test_a_worker_of_a_full_store_that_never_wrote_leaves_nothing() -> None:
    bus = KvBus()
    await FullRecords(NatsBuckets(cast(Any, bus)), CONFIG, NoLease(), "i", LOG).leave()
    assert bus.written == []


async def test_a_worker_of_a_full_store_leaves_the_record_of_another_process_alone() -> None:
    bus = KvBus()
    records = FullRecords(NatsBuckets(cast(Any, bus)), CONFIG, NoLease(), "i", LOG)
    bus.unanswered = NODE
    await written(records, bus)
    bus.put(NODE, encode_record(NodeRecord(slot=0, lease="w", incarnation="other")))
    await records.leave()
    assert bus.written == [NODE]


class Reader:
    """Reads leases: those in ``alive`` live."""

    def __init__(self) -> None:
        self.alive: set[str] = set()

    async def read_once(self, leases: list[str]) -> dict[str, Lease]:
        return {lease: Lease(1, LEASE, 0.0) for lease in leases if lease in self.alive}


class Check:
    """The check of worker ``w`` of incarnation ``i``."""

    def __init__(self) -> None:
        self.reader, self.lease, self.made = Reader(), NoLease(), Records()
        nodes = NatsBucket(cast(Any, self.made.bus), names.nodes_bucket("s"))
        self.check = DuplicateIdCheck(nodes, self.made.membership, cast(Any, self.reader), self.lease, CONFIG, "i", LOG)

    def other(self, *, alive: bool, incarnation: str = "other") -> None:
        """Another process has written the record of the id."""
        self.made.see(NODE, NodeRecord(slot=0, lease="host.2", incarnation=incarnation))
        self.made.membership.leases.correct("host.2", Entry(1, LEASE if alive else None))
        self.reader.alive = {"host.2"} if alive else set()


@pytest.mark.parametrize(("alive", "incarnation"), [(False, "other"), (True, "i")])
async def test_a_dead_process_and_this_one_are_no_duplicates(alive: bool, incarnation: str) -> None:
    check = Check()
    check.other(alive=alive, incarnation=incarnation)
    assert not check.check.found("k")
    check.check.check("k", registered=False)
    async with asyncio.timeout(PATIENCE_S):
        await check.check.wait_until_alone()
    assert not check.lease.id_in_use


async def test_a_live_process_is_waited_for_until_its_lease_would_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check()
    check.other(alive=True)
    assert check.check.found("k")
    with pytest.raises(DuplicateIdError):
        check.check.check("k", registered=False)
    monkeypatch.setattr(duplicate_id, "PATIENCE_S", 0.0)
    with pytest.raises(InUseError, match="'w' is in use by another process on host h"):
        check.check.check("k", registered=False)
    assert check.lease.id_in_use


async def test_a_process_that_comes_after_the_registration_is_an_error_at_once() -> None:
    check = Check()
    check.other(alive=True)
    with pytest.raises(InUseError):
        check.check.check("k", registered=True)


async def test_a_start_waits_for_the_other_process_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicate_id, "_POLL_S", 0.0)
    check = Check()
    check.other(alive=True)
    waiting = asyncio.create_task(check.check.wait_until_alone())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    check.reader.alive = set()
    await asyncio.wait_for(waiting, PATIENCE_S)


async def test_a_start_goes_on_trying_while_the_records_can_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicate_id, "_POLL_S", 0.0)
    monkeypatch.setattr(duplicate_id, "PATIENCE_S", 0.0)
    check = Check()
    check.made.bus.failure = OSError("the connection broke")
    waiting = asyncio.create_task(check.check.wait_until_alone())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    check.made.bus.failure = None
    check.other(alive=True)
    with pytest.raises(InUseError):
        await asyncio.wait_for(waiting, PATIENCE_S)
