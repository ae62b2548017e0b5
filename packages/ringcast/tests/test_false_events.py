"""Events that the service does not bear out: damaged ones, forged ones, those from before a database was restored."""

from __future__ import annotations

from random import Random

from ringcast._protocol.actions import Ack, Announce, Apply, FetchBatch, FetchPartition
from ringcast._protocol.batch_fetches import STALE_REPLIES
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.partition_fetches import MAX_INCOMPLETE_FETCHES
from ringcast_wire import Change, Event, PartitionRows, Row

NOW_STEP_S = 60.0
"""Longer than any delay."""


class Follower:
    """A machine of one partition, beside a service that says ``rows`` as of ``revision``."""

    def __init__(self) -> None:
        self.machine = KeyMachine("s", "k", full=False, partition_count=1, random=Random(1).random)
        self.revision = 3
        self.rows = [Row("a", "true", 3)]
        self.now = 0.0
        self.acked: list[str] = []
        self.told: list[tuple[str, str | None]] = []
        self.asked = 0
        self.machine.assign(frozenset({0}))
        self.machine.filters_ready([0], 0.0)
        self.run(1)

    def event(self, prev: int, rev: int, changes: list[Change] | None, token: str) -> None:
        self.machine.event(0, Event(1, prev, rev, 1, changes), token, self.now)

    def run(self, rounds: int) -> None:
        """Answers and applies everything that is due, for so long."""
        for _ in range(rounds):
            self.now += NOW_STEP_S
            while actions := self.machine.poll(self.now):
                for action in actions:
                    match action:
                        case Ack():
                            self.acked += action.tokens
                        case Announce():
                            self.machine.handover.done(action.number, self.now)
                        case Apply():
                            self.told += [(change.row_id, change.value) for change in action.changes]
                            self.machine.handover.done(action.number, self.now)
                        case FetchPartition():
                            self.asked += 1
                            whole = action.since is None
                            rows = [row for row in self.rows if whole or row.version > (action.since or 0)]
                            self.machine.fetches.partition_reply(
                                action.request, PartitionRows(0, self.revision, whole, rows), self.now
                            )
                        case FetchBatch():
                            rows = [row for row in self.rows if row.row_id in action.row_ids]
                            self.machine.fetches.batch_reply(
                                action.request, [PartitionRows(0, self.revision, False, rows)], self.now
                            )

    def write(self, row_id: str, value: str) -> Change:
        self.revision += 1
        self.rows = [row for row in self.rows if row.row_id != row_id] + [Row(row_id, value, self.revision)]
        return Change(row_id, self.revision, False, value)


def test_an_event_ahead_of_all_that_the_service_knows_is_dropped_in_the_end() -> None:
    follower = Follower()
    follower.event(1_000, 1_001, None, "false")
    follower.run(MAX_INCOMPLETE_FETCHES)
    assert "false" not in follower.acked
    follower.event(3, 4, [follower.write("b", "1")], "true")
    follower.run(3)
    assert follower.acked[:2] == ["true", "false"]
    assert follower.told == [("a", "true"), ("b", "1")]
    assert follower.machine.stats.unreadable == 1
    asked = follower.asked
    follower.event(4, 5, [follower.write("b", "2")], "next")  # live again: no fetch
    follower.run(2)
    assert follower.acked[-1] == "next"
    assert follower.asked == asked


def test_an_event_of_rows_that_the_service_denies_does_not_hold_up_the_key() -> None:
    follower = Follower()
    follower.event(3, 9, [Change("a", 9)], "false")
    follower.run(STALE_REPLIES + 2)
    assert follower.acked == ["false"]
    assert follower.machine.partitions[0].applied == 3
    follower.event(3, 4, [follower.write("b", "1")], "true")
    follower.run(1)
    assert follower.acked[-1] == "true"
    assert follower.told == [("a", "true"), ("b", "1")]


def test_an_event_that_cannot_be_read_leads_to_a_fetch_also_while_one_is_under_way() -> None:
    follower = Follower()
    machine = follower.machine
    machine.unreadable(0, "bad1")
    (ack, fetch) = machine.poll(follower.now)
    assert isinstance(ack, Ack)
    assert isinstance(fetch, FetchPartition)
    assert fetch.since == 3
    before = PartitionRows(0, 3, False, [])  # answered before the write whose event comes now, damaged
    follower.write("b", "1")
    machine.unreadable(0, "bad2")
    machine.fetches.partition_reply(fetch.request, before, follower.now)
    follower.run(1)
    assert follower.told == [("a", "true"), ("b", "1")]
    assert machine.partitions[0].applied == 4
    assert machine.stats.unreadable == 2
    machine.unreadable(7, "elsewhere")  # no partition of ours
    assert [action.tokens for action in machine.poll(follower.now) if isinstance(action, Ack)] == [["elsewhere"]]
