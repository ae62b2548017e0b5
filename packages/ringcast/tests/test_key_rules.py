"""The rules of a key's machine, one by one, where chance would rarely lead."""

from __future__ import annotations

from random import Random
from typing import TypeVar

import pytest
from ringcast._protocol.actions import (
    Ack,
    Action,
    Announce,
    Apply,
    FetchBatch,
    FetchFull,
    FetchPartition,
    GiveUpFetch,
    Restored,
)
from ringcast._protocol.batches import MAX_GATHERED_ROWS, PAUSE_AT_ROWS
from ringcast._protocol.deliveries import MAX_OPEN_BATCHES
from ringcast._protocol.fetch_queue import MAX_FETCHES
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.partition import MAX_WAITING_EVENTS, Partition
from ringcast_wire import Change, ErrorCode, Event, PartitionRows, Row

A = TypeVar("A")


class Bench:
    """A machine whose fetches and jobs are done by hand."""

    def __init__(self, partitions: int = 1, *, full: bool = False) -> None:
        self.pending: list[Action] = []
        self.machine = KeyMachine("s", "k", full=full, partition_count=partitions, random=Random(1).random)
        self.now = 0.0
        self.machine.assign(frozenset(range(partitions)))
        self.machine.filters_ready(range(partitions), self.now)

    def live(self, rows: list[Row] | None = None, revision: int = 0) -> Bench:
        """Brings every partition to life with these rows."""
        self.announced()
        for fetch in self.poll(FetchPartition):
            part = PartitionRows(fetch.partition, revision, True, rows or [])
            self.machine.fetches.partition_reply(fetch.request, part, self.now)
        for job in self.poll(Apply):
            self.done(job)
        assert self.machine.ready
        return self

    def announced(self) -> None:
        self.pending = self.machine.poll(self.now)
        for action in self.pending:
            if isinstance(action, Announce):
                self.machine.handover.done(action.number, self.now)

    def poll(self, kind: type[A]) -> list[A]:
        """What of one kind is to be done; all else stays for the next call."""
        self.pending = self.pending + self.machine.poll(self.now)
        found: list[A] = [action for action in self.pending if isinstance(action, kind)]
        self.pending = [action for action in self.pending if not isinstance(action, kind)]
        return found

    def done(self, job: Apply) -> None:
        self.machine.handover.done(job.number, self.now)

    def event(self, prev: int, rev: int, *changes: Change, token: str = "t", none: bool = False) -> None:
        self.machine.event(0, Event(1, prev, rev, 7, None if none else list(changes)), token, self.now)


def inline(row_id: str, version: int) -> Change:
    return Change(row_id, version, False, f"v{version}")


def fetched(row_id: str, version: int) -> Change:
    return Change(row_id, version)


def test_a_partition_is_fetched_only_after_its_filter_is_confirmed() -> None:
    machine = KeyMachine("s", "k", full=False, partition_count=2, random=Random(1).random)
    machine.assign(frozenset({0, 1}))
    assert [type(action) for action in machine.poll(0)] == [Announce]
    machine.filters_ready([1], 0)
    (fetch,) = machine.poll(0)
    assert isinstance(fetch, FetchPartition)
    assert (fetch.partition, fetch.since) == (1, None)


def test_a_partition_is_loaded_once_its_rows_are_handed_over_and_tells_every_deletion_from_then_on() -> None:
    bench = Bench()
    bench.announced()
    (fetch,) = bench.poll(FetchPartition)
    assert bench.machine.loaded() == set()
    part = PartitionRows(0, 2, True, [Row("b", "1", 2)])
    bench.machine.fetches.partition_reply(fetch.request, part, bench.now)
    (job,) = bench.poll(Apply)
    assert bench.machine.loaded() == set()
    bench.done(job)
    assert bench.machine.loaded() == {0}
    bench.event(2, 3, Change("never here", 3, True))
    (job,) = bench.poll(Apply)
    assert [(change.row_id, change.deleted) for change in job.changes] == [("never here", True)]
    bench.machine.assign(frozenset())
    assert bench.machine.loaded() == set()


def test_only_so_many_partitions_are_fetched_at_once() -> None:
    bench = Bench(partitions=100)
    assert len(bench.poll(FetchPartition)) == MAX_FETCHES


def test_the_first_change_after_idle_goes_at_once_and_later_ones_gather() -> None:
    bench = Bench().live()
    bench.event(0, 1, inline("a", 1))
    (first,) = bench.poll(Apply)
    bench.event(1, 2, inline("b", 2))
    bench.event(2, 3, inline("b", 3))
    assert not bench.poll(Apply)
    bench.done(first)
    (second,) = bench.poll(Apply)
    assert [(change.row_id, change.version) for change in second.changes] == [("b", 3)]


