"""What a key's machine makes of another history: a restored database, an empty one, a key that was created again."""

from __future__ import annotations

from random import Random
from typing import TypeVar

import pytest
from ringcast._protocol.actions import (
    Ack,
    Action,
    Announce,
    Apply,
    CompareRevisions,
    FetchBatch,
    FetchFull,
    FetchPartition,
    HistoryChanged,
    HistoryRefused,
    Restored,
)
from ringcast._protocol.backlog import share_out
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.key_history import FEW_ROWS, MAX_PAST_HISTORIES, KeyHistory
from ringcast._protocol.snapshots import CachedPartition
from ringcast_wire import Change, ErrorCode, Event, PartitionRows, Row

A = TypeVar("A")
OLD, NEW = "old", "new"


class Service:
    """What the service has of one key: a row id → (value, version) for each partition, and its history."""

    def __init__(self, history: str, rows: list[dict[str, tuple[str, int]]], heads: list[int] | None = None) -> None:
        self.history = history
        self.rows = rows
        self.heads = heads or [max((version for _, version in part.values()), default=0) for part in rows]

    def part(self, number: int) -> PartitionRows:
        rows = [Row(row_id, value, version) for row_id, (value, version) in self.rows[number].items()]
        return PartitionRows(number, self.heads[number], True, rows)


class Bench:
    """A machine beside a service that answers when it is told to."""

    def __init__(self, service: Service, *, max_delete_share: float = 0.5, full: bool = False) -> None:
        count = len(service.heads)
        self.service = service
        self.now = 0.0
        self.actions: list[Action] = []
        self.handed: dict[str, str | None] = {}
        self.machine = KeyMachine(
            "s", "k", full=full, partition_count=count, random=Random(1).random, max_delete_share=max_delete_share
        )

    def start(self) -> Bench:
        self.machine.assign(frozenset(range(self.machine.partition_count)))
        self.machine.filters_ready(range(self.machine.partition_count), self.now)
        self.answer()
        return self

    def poll(self) -> None:
        while actions := self.machine.poll(self.now):
            self.actions += actions
            for action in actions:
                if isinstance(action, Apply):
                    self.handed.update((change.row_id, change.value) for change in action.changes)
                if isinstance(action, Apply | Announce):
                    self.machine.handover.done(action.number, self.now)

    def take(self, kind: type[A]) -> list[A]:
        self.poll()
        found: list[A] = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def answer(self) -> None:
        """Answers every fetch, as long as there is one."""
        service, machine = self.service, self.machine
        while True:
            fetches, full = self.take(FetchPartition), self.take(FetchFull)
            if not fetches and not full:
                return
            for fetch in fetches:
                if service.history:
                    machine.fetches.partition_reply(
                        fetch.request, service.part(fetch.partition), self.now, service.history
                    )
                else:
                    machine.fetches.failed(fetch.request, ErrorCode.UNKNOWN_KEY, self.now)
            for whole in full:
                parts = [service.part(number) for number in range(len(service.heads))]
                machine.fetches.full_reply(whole.request, parts, self.now, service.history)

    def compare(self) -> None:
        """Compares the heads."""
        self.poll()
        asked = self.machine.known_revisions()
        if asked.needed:
            rows = [len(part) for part in self.service.rows]
            self.machine.compare_heads(asked, self.service.heads, self.now, self.service.history, rows)
        self.poll()

    def event(self, number: int, prev: int, rev: int, history: str, row_id: str = "x", value: str = "e") -> None:
        change = Change(row_id, rev, False, value)
        self.machine.event(number, Event(1, prev, rev, 0, [change], history), f"{number}.{rev}.{history}", self.now)
        self.poll()

    def rows(self) -> dict[str, str]:
        return {row.row_id: row.value for part in self.machine.partitions.values() for row in part.rows.values()}


