"""What of a partition is settled, kept up to date answer by answer."""

from __future__ import annotations

from collections.abc import Iterable

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


@given(*2 * (st.integers(0, 8), st.sets(st.integers(1, 9))))
def test_two_tallies_of_one_history_know_what_either_does(
    revision: int, pending: set[int], other: int, others: set[int]
) -> None:
    def settled(revision: int, pending: Iterable[int]) -> set[int]:
        return {*range(1, revision + 1)} - set(pending)

    joined = Tally("h", revision, pending).joined(Tally("h", other, others)).settled()
    assert settled(joined.revision, joined.pending) == settled(revision, pending) | settled(other, others)
    assert Tally("h", revision).joined(Tally("before", revision + 1)).settled() == Settled("h", revision)


def test_an_answer_far_above_the_revision_is_not_counted() -> None:
    tally = Tally("h", 3, (2,))
    tally.settle(3 + MOST + 1)  # with 2 pending, one too many
    assert tally.settled() == Settled("h", 3, (2,))
    tally.settle(2)
    tally.settle(3 + MOST + 1)
    assert tally.settled() == Settled("h", 3 + MOST + 1, tuple(range(4, 3 + MOST + 1)))
