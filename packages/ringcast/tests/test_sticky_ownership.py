"""What a worker may do with its partitions: the table of states, sessions, and the fence."""

from __future__ import annotations

import pytest
from ringcast._protocol.sticky.fence import Fence, FenceTimes
from ringcast._protocol.sticky.ownership import (
    TRANSITIONS,
    Action,
    Deed,
    OwnedInput,
    OwnedPartition,
    OwnedState,
    Ownership,
    TransitionError,
)
from ringcast_wire import InvalidInputError
from ringcast_wire.owner_records import Entry, Phase, Session, State, Table

TIMES = FenceTimes(10_000, 1_000)
OTHER = Session("other", "other", 1)
WAYS = [(before, happened, after) for happened, found in TRANSITIONS.items() for before, after in found.items()]


def worker(session: int = 5, asked_at: float = 0.0) -> Ownership:
    owned = Ownership("w", "w", 1, Fence(TIMES))
    owned.refreshed(asked_at, session, asked_at)
    return owned


def mine(number: int = 5) -> Session:
    return Session("w", "w", number)


def active(token: int = 7) -> Ownership:
    owned = worker()
    owned.obey(Table(token, (Entry(mine(), token),)), 0.0)
    owned.ready(0, token, 0.0)
    assert owned.take_actions() == [Action(Deed.PREPARE, 0, token), Action(Deed.ACTIVATE, 0, token)]
    return owned


@pytest.mark.parametrize(("before", "happened", "after"), WAYS)
def test_every_way_of_the_table(before: OwnedState, happened: OwnedInput, after: OwnedState) -> None:
    owned = OwnedPartition(3)
    owned.state = before
    owned.on(happened)
    assert owned.state is after


@pytest.mark.parametrize("happened", OwnedInput)
@pytest.mark.parametrize("state", OwnedState)
def test_what_does_not_stand_in_the_table_is_refused(state: OwnedState, happened: OwnedInput) -> None:
    owned = OwnedPartition(3)
    owned.state = state
    if state not in TRANSITIONS[happened]:
        with pytest.raises(TransitionError, match=f"partition 3 is {state.name}: it can't be {happened.name}"):
            owned.on(happened)


def test_only_a_prepared_partition_becomes_active_and_only_a_drained_one_is_released() -> None:
    into = {state: {before for before, _, after in WAYS if after is state} for state in OwnedState}
    assert into[OwnedState.ACTIVE] == {OwnedState.PREPARED}
    assert {after for before, _, after in WAYS if before is OwnedState.ACTIVE} == {OwnedState.DRAINING}
    assert {after for before, _, after in WAYS if before is OwnedState.DRAINING} == {OwnedState.RELEASED}


def test_a_planned_move_waits_for_both_sides() -> None:
    owner, following = active(), worker(session=6)
    offer = Table(8, (Entry(mine(), 7, Phase.PREPARE, mine(6), 8),))
    for one in (owner, following):
        one.obey(offer, 1.0)
    assert owner.begin_call(0, 1.0) == 7
    assert following.take_actions() == [Action(Deed.PREPARE, 0, 8)]
    assert not following.record.prepared
    following.ready(0, 8, 1.0)
    assert following.record.prepared == ((0, 8),)
    assert following.begin_call(0, 1.0) is None
    drain = Table(9, (Entry(mine(), 7, Phase.DRAIN, mine(6), 8),))
    for one in (owner, following):
        one.obey(drain, 2.0)
    assert owner.take_actions() == [Action(Deed.STOP, 0, 7)]
    assert owner.begin_call(0, 2.0) is None
    assert not owner.record.released, "a call still runs"
    assert following.begin_call(0, 2.0) is None
    owner.end_call(0, 2.0)
    assert not owner.record.released, "the last call is still to be made"
    assert owner.begin_last_call(0, 2.1) == 7
    assert owner.begin_call(0, 2.1) is None
    owner.end_call(0, 2.2)
    owner.end_last_call(0, 2.2)
    assert owner.begin_last_call(0, 2.2) is None
    assert owner.record.released == ((0, 7),)
    granted = Table(10, (Entry(mine(6), 8),))
    for one in (owner, following):
        one.obey(granted, 3.0)
    assert following.begin_call(0, 3.0) == 8


def test_a_worker_says_which_versions_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast._protocol.sticky.ownership.NEWEST_WIRE_VERSION", 3)
    assert worker().record.wire == 3