def test_a_restored_database_that_gave_the_same_revisions_to_other_rows_is_noticed() -> None:
    """Revision 3 of the old history was another write than that of the new one."""
    bench = Bench(Service(OLD, [{"a": ("lost", 3), "b": ("1", 2)}])).start()
    bench.service = Service(NEW, [{"a": ("1", 1), "b": ("new", 3)}])
    bench.handed.clear()
    bench.compare()
    assert bench.take(HistoryChanged) == [HistoryChanged(OLD, NEW)]
    assert not bench.machine.ready  # until the partition is there
    bench.answer()
    assert bench.rows() == {"a": "1", "b": "new"}
    assert bench.handed == {"a": "1", "b": "new"}  # as changes from what it had
    assert bench.machine.ready
    assert not bench.take(Restored)
    bench.event(0, 3, 4, NEW, "c", "next")
    assert bench.handed["c"] == "next"


def test_an_event_of_another_history_has_the_heads_compared_and_is_never_taken_in() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 5)}])).start()
    bench.service = Service(NEW, [{"a": ("2", 2)}])
    bench.event(0, 5, 6, NEW, "z", "not of ours")
    bench.event(0, 6, 7, NEW, "z", "not of ours")
    assert len(bench.take(CompareRevisions)) == 1  # one is enough
    assert not bench.take(Ack)
    assert "z" not in bench.handed
    bench.compare()
    (fetch,) = bench.take(FetchPartition)
    bench.machine.fetches.partition_reply(fetch.request, bench.service.part(0), bench.now, NEW)
    assert not bench.take(Ack)  # the answer is older than they are
    assert bench.rows() == {"a": "2"}
    bench.service = Service(NEW, [{"a": ("2", 2), "z": ("3", 7)}])
    bench.answer()
    assert [token for ack in bench.take(Ack) for token in ack.tokens] == ["0.6.new", "0.7.new"]
    assert bench.rows() == {"a": "2", "z": "3"}


def test_an_event_of_a_history_that_is_over_is_dropped_without_asking_again() -> None:
    """A consumer begins with the last event of each subject, which may be older than the restored database."""
    bench = Bench(Service(NEW, [{"a": ("1", 2)}])).start()
    bench.event(0, 8, 9, OLD)
    assert bench.take(CompareRevisions)
    bench.compare()
    bench.event(0, 9, 10, OLD)
    assert not bench.take(CompareRevisions)
    assert not bench.take(FetchPartition)
    assert bench.rows() == {"a": "1"}


def test_an_event_that_comes_while_the_partition_is_taken_whole_is_fetched_after_it() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 5)}])).start()
    bench.service = Service(NEW, [{"a": ("2", 2)}])
    bench.compare()
    (fetch,) = bench.take(FetchPartition)
    assert (fetch.since, fetch.history) == (None, "")
    answer = bench.service.part(0)
    bench.service = Service(NEW, [{"a": ("2", 2), "b": ("3", 3)}])
    bench.event(0, 2, 3, NEW, "b", "3")  # below the revision that is held, of the old history
    bench.machine.fetches.partition_reply(fetch.request, answer, bench.now, NEW)
    (again,) = bench.take(FetchPartition)
    assert (again.since, again.history) == (2, NEW)
    bench.machine.fetches.partition_reply(again.request, bench.service.part(0), bench.now, NEW)
    bench.poll()
    assert bench.rows() == {"a": "2", "b": "3"}


def test_answers_that_were_under_way_when_the_history_changed_are_asked_for_again() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 5)}])).start()
    bench.event(0, 6, 7, OLD)  # a gap: revision 6 is missing
    (fetch,) = bench.take(FetchPartition)
    late = PartitionRows(0, 7, False, [Row("x", "e", 7)])
    bench.service = Service(NEW, [{"a": ("2", 2)}])
    bench.machine.compare_heads(bench.machine.known_revisions(), [2], bench.now, NEW, [1])
    bench.machine.fetches.partition_reply(fetch.request, late, bench.now, OLD)
    assert not bench.take(CompareRevisions)  # the old one is known to be over
    bench.now = 60.0
    bench.answer()
    assert bench.rows() == {"a": "2"}
    assert bench.machine.ready


