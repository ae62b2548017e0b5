"""When a worker may take what the table says for its share, though no record says so."""

from __future__ import annotations

from typing import Any, cast

import pytest
from ringcast._coordination.sticky.settled import SettledShare
from ringcast._coordination.sticky.times import StickyTimes
from ringcast_wire.owner_records import Entry, Phase, Session, State, Table

TIMES = StickyTimes()
QUIET_S = TIMES.leader.quiet_s + 2 * TIMES.read_s + TIMES.refresh_s
ME, BEFORE, OTHER = Session("me", "me", 9), Session("me", "me", 4), Session("other", "other", 5)


class Records:
    """What the bucket has: a table of three partitions that the other worker owns, and the states of both."""

    def __init__(self) -> None:
        self.found: Table | None = self.owned(OTHER, OTHER, OTHER)
        self.said = {session.worker_id: State(lease=session.lease, session=session.number) for session in (ME, OTHER)}

    def owned(self, *owners: Session, epoch: int = 10) -> Table:
        return Table(epoch, tuple(Entry(owner, 6) for owner in owners))

    def table(self, key: str) -> Table | None:
        return self.found

    def states(self, key: str) -> dict[str, State]:
        return self.said


class Bench:
    def __init__(self) -> None:
        self.records = Records()
        self.session: Session | None = ME
        self.told: list[frozenset[int]] = []
        self.share = SettledShare(
            "list",
            "me",
            cast("Any", self.records),
            TIMES,
            lambda: 0.0,
            session=lambda: self.session,
            settled=self.told.append,
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_a_share_too(bench: Bench) -> None:
    assert bench.share.look(100.0) == 100.0 + QUIET_S
    assert bench.share.look(100.0 + QUIET_S - 0.01) == 100.0 + QUIET_S
    assert not bench.told
    assert bench.share.look(100.0 + QUIET_S) is None
    assert bench.told == [frozenset()]


def test_each_session_is_told_of_once(bench: Bench) -> None:
    bench.share.look(0.0)
    bench.share.look(QUIET_S)
    bench.records.found = bench.records.owned(ME, OTHER, OTHER, epoch=11)
    assert bench.share.look(2 * QUIET_S) is None
    assert bench.share.look(4 * QUIET_S) is None
    assert bench.told == [frozenset()]
    bench.session = Session("me", "me", 12)
    bench.records.said["me"] = State(lease="me", session=12)
    bench.records.found = bench.records.owned(OTHER, bench.session, OTHER, epoch=12)
    due = bench.share.look(5 * QUIET_S)
    assert due is not None
    bench.share.look(due)
    assert bench.told == [frozenset(), frozenset({1})]


@pytest.mark.parametrize("what", ["table", "member", "leaving"])
def test_a_change_has_it_wait_again(bench: Bench, what: str) -> None:
    bench.share.look(0.0)
    match what:
        case "table":
            bench.records.found = bench.records.owned(OTHER, OTHER, OTHER, epoch=11)
        case "member":
            bench.records.said["third"] = State(lease="third", session=7)
        case _:
            bench.records.said["other"] = State(lease="other", session=5, leaving=True)
    assert bench.share.look(QUIET_S) == 2 * QUIET_S
    assert not bench.told
    bench.share.look(2 * QUIET_S)
    assert bench.told == [frozenset()]


def test_what_is_offered_is_waited_for(bench: Bench) -> None:
    offered = Entry(OTHER, 6, Phase.PREPARE, ME, 11)
    bench.records.found = Table(11, (offered, Entry(OTHER, 6), Entry(OTHER, 6)))
    for now in (0.0, QUIET_S, 10 * QUIET_S):
        assert bench.share.look(now) is None
    bench.records.found = Table(12, (Entry(ME, 11), Entry(OTHER, 6), Entry(OTHER, 6)))
    due = bench.share.look(11 * QUIET_S)
    assert due == 12 * QUIET_S
    bench.share.look(due)
    assert bench.told == [frozenset({0})]


def test_a_session_of_before_has_to_be_over_first(bench: Bench) -> None:
    """What it had may come back to this worker: until then the rows that it kept of it are of use."""
    bench.records.found = bench.records.owned(BEFORE, OTHER, OTHER)
    for now in (0.0, QUIET_S, 10 * QUIET_S):
        assert bench.share.look(now) is None
    assert not bench.told


def test_the_leader_has_to_be_able_to_know_of_the_session(bench: Bench) -> None:
    for said in ({}, {"me": State(lease="me", session=BEFORE.number)}):
        bench.records.said = dict(said)
        for now in (0.0, QUIET_S, 10 * QUIET_S):
            assert bench.share.look(now) is None
    assert not bench.told


def test_without_a_session_or_a_table_there_is_no_share(bench: Bench) -> None:
    bench.share.look(0.0)
    bench.session = None
    assert bench.share.look(QUIET_S) is None
    bench.session = ME
    assert bench.share.look(QUIET_S + 1) == 2 * QUIET_S + 1, "the time before does not count"
    bench.records.found = None
    assert bench.share.look(2 * QUIET_S + 1) is None
    assert not bench.told