def test_the_window_has_a_fixed_end() -> None:
    bench = Bench().live()
    bench.event(0, 1, fetched("r1", 1))
    assert len(bench.poll(FetchBatch)) == 1
    for rev in range(2, 12):
        bench.now = 0.01 * (rev - 1)
        bench.event(rev - 1, rev, fetched(f"r{rev}", rev))
        assert not bench.poll(FetchBatch)
    bench.now = 0.01 + 0.0999
    assert not bench.poll(FetchBatch)
    assert bench.machine.wake_at == pytest.approx(0.11)
    bench.now = 0.11
    (fetch,) = bench.poll(FetchBatch)
    assert fetch.row_ids == [f"r{rev}" for rev in range(2, 12)]


def test_only_so_many_batches_are_open_and_they_are_applied_in_order() -> None:
    bench = Bench().live()
    fetches: list[FetchBatch] = []
    for rev in range(1, 10):
        bench.event(rev - 1, rev, fetched(f"r{rev}", rev))
        fetches += bench.poll(FetchBatch)
        bench.now += 1.0
        fetches += bench.poll(FetchBatch)
    assert len(fetches) == MAX_OPEN_BATCHES
    for fetch in reversed(fetches[1:]):
        rows = [Row(row_id, "x", int(row_id[1:])) for row_id in fetch.row_ids]
        bench.machine.fetches.batch_reply(fetch.request, [PartitionRows(0, 9, False, rows)], bench.now)
    assert not bench.poll(Apply)  # the first is still on its way
    bench.machine.fetches.batch_reply(fetches[0].request, [PartitionRows(0, 9, False, [Row("r1", "x", 1)])], bench.now)
    seen = []
    while jobs := bench.poll(Apply):
        seen += [change.row_id for change in jobs[0].changes]
        bench.done(jobs[0])
    assert seen[:4] == ["r1", "r2", "r3", "r4"]


def test_the_revision_of_a_batch_reply_is_never_taken_for_applied() -> None:
    bench = Bench().live()
    bench.event(0, 1, fetched("a", 1))
    (fetch,) = bench.poll(FetchBatch)
    bench.machine.fetches.batch_reply(fetch.request, [PartitionRows(0, 50, False, [Row("a", "x", 40)])], bench.now)
    (job,) = bench.poll(Apply)
    assert (job.changes[0].version, job.changes[0].committed_at_ms) == (40, None)
    bench.done(job)
    assert bench.machine.partitions[0].applied == 1


def test_a_row_that_the_service_does_not_know_is_deleted_at_the_version_of_the_event() -> None:
    bench = Bench().live([Row("a", "x", 3)], revision=3)
    bench.event(3, 5, fetched("a", 4), fetched("b", 5))
    (fetch,) = bench.poll(FetchBatch)
    bench.machine.fetches.batch_reply(fetch.request, [PartitionRows(0, 9, False, [Row("b", "y", 5)])], bench.now)
    (job,) = bench.poll(Apply)
    assert [(c.row_id, c.version, c.deleted) for c in job.changes] == [("a", 4, True), ("b", 5, False)]


def test_a_batch_reply_that_is_older_than_its_event_is_asked_for_again() -> None:
    bench = Bench().live()
    bench.event(0, 2, fetched("a", 2))
    (fetch,) = bench.poll(FetchBatch)
    bench.machine.fetches.batch_reply(fetch.request, [PartitionRows(0, 1, False, [])], bench.now)
    assert not bench.poll(Apply)
    bench.now += 1.0
    (again,) = bench.poll(FetchBatch)
    assert again.row_ids == ["a"]


def test_a_batch_too_large_for_one_reply_is_halved() -> None:
    bench = Bench().live()
    bench.event(0, 4, *(fetched(f"r{n}", n) for n in range(1, 5)))
    (fetch,) = bench.poll(FetchBatch)
    bench.machine.fetches.failed(fetch.request, ErrorCode.LIMIT_EXCEEDED, bench.now)
    assert [half.row_ids for half in bench.poll(FetchBatch)] == [["r1", "r2"], ["r3", "r4"]]


def test_a_batch_is_split_at_the_limit_of_a_request() -> None:
    bench = Bench().live()
    bench.event(0, 1, inline("first", 1))
    (job,) = bench.poll(Apply)
    rev = 1
    for _ in range(10):
        bench.event(rev, rev + 250, *(fetched(f"r{n}", n) for n in range(rev + 1, rev + 251)))
        rev += 250
    bench.done(job)
    assert [len(fetch.row_ids) for fetch in bench.poll(FetchBatch)] == [1000, 1000, 500]


