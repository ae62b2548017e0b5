"""When the application is told of partitions that the worker gets and loses: the machine's part of it."""

from __future__ import annotations

from random import Random

from ringcast._protocol.actions import Announce, Apply, FetchPartition
from ringcast._protocol.key import KeyMachine
from ringcast_wire import Change, Event, PartitionRows, Row


class Bench:
    """A machine of four partitions, whose actions are told apart by kind."""

    def __init__(self) -> None:
        self.machine = KeyMachine("s", "k", full=False, partition_count=4, random=Random(1).random)
        self.told: list[Announce] = []
        self.jobs: list[Apply] = []
        self.fetches: list[FetchPartition] = []

    def own(self, *partitions: int) -> list[tuple[bool, list[int]]]:
        """Owns these, and says what the application is told at once."""
        self.machine.assign(frozenset(partitions))
        self.machine.filters_ready(partitions, 0.0)
        return self.poll()

    def poll(self, now: float = 0.0) -> list[tuple[bool, list[int]]]:
        """What the application is told now."""
        before = len(self.told)
        for action in self.machine.poll(now):
            match action:
                case Announce():
                    self.told.append(action)
                case Apply():
                    self.jobs.append(action)
                case FetchPartition():
                    self.fetches.append(action)
        return [(announce.assigned, sorted(announce.partitions)) for announce in self.told[before:]]

    def done(self) -> list[tuple[bool, list[int]]]:
        """The application has been told the first of what it has not been told yet."""
        before = len(self.told)
        self.machine.handover.done(self.told.pop(0).number, 0.0)
        self.poll()
        return [(announce.assigned, sorted(announce.partitions)) for announce in self.told[before - 1 :]]

    def answer(self, *row_ids: str) -> None:
        for fetch in self.fetches:
            rows = [Row(f"{fetch.partition}{row_id}", "v", number) for number, row_id in enumerate(row_ids, 1)]
            part = PartitionRows(fetch.partition, len(rows), True, rows)
            self.machine.fetches.partition_reply(fetch.request, part, 0.0)
        self.fetches = []
        self.poll()


def test_a_loss_is_told_while_changes_are_being_handed_over() -> None:
    bench = Bench()
    assert bench.own(0, 1) == [(True, [0, 1])]
    bench.done()
    bench.answer("a")
    (job,) = bench.jobs
    assert bench.own(1) == [(False, [0])]
    assert bench.machine.announcements.known == {0, 1}
    bench.done()
    assert bench.machine.announcements.known == {1}
    bench.machine.handover.done(job.number, 0.0)


def test_no_change_of_a_partition_comes_before_it_is_told_and_those_of_others_do() -> None:
    bench = Bench()
    bench.own(0)
    bench.done()
    bench.answer()
    bench.own(0, 1)
    bench.answer("a")
    assert bench.jobs == []  # the application does not know of partition 1 yet
    bench.machine.event(0, Event(1, 0, 1, 7, [Change("b", 1, False, "v")]), "t", 0.0)
    bench.poll(1.0)
    (job,) = bench.jobs
    assert [change.row_id for change in job.changes] == ["b"]
    bench.machine.handover.done(job.number, 0.0)
    bench.done()
    assert [change.row_id for change in bench.jobs[1].changes] == ["1a"]


def test_what_is_told_of_one_partition_keeps_its_order_and_others_do_not_wait() -> None:
    bench = Bench()
    assert bench.own(0) == [(True, [0])]
    assert bench.own() == []  # the application is still being told of the gain
    assert bench.own(1) == [(True, [1])]
    assert bench.done() == [(False, [0])]


def test_a_partition_that_was_never_told_of_is_not_told_as_lost() -> None:
    bench = Bench()
    bench.own(0)
    assert bench.own() == []
    assert bench.own(0, 2) == [(True, [2])]
    assert bench.own(2) == []  # the second gain of partition 0 has not been told
    assert bench.done() == [(False, [0])]
    assert bench.machine.announcements.known == {0, 2}


def test_a_partition_that_comes_back_is_told_again_before_its_changes_come() -> None:
    bench = Bench()
    bench.own(0)
    bench.own()
    bench.own(0)
    bench.answer("a")
    assert bench.done() == [(False, [0])]
    assert bench.jobs == []
    assert bench.done() == [(True, [0])]
    assert bench.jobs == []
    bench.done()
    assert len(bench.jobs) == 1