def test_rows_of_the_old_history_that_the_handler_has_just_taken_do_not_stay() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 5)}])).start()
    bench.event(0, 6, 7, OLD)
    (fetch,) = bench.take(FetchPartition)
    bench.machine.fetches.partition_reply(fetch.request, PartitionRows(0, 7, False, [Row("x", "e", 7)]), bench.now, OLD)
    (apply,) = [action for action in bench.machine.poll(bench.now) if isinstance(action, Apply)]
    bench.service = Service(NEW, [{"a": ("2", 2)}])
    asked = bench.machine.known_revisions()
    bench.machine.compare_heads(asked, [2], bench.now, NEW, [1])
    bench.machine.handover.done(apply.number, bench.now)
    bench.answer()
    assert bench.rows() == {"a": "2"}
    assert bench.machine.ready


def test_a_named_row_of_another_history_is_not_taken_in() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 5)}])).start()
    bench.machine.event(0, Event(1, 5, 6, 0, [Change("a", 6)], OLD), "t", bench.now)
    (fetch,) = bench.take(FetchBatch)
    bench.machine.fetches.batch_reply(
        fetch.request, [PartitionRows(0, 9, False, [Row("a", "other", 9)])], bench.now, NEW
    )
    assert bench.take(CompareRevisions)
    assert bench.rows() == {"a": "1"}
    bench.service = Service(NEW, [{"a": ("other", 9)}])
    bench.compare()
    bench.answer()
    assert bench.rows() == {"a": "other"}


def test_an_empty_database_does_not_empty_the_worker() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 1)}, {"b": ("1", 1)}])).start()
    bench.handed.clear()
    for service in (Service("", [{}, {}]), Service(NEW, [{}, {}])):  # no such key; a key that was created again
        bench.service = service
        bench.compare()
        bench.compare()
        (refused,) = bench.take(HistoryRefused)
        assert (refused.refusal.gone, refused.refusal.rows) == (2, 2)
        assert not bench.take(FetchPartition)
        assert bench.rows() == {"a": "1", "b": "1"}
        assert not bench.handed
        assert not bench.machine.ready


def test_what_was_refused_is_taken_once_the_rows_are_back() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 1), "b": ("1", 2)}])).start()
    bench.service = Service(NEW, [{}])
    bench.compare()
    assert bench.take(HistoryRefused)
    bench.event(0, 0, 1, NEW, "a", "2")
    assert not bench.take(CompareRevisions)  # the regular comparison will do
    bench.service = Service(NEW, [{"a": ("2", 1), "b": ("2", 2)}])
    bench.compare()
    bench.answer()
    assert bench.rows() == {"a": "2", "b": "2"}
    assert bench.machine.ready


def test_rows_that_are_all_others_are_refused_although_they_are_as_many() -> None:
    held = {f"r{number}": ("1", number + 1) for number in range(2 * FEW_ROWS)}
    others = {f"s{number}": ("1", number + 1) for number in range(2 * FEW_ROWS)}
    bench = Bench(Service(OLD, [held])).start()
    bench.service = Service(NEW, [others])
    bench.compare()
    bench.answer()
    (refused,) = bench.take(HistoryRefused)
    assert refused.refusal.gone == 2 * FEW_ROWS
    assert bench.rows().keys() == held.keys()
    assert not bench.machine.ready
    bench.compare()
    assert not bench.take(FetchPartition)  # nothing has changed there


def test_a_partition_that_loses_many_rows_by_chance_is_not_too_many_of_the_key() -> None:
    """40 of 100 rows are gone, most of the first partitions: the share of the whole key is what counts."""
    history = KeyHistory(0.5)
    history.change(NEW, rows=100, live=100)
    assert [history.may_delete(gone, 20) for gone in (12, 10, 8, 6, 4)] == [True] * 5
    assert history.refusal is None


def test_no_more_than_the_share_of_the_whole_key_is_deleted() -> None:
    history = KeyHistory(0.5)
    history.change(NEW, rows=60, live=60)
    assert [history.may_delete(gone, 20) for gone in (13, 13, 13)] == [True, True, False]
    # From the first partition on where it can't be chance: all of a thousand rows of a million.
    history.change(OLD, rows=1_000_000, live=1_000_000)
    assert not history.may_delete(1_000, 1_000)