def test_pulling_pauses_when_much_has_gathered_and_what_does_not_fit_is_fetched_later() -> None:
    bench = Bench().live()
    bench.event(0, 1, inline("first", 1))
    (job,) = bench.poll(Apply)
    rev = 1
    while rev - 1 + 256 <= MAX_GATHERED_ROWS:
        assert bench.machine.paused is (rev - 1 >= PAUSE_AT_ROWS)
        bench.event(rev, rev + 256, *(inline(f"r{n}", n) for n in range(rev + 1, rev + 257)))
        rev += 256
    assert not bench.poll(FetchPartition)
    bench.event(rev, rev + 256, *(inline(f"r{n}", n) for n in range(rev + 1, rev + 257)))
    (fetch,) = bench.poll(FetchPartition)
    assert fetch.since == 0
    bench.done(job)


def test_an_event_is_acknowledged_only_after_the_handler() -> None:
    bench = Bench().live()
    bench.event(0, 1, inline("a", 1), token="one")
    bench.event(0, 1, inline("a", 1), token="again")
    (job,) = bench.poll(Apply)
    assert not bench.poll(Ack)
    bench.done(job)
    assert [ack.tokens for ack in bench.poll(Ack)] == [["again"]]
    bench.event(0, 1, inline("a", 1), token="late")
    assert [ack.tokens for ack in bench.poll(Ack)] == [["late"]]


def test_of_an_event_that_two_consumers_deliver_both_deliveries_are_acknowledged_once_it_is_applied() -> None:
    """Else those of one would count there until they come again, and events of other partitions wait behind them."""
    bench = Bench().live()
    ones = ["$JS.ACK.s.c.1.7.1.9.0", "$JS.ACK.s.c.2.7.3.9.0"]
    others = ["$JS.ACK.s.c~1.1.7.2.9.0", "$JS.ACK.s.c~1.2.7.3.9.0"]
    for token in (ones[0], others[0], ones[1], others[1]):
        bench.event(0, 1, inline("a", 1), token=token)
    assert not bench.poll(Ack)
    (job,) = bench.poll(Apply)
    bench.done(job)
    assert [ack.tokens for ack in bench.poll(Ack)] == [[ones[1], others[1]]]

    bench.event(1, 3, fetched("a", 3), token=ones[0])
    bench.event(1, 3, fetched("a", 3), token=others[0])  # while its fetch is under way
    bench.machine.assign(frozenset())
    assert [ack.tokens for ack in bench.poll(Ack)] == [[ones[0], others[0]]], "the next owner begins with a fetch"


def test_events_past_the_bound_are_remembered_by_their_revision_alone() -> None:
    bench = Bench()
    for rev in range(1, MAX_WAITING_EVENTS + 11):
        bench.event(rev - 1, rev, inline("a", rev), token=f"t{rev}")
    bench.announced()
    (fetch,) = bench.poll(FetchPartition)
    assert len(bench.machine.partitions[0].waiting) == MAX_WAITING_EVENTS
    bench.machine.fetches.partition_reply(fetch.request, PartitionRows(0, 5, True, [Row("a", "v5", 5)]), bench.now)
    (job,) = bench.poll(Apply)
    bench.done(job)
    (catch_up,) = bench.poll(FetchPartition) or _later(bench)
    assert catch_up.since == 5


def _later(bench: Bench) -> list[FetchPartition]:
    bench.now += 1.0
    return bench.poll(FetchPartition)


def test_a_reply_that_falls_short_is_not_asked_for_again_at_once() -> None:
    bench = Bench().live()
    bench.event(5, 6, inline("a", 6))
    waits = []
    for _ in range(5):
        (fetch,) = bench.poll(FetchPartition)
        bench.machine.fetches.partition_reply(fetch.request, PartitionRows(0, 0, False, []), bench.now)
        assert not bench.poll(FetchPartition)
        assert bench.machine.wake_at is not None
        waits.append(bench.machine.wake_at - bench.now)
        bench.now = bench.machine.wake_at
    assert waits[0] <= 0.05
    assert waits[-1] > waits[0]


def test_a_failed_fetch_is_tried_again_between_half_a_second_and_thirty() -> None:
    bench = Bench()
    waits = []
    for _ in range(12):
        (fetch,) = bench.poll(FetchPartition)
        bench.machine.fetches.failed(fetch.request, ErrorCode.UNAVAILABLE, bench.now)
        assert not bench.poll(FetchPartition)
        assert bench.machine.wake_at is not None
        waits.append(bench.machine.wake_at - bench.now)
        bench.now = bench.machine.wake_at
    assert 0.5 <= waits[0] <= 1.0
    assert 15.0 <= waits[-1] <= 30.0
    (fetch,) = bench.poll(FetchPartition)
    bench.machine.fetches.failed(fetch.request, ErrorCode.UNAVAILABLE, bench.now)
    bench.machine.fetches.reconnected(bench.now)
    assert len(bench.poll(FetchPartition)) == 1


