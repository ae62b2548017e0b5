"""What of a partition is settled, kept up to date answer by answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ringcast_heartbeat_agent.dispatch.seals import Settled
from ringcast_heartbeat_agent.dispatch.tally import Tally
from ringcast_wire import limits

MOST = limits.MAX_SEAL_PENDING


@given(st.integers(0, 50), st.sets(st.integers(1, 400)), st.lists(st.integers(1, 400)))
def test_a_tally_is_never_ahead_and_forgets_no_answer_that_it_has_room_for(
    revision: int, pending: set[int], answers: list[int]
) -> None:
    tally = Tally("h", revision, pending)
    settled = ({*range(1, revision + 1)} - pending) | set(answers)
    for version in answers:
        tally.settle(version)
    said = tally.settled()
    assert {*range(1, said.revision + 1)} - set(said.pending) <= settled
    if max([revision, *answers]) <= MOST and not pending:
        assert {*range(1, said.revision + 1)} - set(said.pending) == settled


@given(st.integers(0, 8), st.sets(st.integers(1, 12)), st.integers(0, 8), st.lists(st.integers(1, 12)))
def test_what_is_looked_up_is_extended_by_the_answers_above_it(
    revision: int, pending: set[int], looked_up: int, answers: list[int]
) -> None:
    before = Tally("h", looked_up)
    for version in answers:
        before.settle(version)
    said = Tally("h", revision, pending).extended(before).settled()
    wanted = {*range(1, revision + 1)} - pending
    if revision >= looked_up:  # else the database was restored
        wanted |= {version for version in answers if version > max(revision, looked_up)} - pending
    assert {*range(1, said.revision + 1)} - set(said.pending) == wanted
    assert Tally("h", revision).extended(Tally("before", revision)).settled() == Settled("h", revision)


def test_what_was_answered_is_not_forgotten_as_long_as_the_worker_is_not_as_far() -> None:
    known = Tally("h", 3)
    known.settle(5)
    for _ in range(2):
        known = Tally("h", 3).extended(known)
        assert known.settled() == Settled("h", 5, (4,))


def test_an_answer_far_above_the_revision_is_not_counted() -> None:
    tally = Tally("h", 3, (2,))
    tally.settle(3 + MOST + 1)  # with 2 pending, one too many
    assert tally.settled() == Settled("h", 3, (2,))
    tally.settle(2)
    tally.settle(3 + MOST + 1)
    assert tally.settled() == Settled("h", 3 + MOST + 1, tuple(range(4, 3 + MOST + 1)))