def test_no_call_starts_at_the_fence_and_the_session_is_over() -> None:
    owned = active()
    assert owned.wake_at == 9.0
    assert owned.begin_call(0, 8.999) == 7
    assert owned.begin_call(0, 9.0) is None
    assert owned.session is None
    assert owned.record.ended == 0, "a call still runs"
    owned.refreshed(8.0, 9, 9.5)
    assert owned.session is None, "nor does a new session begin"
    owned.end_call(0, 9.6)
    assert owned.record.ended == 0, "the last call is still to be made"
    assert owned.begin_last_call(0, 9.6) is None, "it comes too late to count"
    owned.end_last_call(0, 9.6)
    assert owned.record.ended == 5
    owned.refreshed(9.6, 11, 9.7)
    assert owned.session == mine(11)
    assert owned.begin_call(0, 9.8) is None, "the table names the session that is over"
    owned.obey(Table(12, (Entry(mine(11), 12),)), 10.0)
    assert owned.take_actions()[-1] == Action(Deed.PREPARE, 0, 12)
    owned.ready(0, 12, 10.0)
    assert owned.begin_call(0, 10.0) == 12


def test_a_refresh_counts_from_when_it_was_asked_for() -> None:
    owned = active()
    owned.refreshed(5.0, 8, 8.9)
    owned.refreshed(3.0, 7, 8.95)
    assert owned.wake_at == 14.0
    assert owned.session == mine(), "a session that goes on keeps its number"


def test_an_answer_after_the_fence_does_not_bring_the_session_back() -> None:
    owned = active()
    owned.refreshed(8.5, 8, 9.0)
    assert owned.session is None, "the last call is still to be made"
    assert owned.begin_last_call(0, 9.0) is None, "the refresh is none of the session's"
    owned.end_last_call(0, 9.0)
    assert owned.record.ended == 5
    owned.refreshed(9.0, 9, 9.1)
    assert owned.session == mine(9)
    assert owned.begin_call(0, 9.1) is None


def test_a_lease_that_was_gone_ends_the_session() -> None:
    owned = active()
    owned.refreshed(1.0, 8, 1.1, continued=False)
    assert owned.begin_last_call(0, 1.1) is None, "another process may have been there in between"
    owned.end_last_call(0, 1.1)
    owned.refreshed(1.1, 9, 1.2)
    assert owned.session == mine(9)
    assert (owned.record.first, owned.record.ended) == (9, 5), "another process may have been there in between"
    assert owned.begin_call(0, 1.2) is None


def test_a_refresh_whose_fence_has_passed_begins_nothing() -> None:
    owned = Ownership("w", "w", 1, Fence(TIMES))
    owned.refreshed(0.0, 5, 9.0)
    assert owned.session is None


def test_a_table_that_was_overtaken_or_has_another_size_is_not_obeyed() -> None:
    owned = active()
    owned.obey(Table(9, (Entry(mine(), 7, Phase.DRAIN),)), 1.0)
    owned.obey(Table(8, (Entry(mine(), 7),)), 1.0)
    owned.end_last_call(0, 1.0)
    owned.obey(Table(10, (Entry(mine(), 10),) * 2), 1.0)
    assert owned.state_of(0) is OwnedState.RELEASED
    assert owned.table is not None
    assert owned.table.epoch == 9


def test_a_table_that_changes_nothing_for_a_worker_leaves_its_state_as_it_is() -> None:
    owned = Ownership("w", "w", 3, Fence(TIMES))
    owned.refreshed(0.0, 5, 0.0)
    owned.obey(Table(7, (Entry(mine(), 7), Entry(OTHER, 7), Entry(None, 0))), 0.0)
    owned.ready(0, 7, 0.0)
    said, _ = owned.record, owned.take_actions()
    assert said.seen == 7
    owned.obey(Table(8, (Entry(mine(), 7), Entry(OTHER, 7, Phase.PREPARE, mine(8), 8), Entry(OTHER, 8))), 0.0)
    assert (owned.record, owned.take_actions()) == (said, []), "the session 8 is none of this process"
    owned.obey(None, 0.0)
    owned.end_last_call(0, 0.0)
    assert owned.record.seen == 0
    owned.refreshed(1.0, 9, 1.0)
    owned.obey(Table(12, (Entry(mine(9), 12), Entry(OTHER, 7), Entry(OTHER, 8))), 1.0)
    assert owned.record.seen == 12


def test_a_drain_that_comes_first_is_answered() -> None:
    owned = worker()
    owned.obey(Table(9, (Entry(mine(), 7, Phase.DRAIN),)), 0.0)
    assert owned.record.released == ((0, 7),)
    assert owned.take_actions() == []


def test_a_partition_that_is_others_is_forgotten() -> None:
    owned = active()
    owned.obey(Table(9, (Entry(OTHER, 9),)), 1.0)
    owned.end_last_call(0, 1.0)
    assert [action.deed for action in owned.take_actions()] == [Deed.STOP, Deed.FORGET]
    assert owned.state_of(0) is OwnedState.ABSENT


