"""A machine that begins with what the disk had, and what it wants written."""

from __future__ import annotations

import pytest
from ringcast._protocol import unsaved as unsaved_module
from ringcast._protocol.actions import Action, Announce, Apply, FetchPartition, Restored
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.snapshots import CachedPartition, PartitionSave, Saving
from ringcast_wire import Change as WireChange
from ringcast_wire import ErrorCode, Event, PartitionRows, Row


class Bench:
    """A machine of one partition that the disk had at revision 10, up to its first fetch."""

    def __init__(self) -> None:
        self.machine = KeyMachine("s", "k", full=False, partition_count=1, random=lambda: 0.5, saving=Saving())
        rows = {"a": Row("a", "1", 3), "b": Row("b", "2", 10)}
        self.machine.restore([CachedPartition(0, 10, rows, {}, 0.0)], hand_over=True)
        self.run(0.0)
        self.machine.assign(frozenset({0}))
        self.machine.filters_ready([0], 1.0)
        (self.fetch,) = self.run(1.0)

    def run(self, now: float) -> list[Action]:
        """Finishes every job; what else is to be done."""
        found: list[Action] = []
        while actions := self.machine.poll(now):
            for action in actions:
                if isinstance(action, Apply | Announce):
                    self.machine.handover.done(action.number, now)
                if not isinstance(action, Announce):
                    found.append(action)
            if not any(isinstance(action, Apply | Announce) for action in actions):
                break
        return [action for action in found if not (isinstance(action, Apply) and action.changes[0].stale)]

    def saves(self, max_rows: int = 100) -> list[PartitionSave]:
        assert self.machine.saving is not None
        return self.machine.saving.take(max_rows)


def test_what_changed_is_fetched_and_only_that_is_written() -> None:
    bench = Bench()
    assert isinstance(bench.fetch, FetchPartition)
    assert bench.fetch.since == 10
    assert bench.saves() == []  # the disk has it all
    rows = [Row("b", "", 11, True), Row("c", "3", 12)]
    bench.machine.fetches.partition_reply(bench.fetch.request, PartitionRows(0, 12, False, rows), 2.0)
    (apply,) = bench.run(2.0)
    assert isinstance(apply, Apply)
    assert [(change.row_id, change.deleted, change.cached_age_s) for change in apply.changes] == [
        ("b", True, None),
        ("c", False, None),
    ]
    (save,) = bench.saves()
    assert (save.whole, save.applied, save.row_count) == (False, 12, 2)
    assert ([row.row_id for row in save.rows], list(save.gone), list(save.tombstones)) == (["c"], ["b"], [])
    assert bench.saves() == []


def test_a_write_that_failed_has_the_partition_written_whole() -> None:
    bench = Bench()
    bench.machine.fetches.partition_reply(bench.fetch.request, PartitionRows(0, 11, False, [Row("c", "3", 11)]), 2.0)  # type: ignore[union-attr]
    bench.run(2.0)
    assert bench.machine.saving is not None
    bench.machine.saving.failed(bench.saves())
    (save,) = bench.saves()
    assert (save.whole, save.applied, sorted(row.row_id for row in save.rows)) == (True, 11, ["a", "b", "c"])


@pytest.mark.parametrize("unknown", [False, True])
def test_revisions_that_went_back_replace_what_the_disk_has(unknown: bool) -> None:
    """The database was restored while the worker was away, or lost the key."""
    bench = Bench()
    assert isinstance(bench.fetch, FetchPartition)
    if unknown:
        bench.machine.fetches.failed(bench.fetch.request, ErrorCode.UNKNOWN_KEY, 2.0)
    else:
        bench.machine.fetches.partition_reply(bench.fetch.request, PartitionRows(0, 5, True, [Row("b", "old", 5)]), 2.0)
    restored, apply = bench.run(2.0)
    assert restored == Restored(0, 10, 0 if unknown else 5)
    assert isinstance(apply, Apply)
    assert {(change.row_id, change.value) for change in apply.changes} == (
        {("a", None), ("b", None)} if unknown else {("a", None), ("b", "old")}
    )
    (save,) = bench.saves()
    assert (save.whole, save.applied) == (True, 0 if unknown else 5)
    assert [row.value for row in save.rows] == ([] if unknown else ["old"])


def test_an_event_that_the_disk_had_is_acknowledged_at_once() -> None:
    bench = Bench()
    event = Event(1, 9, 10, 0, [WireChange("b", 10, False, "2")])
    bench.machine.event(0, event, "token", 2.0)
    (ack,) = bench.machine.poll(2.0)
    assert getattr(ack, "tokens", None) == ["token"]


def test_a_partition_that_was_lost_leaves_the_disk_and_its_cached_rows_are_not_handed_over() -> None:
    machine = KeyMachine("s", "k", full=False, partition_count=1, random=lambda: 0.5, saving=Saving())
    machine.restore([CachedPartition(0, 10, {"a": Row("a", "1", 3)}, {}, 0.0)], hand_over=True)
    told = []
    actions = machine.poll(0.0)
    machine.assign(frozenset())
    while actions := actions + machine.poll(0.0):
        for action in actions:
            assert isinstance(action, Announce)
            told.append((action.assigned, action.partitions))
            machine.handover.done(action.number, 0.0)
        actions = []
    assert told == [(True, frozenset({0})), (False, frozenset({0}))]
    assert machine.saving is not None
    (save,) = machine.saving.take()
    assert (save.number, save.partition) == (0, None)


def test_past_so_many_changed_rows_a_partition_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsaved_module, "MAX_UNSAVED_ROWS", 3)
    bench = Bench()
    rows = [Row(f"r{number}", "x", 11 + number) for number in range(4)]
    bench.machine.fetches.partition_reply(bench.fetch.request, PartitionRows(0, 14, False, rows), 2.0)  # type: ignore[union-attr]
    bench.run(2.0)
    (save,) = bench.saves()
    assert (save.whole, len(save.rows)) == (True, 6)


def test_a_write_takes_whole_partitions_until_it_is_large_enough() -> None:
    machine = KeyMachine("s", "k", full=True, partition_count=4, random=lambda: 0.5, saving=Saving())
    rows = {f"r{number}": Row(f"r{number}", "x", number + 1) for number in range(10)}
    machine.restore([CachedPartition(number, 10, dict(rows), {}, 0.0) for number in range(4)], hand_over=False)
    assert machine.saving is not None
    machine.saving.rewrite(machine.partitions.values())
    sizes = []
    while saves := machine.saving.take(15):
        sizes.append([len(save.rows) for save in saves])
    assert sizes == [[10, 10], [10, 10]]