def test_an_unknown_key_is_empty() -> None:
    bench = Bench()
    bench.announced()
    (fetch,) = bench.poll(FetchPartition)
    bench.machine.fetches.failed(fetch.request, ErrorCode.UNKNOWN_KEY, bench.now)
    bench.poll(Apply)
    assert bench.machine.ready
    assert bench.machine.partitions[0].applied == 0


def test_heads_ahead_lead_to_a_fetch_unless_the_events_come() -> None:
    for late in (True, False):
        bench = Bench().live()
        asked = bench.machine.known_revisions()
        bench.machine.compare_heads(asked, [1], bench.now)
        assert not bench.poll(FetchPartition)
        if late:
            bench.event(0, 1, inline("a", 1))
        bench.now = bench.machine.wake_at or bench.now
        assert len(bench.poll(FetchPartition)) == (0 if late else 1)


def test_heads_behind_mean_a_restored_database_and_replace_everything() -> None:
    bench = Bench().live([Row("kept", "x", 4), Row("gone", "x", 9), Row("old", "new", 8)], revision=9)
    asked = bench.machine.known_revisions()
    bench.machine.compare_heads(asked, [5], bench.now)
    (fetch,) = bench.poll(FetchPartition)
    assert fetch.since is None
    rows = [Row("kept", "x", 4), Row("old", "old", 2)]
    bench.machine.fetches.partition_reply(fetch.request, PartitionRows(0, 5, True, rows), bench.now)
    (job,) = bench.poll(Apply)
    assert {(c.row_id, c.value) for c in job.changes} == {("old", "old"), ("gone", None)}
    assert [(r.applied, r.head) for r in bench.poll(Restored)] == [(9, 5)]
    bench.done(job)
    assert bench.machine.partitions[0].applied == 5
    assert {row.row_id for row in bench.machine.partitions[0].rows.values()} == {"kept", "old"}
    bench.event(5, 6, inline("next", 6))
    assert [c.row_id for job in bench.poll(Apply) for c in job.changes] == ["next"]


def test_a_since_that_is_answered_whole_from_before_it_is_a_restore_too() -> None:
    bench = Bench().live([Row("a", "x", 9)], revision=9)
    bench.event(20, 21, inline("b", 21))
    (fetch,) = bench.poll(FetchPartition)
    assert fetch.since == 9
    bench.machine.fetches.partition_reply(fetch.request, PartitionRows(0, 3, True, [Row("a", "old", 2)]), bench.now)
    (job,) = bench.poll(Apply)
    assert [(c.row_id, c.value, c.version) for c in job.changes] == [("a", "old", 2)]
    assert len(bench.poll(Restored)) == 1


def test_a_full_fetch_that_is_too_large_goes_on_partition_by_partition() -> None:
    bench = Bench(partitions=3, full=True)
    (fetch,) = bench.poll(FetchFull)
    bench.machine.fetches.failed(fetch.request, ErrorCode.LIMIT_EXCEEDED, bench.now)
    assert [part.partition for part in bench.poll(FetchPartition)] == [0, 1, 2]


def test_so_does_one_that_is_not_answered_in_time() -> None:
    bench = Bench(partitions=3, full=True)
    (fetch,) = bench.poll(FetchFull)
    bench.machine.fetches.failed(fetch.request, ErrorCode.UNAVAILABLE, bench.now, unfinished=True)
    assert [part.partition for part in bench.poll(FetchPartition)] == [0, 1, 2]
    bench.now += 60.0
    assert not bench.poll(FetchFull)


def test_one_that_nobody_could_answer_is_tried_again() -> None:
    bench = Bench(partitions=3, full=True)
    (fetch,) = bench.poll(FetchFull)
    bench.machine.fetches.failed(fetch.request, ErrorCode.UNAVAILABLE, bench.now)
    assert not bench.poll(FetchPartition)
    bench.now += 1.0
    assert len(bench.poll(FetchFull)) == 1