def test_what_was_refused_is_looked_at_again_when_as_many_rows_were_written_anew() -> None:
    """As a sync of the right file does: the rows that were missing come, and as many others go."""
    held = {f"r{number}": ("1", number + 1) for number in range(2 * FEW_ROWS)}
    others = {f"s{number}": ("1", number + 1) for number in range(2 * FEW_ROWS)}
    bench = Bench(Service(OLD, [held])).start()
    bench.service = Service(NEW, [others])
    bench.compare()
    bench.answer()
    assert bench.take(HistoryRefused)
    bench.service = Service(NEW, [{row_id: ("1", version + 100) for row_id, (_, version) in held.items()}])
    bench.compare()
    bench.answer()
    assert bench.rows() == dict.fromkeys(held, "1")
    assert bench.machine.ready


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_the_first_event_of_an_empty_partition_does_not_outlive_its_history(running: bool, deleted: bool) -> None:
    """The handler has it, or is to get it next, when a history begins that gave its revision to another row."""
    bench = Bench(Service(OLD, [{}, {"b": ("1", 1)}])).start()
    if not running:
        bench.machine.event(1, Event(1, 1, 2, 0, [Change("b", 2, False, "2")], OLD), "b", bench.now)
        (before,) = [action for action in bench.machine.poll(bench.now) if isinstance(action, Apply)]
    event = Event(1, 0, 1, 0, [Change("lost", 1, deleted, None if deleted else "1")], OLD)
    bench.machine.event(0, event, "t", bench.now)
    bench.now += 1.0
    applied = [action for action in bench.machine.poll(bench.now) if isinstance(action, Apply)]
    bench.service = Service(NEW, [{"new": ("1", 1), "lost": ("2", 1)}, {"b": ("1", 1)}])
    asked = bench.machine.known_revisions()
    bench.machine.compare_heads(asked, bench.service.heads, bench.now, NEW, [2, 1])
    for apply in applied if running else [before]:
        bench.machine.handover.done(apply.number, bench.now)
    bench.answer()
    assert bench.rows() == {"new": "1", "lost": "2", "b": "1"}
    assert bench.machine.ready


def test_the_share_is_a_setting() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 1), "b": ("1", 2)}]), max_delete_share=1.0).start()
    bench.service = Service("", [{}])
    bench.compare()
    bench.answer()
    assert bench.rows() == {}
    assert bench.handed == {"a": None, "b": None}
    assert bench.machine.ready


def test_revisions_that_went_back_within_a_history_are_guarded_too() -> None:
    bench = Bench(Service(OLD, [{"a": ("1", 1), "b": ("1", 2)}])).start()
    bench.service = Service(OLD, [{}])
    bench.compare()
    assert bench.take(HistoryRefused)
    assert bench.rows() == {"a": "1", "b": "1"}
    bench.service = Service(OLD, [{"a": ("1", 1)}])
    bench.compare()
    bench.answer()
    assert bench.rows() == {"a": "1"}
    assert len(bench.take(Restored)) == 1


def test_the_first_write_to_a_key_is_taken_in_without_a_fetch() -> None:
    bench = Bench(Service("", [{}, {}])).start()
    bench.event(1, 0, 1, NEW, "a", "1")
    bench.event(0, 0, 1, NEW, "b", "1")
    assert bench.handed == {"a": "1", "b": "1"}
    assert not bench.take(FetchPartition)
    assert not bench.take(CompareRevisions)


def test_an_answer_of_before_the_first_write_does_not_take_the_key_away() -> None:
    bench = Bench(Service("", [{}])).start()
    asked = bench.machine.known_revisions()
    bench.event(0, 0, 1, NEW, "a", "1")
    bench.machine.compare_heads(asked, [0], bench.now, "", [0])  # the key was not there when the service looked
    assert not bench.take(HistoryRefused)
    assert bench.rows() == {"a": "1"}
    assert bench.machine.ready


@pytest.mark.parametrize("history", [OLD, NEW])
def test_a_cache_is_kept_over_a_change_of_histories(history: str) -> None:
    """Another history costs whole fetches; what is handed over is the difference."""
    bench = Bench(Service(history, [{"a": ("1", 3), "b": ("2", 7)}], [7]))
    rows = {"a": Row("a", "1", 3), "gone": Row("gone", "1", 5)}
    bench.machine.restore([CachedPartition(0, 5, rows, {}, 0.0, OLD)], hand_over=False)
    bench.poll()
    bench.machine.assign(frozenset({0}))
    bench.machine.filters_ready([0], bench.now)
    (fetch,) = bench.take(FetchPartition)
    assert (fetch.since, fetch.history) == (5, OLD)
    bench.machine.fetches.partition_reply(fetch.request, bench.service.part(0), bench.now, history)
    if history == NEW:
        assert bench.take(CompareRevisions)
        bench.compare()
        bench.now = 60.0
        bench.answer()
    bench.poll()
    assert bench.rows() == {"a": "1", "b": "2"}
    assert bench.handed == {"b": "2", "gone": None}