def test_what_was_prepared_for_an_offer_that_is_withdrawn_counts_no_more() -> None:
    owned = worker()
    owned.obey(Table(8, (Entry(OTHER, 7, Phase.PREPARE, mine(), 8),)), 0.0)
    owned.obey(Table(9, (Entry(OTHER, 7),)), 0.0)
    owned.ready(0, 8, 0.0)
    assert owned.state_of(0) is OwnedState.ABSENT
    owned.obey(Table(10, (Entry(OTHER, 7, Phase.PREPARE, mine(), 10),)), 0.0)
    owned.ready(0, 8, 0.0)
    assert owned.state_of(0) is OwnedState.PREPARING


def test_a_lost_table_ends_the_session_and_the_calls_first() -> None:
    owned = active()
    assert owned.begin_call(0, 1.0) == 7
    owned.obey(None, 1.0)
    assert (owned.record.session, owned.record.seen) == (0, 7)
    owned.end_call(0, 1.5)
    assert owned.begin_last_call(0, 1.5) == 7, "the lease lasts: no other worker can be let start before this is said"
    owned.end_call(0, 1.6)
    owned.end_last_call(0, 1.6)
    assert (owned.record.ended, owned.record.seen) == (5, 0)


def test_last_calls_may_be_made_after_a_worker_has_closed_until_its_fence() -> None:
    owned, late = active(), active()
    for one in (owned, late):
        one.close()
        one.refreshed(5.0, 9, 5.0)
        assert one.begin_call(0, 5.0) is None
        assert one.record.ended == 0
    assert owned.begin_last_call(0, 8.9) == 7
    owned.end_call(0, 9.5)
    owned.end_last_call(0, 9.5)
    assert owned.record.ended == 5
    assert late.begin_last_call(0, 9.0) is None, "the fence of the session has passed: a later refresh is none of it"
    late.end_last_call(0, 9.0)
    assert late.record.ended == 5


def test_a_worker_that_leaves_has_left_once_it_owns_nothing() -> None:
    owned = active()
    owned.leave()
    assert owned.record.leaving
    assert not owned.has_left
    owned.obey(Table(9, (Entry(mine(), 7, Phase.DRAIN, OTHER, 8),)), 1.0)
    assert not owned.has_left
    owned.end_last_call(0, 1.0)
    owned.obey(Table(10, (Entry(OTHER, 8),)), 1.0)
    assert owned.has_left
    owned.close()
    owned.refreshed(2.0, 9, 2.0)
    assert owned.session is None


def test_times_that_prove_nothing_are_refused() -> None:
    assert FenceTimes(10_000, 250).give_away_s == pytest.approx(10.35)
    with pytest.raises(InvalidInputError, match=r"^call_bound_ms 249 is out of range: 250 to 5000 ms are allowed "):
        FenceTimes(10_000, 249)
    with pytest.raises(InvalidInputError, match=r"^call_bound_ms 5001 is out of range: 250 to 5000 ms are allowed "):
        FenceTimes(10_000, 5_001)
    with pytest.raises(InvalidInputError, match=r"^lease_ttl_ms 99 is out of range: 100 to 3600000 ms are allowed$"):
        FenceTimes(99, 5)


def test_what_a_process_before_it_has_said_is_said_until_that_one_can_not_act_any_more() -> None:
    before = State(lease="w", session=3, first=3, seen=9)
    owned = Ownership("w", "w", 1, Fence(TIMES))
    owned.replaces(before, 50.0)
    assert (owned.record.seen, owned.record.first, owned.wake_at) == (9, 0, None), "it has no lease yet"
    owned.refreshed(100.0, 44, 100.5)
    owned.replaces(before, 101.0)
    until = 101.0 + TIMES.give_away_s
    for now in (102.0, 105.0, 111.0):
        owned.refreshed(now, 44, now)
        owned.replaces(owned.record, now)
    assert (owned.record.seen, owned.wake_at) == (9, until), "its own record is not one of before"
    owned.obey(Table(60, (Entry(None, 60),)), 111.0)
    assert owned.record.seen == 60
    owned.obey(None, 111.5)
    assert owned.record.seen == 9
    owned.poll(until)
    assert owned.record.seen == 0


def test_what_was_inherited_counts_from_the_first_refresh() -> None:
    owned = Ownership("w", "w", 1, Fence(TIMES))
    owned.replaces(State(lease="w", session=0, first=0, seen=9), 0.0)
    owned.poll(1_000.0)
    assert owned.record.seen == 9, "of a process without a session as well: it may have inherited it"
    owned.refreshed(1_000.0, 44, 1_001.0)
    owned.poll(1_001.0 + TIMES.give_away_s - 0.01)
    assert owned.record.seen == 9
    owned.poll(1_001.0 + TIMES.give_away_s)
    assert owned.record.seen == 0


def test_a_record_of_before_that_acts_by_no_table_leaves_nothing() -> None:
    owned = worker()
    owned.replaces(State(lease="w", session=0, first=3, ended=3, seen=0), 0.0)
    assert (owned.record.seen, owned.wake_at) == (0, TIMES.serve_s)
