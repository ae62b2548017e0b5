"""Broken workers and services. Each takes one rule of the protocol away; the checker has to notice every one."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import structs
from ringcast import Change
from ringcast._bus.consumers import Consumers
from ringcast._coordination import duplicate_id, peer
from ringcast._coordination.lease import LeaseHolder
from ringcast._coordination.peer import PeerCoordinator
from ringcast._delivery.handler import Applier
from ringcast._protocol import assignment, lease_reading
from ringcast._protocol.anti_entropy import AntiEntropyTimer, KnownRevisions
from ringcast._protocol.assignment import GroupMembership
from ringcast._protocol.batch_fetches import BatchFetches
from ringcast._protocol.batches import Batch, MissingRow
from ringcast._protocol.fetches import Fetches
from ringcast._protocol.filters import FilterPlan
from ringcast._protocol.intake import EventIntake
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.kv_mirror import Entry, KvMirror
from ringcast._protocol.lease import LeaseKeeper, Refusal
from ringcast._protocol.lease_reading import Lease, LeaseReadings
from ringcast._protocol.membership import Membership
from ringcast._protocol.partition import EventKind, Fetching, Partition, Token
from ringcast._worker.session import KeySession
from ringcast._worker.sessions import KeySessions
from ringcast_config_service.histories import Histories
from ringcast_config_service.nats.lane import Lane
from ringcast_config_service.nats.publisher import EventPublisher, PubAck, Sent
from ringcast_config_service.repository import OutboxRecord, WriteRequest, mapping
from ringcast_config_service.repository.base import KeptRows
from ringcast_config_service.repository.mapping import wants_whole
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite import writer
from ringcast_config_service.repository.sqlite.reader import SqliteReader
from ringcast_config_service.repository.writes import CurrentState
from ringcast_wire import ErrorCode, Event, PartitionRows, Row, decode_fetch_reply, encode

from tests.simulation import agent_variants
from tests.simulation.agent_variants import Variant
from tests.simulation.process import current
from tests.simulation.worker import Worker

_intake_take = EventIntake.take
_machine_compare = KeyMachine.compare_heads
_machine_assign = KeyMachine.assign
_partition_classify = Partition.classify
_batch_take = Batch.take
_coordinator_give_notice = PeerCoordinator.give_notice
_mirror_correct = KvMirror.correct
_readings_ends = LeaseReadings._ends
_readings_reported = LeaseReadings.ends_reported
_lane_send = Lane._send
_publisher_send = EventPublisher.send
_writer_state = writer._read_state
_reader_read = SqliteReader.read_partition
_FLOOR_AS_IT_IS: Final = Sql.RAISE_FLOOR.replace("WHERE", "WHERE 0 AND")
_HISTORY_OVERWRITTEN: Final = Sql.INSERT_HISTORY.replace("INSERT INTO", "INSERT OR REPLACE INTO")


def _ack_at_once(self: EventIntake, partition: Partition, event: Event, token: str, now: float) -> None:
    _intake_take(self, partition, event, token, now)
    self._outbox.ack([token])


def _fetch_at_once(self: KeyMachine, partitions: frozenset[int]) -> None:
    _machine_assign(self, partitions)
    if not self._full:
        self.filters_ready(partitions, 0.0)


def _classify_without_prev(self: Partition, event: Event) -> EventKind:
    kind = _partition_classify(self, event)
    return EventKind.NEXT if kind is EventKind.GAP and event.changes is not None else kind


def _do_nothing(*_: Any) -> None:
    pass


def _reconnected_trusting(self: KeySession) -> None:
    self.machine.fetches.reconnected(self._now())
    self.pump()


def _accept_anything(self: Partition, row: Row) -> bool:
    self._upsert(row)
    return True


def _delete_and_forget(self: Partition, row_id: str, version: int) -> Row:
    self.rows.pop(row_id, None)
    return Row(row_id, "", version, True)


def _take_its_revision(self: Batch, wanted: Iterable[MissingRow], reply: Sequence[PartitionRows]) -> bool:
    taken = _batch_take(self, wanted, reply)
    for part in reply if taken else ():
        partition, rev = self.revs[part.partition]
        self.revs[part.partition] = (partition, max(rev, part.revision))
    return taken


def _accept_only(self: Partition, rows: Iterable[Row], _revision: int) -> list[Row]:
    return [row for row in rows if self.accept(row)]


def _give_up_fetching(self: Fetches, request: int, _code: ErrorCode, _now: float, *, unfinished: bool = False) -> None:
    asked = self._single.ended(request)
    if asked is not None:
        self._queue.done(asked.partition)


def _advance_at_once(self: EventIntake, partition: Partition, event: Event, token: str, now: float) -> None:
    _intake_take(self, partition, event, token, now)
    if partition.live and event.changes is not None and partition.expected == event.rev:
        self._outbox.ack(partition.advance(event.rev))


def _drop_while_fetching(self: EventIntake, partition: Partition, event: Event, token: Token, now: float) -> None:
    if partition.fetching in (Fetching.REQUESTED, Fetching.APPLYING):
        self._outbox.ack([token])
    else:
        _intake_take(self, partition, event, token, now)


async def _start_and_go_on(self: Applier, _job: int, changes: list[Change]) -> None:
    for change in changes:
        if self._handler is not None:
            asyncio.get_running_loop().create_task(self._finish(self._handler, self.calls.begin(change)))


def _wake_too_soon(self: GroupMembership) -> float | None:
    return min((at for assignor in self._assignors.values() if (at := assignor.wake_at) is not None), default=None)


def _alive_for_ever(_self: Membership, _lease: str) -> bool:
    return True


async def _give_up_and_wait(self: PeerCoordinator) -> None:
    for session in current(Worker).sessions.values():
        session.ownership.assign(frozenset())
    await _coordinator_give_notice(self)


def _never(*_: Any, **__: Any) -> float:
    return math.inf


async def _nothing_to_do(*_: Any) -> None:
    pass


def _heed_higher_heads(
    self: KeyMachine, asked: KnownRevisions, heads: Sequence[int], now: float, *history: Any
) -> None:
    higher = [max(head, asked.at[n][1]) if n in asked.at else head for n, head in enumerate(heads)]
    _machine_compare(self, asked, higher, now, *history)


def _none(*_: Any) -> list[str]:
    return []


def _correct_leases_only(self: KvMirror, key: str, entry: Entry | None) -> None:
    if "." not in key:
        _mirror_correct(self, key, entry)


def _nothing_found(_self: LeaseReadings) -> tuple[str, ...]:
    return ()


def _forget_the_end(self: LeaseReadings, key: str, kept: Lease | None) -> bool:
    ended = _readings_ends(self, key, kept)
    self._ended.pop(key, None)
    return ended


def _suspect_others_only(self: LeaseReadings, reporter: str, leases: Iterable[str]) -> None:
    _readings_reported(self, reporter, [lease for lease in leases if lease != self._own])


def _not_given_up(*_: Any) -> bool:
    return False


def _take_for_ours(*_: Any) -> Refusal:
    return Refusal.OURS


async def _delete_then_publish(self: Lane, record: OutboxRecord) -> bool:
    await self._sweep._repository.delete_events([record.id])
    return await _lane_send(self, record)


async def _publish_and_hope(self: EventPublisher, subject: str, payload: bytes, headers: dict[str, str]) -> Sent:
    sent = await _publisher_send(self, subject, payload, headers)
    sent.stored.set_result(PubAck(0, False))
    return sent


async def _same_history(
    _self: Histories, _store: str, _reason: str, *, instead_of: str | None = None, after: int = 0
) -> str:
    del after
    return instead_of or ""


def _state_of_before(db: sqlite3.Connection, requests: Sequence[WriteRequest], kept: KeptRows | None) -> CurrentState:
    state = _writer_state(db, requests, kept)
    if sum(head.revision for head in state.heads.values()) % 7 == 6:
        state.heads = {ref: head._replace(revision=head.revision - 1) for ref, head in state.heads.items()}
    return state


def _forget_the_floor(since: int | None, head: int, _floor: int, rows: int) -> bool:
    return wants_whole(since, head, 0, rows)


async def _whole_without_a_word(
    self: SqliteReader, store: str, key: str, partition: int, since: int | None, *words: Any
) -> bytes:
    found = decode_fetch_reply(await _reader_read(self, store, key, partition, since, *words))
    parts = [structs.replace(part, whole=part.whole and since is None) for part in found.partitions]
    return encode(structs.replace(found, partitions=parts))


async def _head_after_the_rows(
    self: SqliteReader, store: str, key: str, partition: int, since: int | None, *words: Any
) -> bytes:
    found = decode_fetch_reply(await _reader_read(self, store, key, partition, since, *words))
    heads = (await self.heads(store, key)).heads
    parts = [structs.replace(part, revision=heads[part.partition]) for part in found.partitions]
    return encode(structs.replace(found, partitions=parts))


VARIANTS: Final = {
    "ack_before_apply": Variant(
        "acknowledges an event as soon as it is delivered", 20, ((EventIntake, "take", _ack_at_once),)
    ),
    "fetch_before_filter": Variant(
        "fetches a gained partition before the server delivers its events",
        500,
        ((KeyMachine, "assign", _fetch_at_once),),
    ),
    "ignore_prev": Variant(
        "applies any newer event as if it were the next one", 100, ((Partition, "classify", _classify_without_prev),)
    ),
    "trust_after_lost_lease": Variant(
        "does not compare with the head revisions after it lost its lease or its connection",
        100,
        ((KeySessions, "verify", _do_nothing), (KeySession, "_reconnected", _reconnected_trusting)),
    ),
    "accept_stale": Variant(
        "takes rows that are older than what it has", 100, ((Partition, "accept", _accept_anything),)
    ),
    "forget_tombstones": Variant(
        "forgets deletes of versions above its revision", 200, ((Partition, "_delete", _delete_and_forget),)
    ),
    "batch_revision": Variant(
        "sets its revision to that of a reply with only some rows", 100, ((Batch, "take", _take_its_revision),)
    ),
    "keep_what_is_not_listed": Variant(
        "keeps rows that a whole partition does not list", 100, ((Partition, "accept_whole", _accept_only),)
    ),
    "give_up_fetching": Variant("does not try a failed fetch again", 100, ((Fetches, "failed", _give_up_fetching),)),
    "applied_before_handler": Variant(
        "counts an event as applied when it arrives", 100, ((EventIntake, "take", _advance_at_once),)
    ),
    "drop_while_fetching": Variant(
        "drops and acknowledges events that come while their partition is being fetched",
        20,
        ((EventIntake, "take", _drop_while_fetching),),
    ),
    "jobs_at_once": Variant(
        "starts the next handlers before the earlier ones have returned", 20, ((Applier, "apply", _start_and_go_on),)
    ),
    "one_history": Variant(
        "keeps the same history after the database was restored", 100, ((Histories, "begin", _same_history),)
    ),
    "never_compares": Variant(
        "compares with the head revisions only on demand, never by time", 100, ((AntiEntropyTimer, "next_s", _never),)
    ),
    "ahead_of_the_database": Variant(
        "keeps its revision when the head revision is lower",
        100,
        ((KeyMachine, "compare_heads", _heed_higher_heads),),
    ),
    "forget_consumer": Variant(
        "does not create a consumer again after the server lost it",
        100,
        ((Consumers, "_lost", _do_nothing), (Consumers, "suspect_consumer", _do_nothing)),
    ),
    "dead_members": Variant(
        "counts workers whose lease has ended among the members", 100, ((Membership, "alive", _alive_for_ever),)
    ),
    "gone_before": Variant(
        "gives up its partitions when it announces that it leaves, not when it leaves",
        100,
        ((PeerCoordinator, "give_notice", _give_up_and_wait),),
    ),
    "keep_a_taken_id": Variant(
        "continues when another process has its worker id", 100, ((LeaseKeeper, "refused", _take_for_ours),)
    ),
    "leave_silently": Variant(
        "stops in order, but releases its partitions only when its lease ends",
        100,
        ((PeerCoordinator, "leave", _nothing_to_do), (LeaseHolder, "revoke", _nothing_to_do)),
    ),
    "outbox_first": Variant(
        "deletes outbox records before it publishes them", 100, ((Lane, "_send", _delete_then_publish),)
    ),
    "publish_and_hope": Variant(
        "counts events as published without the server's acknowledgement",
        100,
        ((EventPublisher, "send", _publish_and_hope),),
    ),
    "revision_twice": Variant(
        "sometimes gives two writes the same revision",
        20,
        (
            (writer, "_read_state", _state_of_before),
            (Sql, "INSERT_HISTORY", _HISTORY_OVERWRITTEN),
        ),
    ),
    "below_the_floor": Variant(
        "answers a fetch since a revision though tombstones after it were removed",
        100,
        ((mapping, "wants_whole", _forget_the_floor),),
    ),
    "compact_untold": Variant(
        "removes tombstones and does not record up to which revision",
        100,
        ((Sql, "RAISE_FLOOR", _FLOOR_AS_IT_IS),),
    ),
    "whole_without_a_word": Variant(
        "answers with a whole partition and does not mark it as whole",
        100,
        ((SqliteReader, "read_partition", _whole_without_a_word),),
    ),
    "head_after_the_rows": Variant(
        "reads the revision of an answer after its rows",
        100,
        ((SqliteReader, "read_partition", _head_after_the_rows),),
    ),
    # What tests and the simulation have found, and is mended.
    "half_a_view": Variant(
        "acts on the members before it has read all of them",
        300,
        (
            (GroupMembership, "wake_at", property(_wake_too_soon)),
            (peer, "_DUPLICATE_POLL_S", 0.0),
            (duplicate_id, "_POLL_S", 0.0),
        ),
    ),
    "waiting_batch": Variant(
        "lets all changes wait for a failed fetch whose row has arrived another way",
        100,
        ((BatchFetches, "drop_satisfied", _do_nothing),),
    ),
    "old_leases": Variant(
        "never reads a lease a second time",
        100,
        ((LeaseReadings, "_neighbours", _none), (LeaseReadings, "_in_turn", _none)),
    ),
    "old_answer": Variant(
        "trusts a server that still has leases which ended long ago",
        200,
        ((lease_reading, "ENDED_AFTER_S", math.inf), (LeaseReadings, "_ends", _forget_the_end)),
    ),
    "tells_nobody": Variant(
        "watches only its neighbour's lease, and does not report its end",
        100,
        (
            (LeaseReadings, "reports", property(_nothing_found)),
            (LeaseReadings, "_in_turn", _none),
            (lease_reading, "WATCHED", 1),
        ),
    ),
    "taken_for_dead": Variant(
        "does not answer a report that it is dead",
        100,
        ((LeaseReadings, "ends_reported", _suspect_others_only), (LeaseReadings, "_in_turn", _none)),
    ),
    "waiting_for_nobody": Variant(
        "waits for its grace time after a disconnection, though the others have given up its share",
        200,
        ((lease_reading, "is_given_up", _not_given_up), (assignment, "is_given_up", _not_given_up)),
    ),
    "timed_out_update": Variant(
        "treats an update of its filters that timed out as one without effect",
        100,
        ((FilterPlan, "update_sent", _do_nothing),),
    ),
    "vanished_marker": Variant(
        "does not read a slot's record again after its claim was refused",
        200,
        ((KvMirror, "correct", _correct_leases_only),),
    ),
    **agent_variants.VARIANTS,
}