def test_a_whole_key_of_another_history_is_asked_for_again() -> None:
    bench = Bench(Service(NEW, [{"a": ("1", 1)}]), full=True)
    bench.machine.history.begin(OLD)
    bench.machine.assign(frozenset({0}))
    bench.machine.filters_ready([0], bench.now)
    (full,) = bench.take(FetchFull)
    bench.machine.fetches.full_reply(full.request, [bench.service.part(0)], bench.now, NEW)
    assert bench.take(CompareRevisions)
    assert not bench.rows()
    bench.compare()
    bench.now = 60.0
    bench.answer()
    assert bench.rows() == {"a": "1"}


def test_histories_that_are_over_are_remembered_up_to_a_bound() -> None:
    history = KeyHistory(0.5)
    history.begin("current")
    for number in range(10 * MAX_PAST_HISTORIES):
        history.suspect(f"h{number}")
    assert len(history.suspects) == MAX_PAST_HISTORIES
    history.settle([f"h{number}" for number in range(10 * MAX_PAST_HISTORIES)])
    assert sum(history.is_settled(f"h{number}") for number in range(10 * MAX_PAST_HISTORIES)) == MAX_PAST_HISTORIES
    assert not history.is_settled("current")


def test_events_of_a_refused_history_leave_room_to_other_keys() -> None:
    many = {f"r{number}": ("1", number + 1) for number in range(FEW_ROWS * 2)}
    bench = Bench(Service(OLD, [many])).start()
    other = KeyMachine("s", "other", full=False, partition_count=1, random=Random(1).random)
    share_out(8, [bench.machine.backlog, other.backlog])
    bench.service = Service(NEW, [{}], [1])
    bench.compare()
    assert bench.machine.history.refusal is not None
    bench.take(Ack)
    for rev in range(1, 21):
        bench.machine.event(0, Event(1, rev - 1, rev, 1, [Change("new", rev, False, "2")], NEW), f"t{rev}", bench.now)
    partition = bench.machine.partitions[0]
    assert len(partition.foreign) <= 6
    acked = [token for ack in bench.take(Ack) for token in ack.tokens]
    assert sorted([*acked, *partition.foreign.values()]) == sorted(f"t{rev}" for rev in range(1, 21))
    assert not other.intake.is_full
    bench.service = Service(NEW, [{**many, "new": ("2", 20)}])
    bench.compare()
    bench.answer()
    assert bench.machine.history.refusal is None
    assert bench.handed["new"] == "2"
    assert not bench.machine.partitions[0].foreign


def test_an_event_that_the_first_rows_contain_costs_no_fetch_while_they_are_handed_over() -> None:
    service = Service(NEW, [{"x": ("e", 1)}])
    machine = Bench(service).machine
    machine.assign(frozenset({0}))
    machine.filters_ready({0}, 0.0)
    asked: list[int] = []
    handing_over: Apply | None = None
    while handing_over is None:
        for action in machine.poll(0.0):
            if isinstance(action, FetchPartition):
                asked.append(action.request)
                machine.fetches.partition_reply(action.request, service.part(0), 0.0, NEW)
            elif isinstance(action, Announce):
                machine.handover.done(action.number, 0.0)
            elif isinstance(action, Apply):
                handing_over = action
    machine.event(0, Event(1, 0, 1, 0, [Change("x", 1, False, "e")], NEW), "token", 0.0)
    machine.poll(0.0)
    machine.handover.done(handing_over.number, 0.0)
    later = machine.poll(0.0)
    assert Ack(["token"]) in later
    assert not [action for action in later if isinstance(action, FetchPartition)]
    assert len(asked) == machine.stats.fetches == 1