def test_a_partition_that_a_full_reply_does_not_name_is_empty() -> None:
    bench = Bench(partitions=3, full=True)
    bench.announced()
    (fetch,) = [action for action in bench.pending if isinstance(action, FetchFull)]
    bench.machine.fetches.full_reply(fetch.request, [PartitionRows(1, 2, True, [Row("a", "x", 2)])])
    for job in bench.poll(Apply):
        bench.done(job)
    assert not bench.poll(Apply)
    assert {n: p.applied for n, p in bench.machine.partitions.items()} == {0: 0, 1: 2, 2: 0}
    assert bench.machine.ready


def test_a_partition_that_was_lost_gives_its_tokens_up_and_its_late_replies_come_to_nothing() -> None:
    bench = Bench().live([Row("a", "x", 1)], revision=1)
    bench.event(1, 2, fetched("a", 2), token="t2")
    (fetch,) = bench.poll(FetchBatch)
    bench.machine.assign(frozenset())
    assert [ack.tokens for ack in bench.poll(Ack)] == [["t2"]]
    bench.machine.fetches.batch_reply(fetch.request, [PartitionRows(0, 2, False, [Row("a", "y", 2)])], bench.now)
    assert not bench.poll(Apply)
    bench.event(2, 3, inline("a", 3), token="t3")
    assert [ack.tokens for ack in bench.poll(Ack)] == [["t3"]]


def test_a_whole_reply_does_not_touch_what_is_newer_than_it() -> None:
    partition = Partition(0, Random(1).random)
    partition.accept(Row("new", "x", 9))
    partition.accept(Row("old", "x", 3))
    partition.accept(Row("dead", "", 8, True))
    news = partition.accept_whole([Row("dead", "late", 5)], 6)
    assert [(row.row_id, row.version, row.deleted) for row in news] == [("old", 6, True)]
    assert set(partition.rows) == {"new"}


def test_the_fetch_of_a_lost_partition_is_given_up_and_makes_room_for_another() -> None:
    bench = Bench(MAX_FETCHES + 2)
    bench.announced()
    asked = {fetch.partition: fetch.request for fetch in bench.poll(FetchPartition)}
    assert len(asked) == MAX_FETCHES
    lost = min(asked)
    bench.machine.assign(frozenset(range(MAX_FETCHES + 2)) - {lost})
    assert bench.poll(GiveUpFetch) == [GiveUpFetch(asked[lost])]
    assert not bench.machine.fetches.awaits(asked[lost])
    assert len(bench.poll(FetchPartition)) == 1
    bench.machine.fetches.partition_reply(asked[lost], PartitionRows(lost, 1, True, [Row("r", "v", 1)]), bench.now)
    bench.machine.fetches.failed(asked[lost], ErrorCode.UNAVAILABLE, bench.now)
    assert not bench.poll(FetchPartition)
    assert not bench.poll(Apply)


def test_the_fetch_of_a_whole_key_is_given_up_with_the_key() -> None:
    bench = Bench(4, full=True)
    (fetch,) = bench.poll(FetchFull)
    bench.machine.assign(frozenset())
    assert bench.poll(GiveUpFetch) == [GiveUpFetch(fetch.request)]
    bench.machine.fetches.full_reply(fetch.request, [PartitionRows(0, 1, True, [Row("r", "v", 1)])], bench.now)
    assert not bench.poll(Apply)
    assert bench.machine.wake_at is None


def test_a_fetch_of_rows_is_given_up_when_all_its_partitions_are_lost() -> None:
    bench = Bench(2).live()
    bench.event(0, 1, fetched("r", 1))
    (fetch,) = bench.poll(FetchBatch)
    bench.machine.assign(frozenset({1}))
    assert bench.poll(GiveUpFetch) == [GiveUpFetch(fetch.request)]
    bench.machine.fetches.batch_reply(fetch.request, [PartitionRows(0, 1, False, [Row("r", "v", 1)])], bench.now)
    assert not bench.poll(Apply)
    bench.machine.event(1, Event(1, 0, 1, 7, [inline("s", 1)]), "u", bench.now)
    (job,) = bench.poll(Apply)
    assert [change.row_id for change in job.changes] == ["s"], "what came after it does not wait for it"


def test_a_fetch_of_rows_goes_on_while_one_of_its_partitions_is_left() -> None:
    bench = Bench(2).live()
    bench.event(0, 1, fetched("r", 1))
    bench.poll(FetchBatch)
    bench.event(1, 2, fetched("r2", 2))
    bench.machine.event(1, Event(1, 0, 1, 7, [fetched("s", 1)]), "u", bench.now)
    bench.now += 1.0
    (fetch,) = bench.poll(FetchBatch)
    bench.machine.assign(frozenset({1}))
    assert fetch.request not in [given_up.request for given_up in bench.poll(GiveUpFetch)]
    assert bench.machine.fetches.awaits(fetch.request)
