"""The migration between peers and exclusive ownership: the rule of a table, the guard of a worker, the operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.fence import Fence, FenceTimes
from ringcast._protocol.sticky.leader import Leader, LeaderTimes, View, WriteTable
from ringcast._protocol.sticky.migration import Guard
from ringcast._protocol.sticky.ownership import Deed, OwnedState, Ownership
from ringcast._protocol.sticky.plan import Wishes
from ringcast_wire import ProtocolError, Stage, names, next_stages
from ringcast_wire.ended_sessions import Span
from ringcast_wire.migrating import Step, counted, may_end, said_gone, unguarded
from ringcast_wire.owner_records import (
    MAX_NUMBER,
    Entry,
    Phase,
    Rule,
    Session,
    State,
    Table,
    Term,
    check_numbers,
    decode_table,
    encode_table,
)

A, B = (Session(name, name, number) for name, number in (("a", 1), ("b", 2)))
WAIT_S = 11.0
SWITCH = Step(Stage.SWITCH, 3)
PEERS = Table(10, (Entry(A, 10), Entry(B, 10)), Rule.PEERS, 10, (A, B), 2)
NOBODY = Table(11, (Entry(A, 11), Entry(B, 11)), Rule.NOBODY, 11, (A, B), 3)
OWNERS = Table(12, (Entry(A, 11), Entry(B, 11)), Rule.OWNERS, 12, (), 3)


def state(session: Session, **said: Any) -> State:
    return State(lease=session.lease, session=session.number, **({"guarded": 2} | said))


BOTH = {"a": state(A), "b": state(B)}


def after(table: Table | None, states: Mapping[str, State], step: Step = SWITCH, **seen: Any) -> Table | None:
    """What a leader writes next, whose members have been quiet for long enough."""
    leader = Leader("a", 2, LeaseEvidence(WAIT_S), WAIT_S, LeaderTimes())
    view = View(
        term=Term(leader="a"),
        term_revision=4,
        table=table,
        table_revision=20 if table is not None else 0,
        states=states,
        live=frozenset(states),
        rule=step.rule,
        step=step.number,
    )
    view = replace(view, **seen)
    leader.step(view, 998.0)
    write = leader.step(view, 1000.0).write
    assert write is None or isinstance(write, WriteTable)
    return write.table if write is not None else None


# ---- the leader


def test_a_first_table_of_the_shadow_lists_the_peers_and_plans_as_few_moves_as_it_can() -> None:
    table = after(None, BOTH, Step(Stage.SHADOW, 1), shares=("b", "a"))
    assert table == Table(5, (Entry(B, 5), Entry(A, 5)), Rule.PEERS, 5, (A, B), 1)


def test_peers_serve_by_a_first_table_though_nobody_may_get_a_partition() -> None:
    drained = Wishes(drains=frozenset("ab"))
    table = after(None, BOTH, Step(Stage.SHADOW, 1), wishes=drained)
    assert table == Table(5, (Entry(None, 5),) * 2, Rule.PEERS, 5, (A, B), 1)
    assert after(None, BOTH, SWITCH, wishes=drained) is None


def test_a_session_that_begins_is_admitted_and_one_that_is_over_is_not_kept() -> None:
    later = Session("b", "b", 7)
    table = after(PEERS, {"a": state(A), "b": state(later)}, Step(Stage.VALIDATE, 2))
    assert table is not None
    assert table.peers == (A, B, later)
    table = after(PEERS, {"a": state(A), "b": state(later, first=2, ended=2)}, Step(Stage.VALIDATE, 2))
    assert table is not None
    assert table.peers == (A, later)
    assert table.entries == (Entry(A, 10), Entry(later, 11))


def test_from_peers_to_owners_goes_over_nobody_and_each_peer_is_waited_for() -> None:
    assert after(PEERS, BOTH) == NOBODY
    assert after(NOBODY, BOTH) is None
    assert after(NOBODY, {"a": state(A, stopped=11), "b": state(B, stopped=10)}) is None  # it stopped another time
    found = after(NOBODY, {"a": state(A, stopped=11), "b": state(Session("b", "b", 7), stopped=11)})
    assert found is not None
    assert found.rule is Rule.NOBODY  # another session of that worker has stopped, this one may not have
    assert after(NOBODY, {"a": state(A, stopped=11), "b": state(B, stopped=11)}) == OWNERS


def test_the_way_back_waits_for_each_owner() -> None:
    back = Step(Stage.SHADOW, 4)
    moving = OWNERS._replace(entries=(Entry(A, 11, Phase.DRAIN, B, 12), Entry(B, 11)))
    table = after(moving, BOTH, back, live=frozenset("a"))
    assert table is not None
    assert (table.rule, table.since, table.peers, table.step) == (Rule.NOBODY, 13, (A, B), 4)
    assert table.entries == (Entry(A, 13), Entry(A, 13))  # no owner has its token of before again
    assert after(table, {"a": state(A, stopped=13), "b": state(B)}, back) is not None
    stopped = {"a": state(A, stopped=13), "b": state(B, stopped=13)}
    found = after(table, stopped, back)
    assert found is not None
    assert (found.rule, found.since, found.peers) == (Rule.PEERS, 14, (A, B))


def test_a_leader_that_has_missed_a_step_leaves_the_rule_alone() -> None:
    assert after(OWNERS, BOTH, Step(Stage.VALIDATE, 2)) is None
    stopped = {"a": state(A, stopped=11), "b": state(B, stopped=11)}
    assert after(NOBODY, stopped, Step(Stage.VALIDATE, 2)) is None
    assert after(OWNERS, BOTH, Step(Stage.SWITCH, 5)) == OWNERS._replace(epoch=13, step=5)


@pytest.mark.parametrize("table", [None, PEERS, NOBODY])
def test_no_table_names_owners_while_a_worker_says_that_it_is_not_guarded(table: Table | None) -> None:
    states = {"a": state(A, stopped=11), "b": state(B, stopped=11, guarded=0)}
    found = after(table, states, live=frozenset("a"))
    assert found is None or found.rule is not Rule.OWNERS
    assert after(OWNERS._replace(step=0), {"a": state(A), "b": state(B, guarded=0)}, Step(Stage.SWITCH, 0)) is None


@pytest.mark.parametrize(("span", "counts"), [(Span(1, 2), False), (Span(3, 9), True), (Span(1, 1), True)])
def test_a_worker_that_is_not_guarded_does_not_count_once_its_process_has_ended(span: Span, counts: bool) -> None:
    states = {"a": state(A), "b": state(B, guarded=0)}
    found = after(PEERS, states, live=frozenset("a"), gone={"b": span})
    assert (found is not None and found.rule is Rule.NOBODY) is not counts


# ---- a worker


def worker() -> Ownership:
    owned = Ownership("a", "a", 2, Fence(FenceTimes()))
    owned.refreshed(0.0, 1, 0.0)
    return owned


def deeds(owned: Ownership) -> list[tuple[Deed, int, int]]:
    return [(action.deed, action.partition, action.token) for action in owned.take_actions()]


def test_a_peer_serves_its_share_while_the_table_lists_its_session() -> None:
    owned = worker()
    owned.share(frozenset({1}), 0.0)
    owned.obey(PEERS._replace(peers=(B,)), 0.0)
    assert deeds(owned) == [(Deed.PREPARE, 0, 10)]  # what it is to own once the table names owners
    owned.obey(PEERS._replace(epoch=11), 0.0)
    assert deeds(owned) == [(Deed.PREPARE, 1, 10)]
    owned.ready(0, 10, 0.0)
    owned.ready(1, 10, 0.0)
    assert deeds(owned) == [(Deed.ACTIVATE, 1, 10)]
    assert owned.begin_call(0, 0.0) is None
    assert owned.begin_call(1, 0.0) == 10
    assert owned.begin_call(1, 9.0) is None  # the fence has passed


def test_a_peer_whose_share_changes_may_have_a_partition_again() -> None:
    owned = worker()
    owned.obey(PEERS._replace(entries=(Entry(B, 10),) * 2), 0.0)
    for share in ({1}, set(), {1}):
        owned.share(frozenset[int](share), 0.0)
        owned.end_last_call(1, 0.0)
        owned.ready(1, 10, 0.0)
    assert owned.state_of(1) is OwnedState.ACTIVE


def test_a_worker_says_that_it_has_stopped_once_no_call_runs() -> None:
    owned = worker()
    owned.share(frozenset({0}), 0.0)
    owned.obey(PEERS, 0.0)
    owned.ready(0, 10, 0.0)
    assert owned.begin_call(0, 0.0) == 10
    owned.obey(NOBODY, 1.0)
    assert owned.begin_call(0, 1.0) is None
    assert owned.record.stopped == 0
    owned.end_call(0, 1.0)
    assert owned.record.stopped == 0
    owned.end_last_call(0, 1.0)
    assert owned.record.stopped == 11
    owned.ready(0, 11, 1.0)
    assert owned.state_of(0) is OwnedState.PREPARED
    owned.obey(OWNERS, 1.0)
    assert owned.begin_call(0, 1.0) == 11
    assert owned.record.stopped == 0


def test_a_worker_that_leaves_has_left_once_it_has_no_share() -> None:
    owned = worker()
    owned.share(frozenset({0}), 0.0)
    owned.obey(PEERS, 0.0)
    owned.leave()
    assert not owned.has_left
    owned.share(frozenset(), 0.0)
    assert owned.has_left


# ---- the guard


def test_a_worker_that_starts_before_the_migration_is_guarded_when_it_hears_of_validate() -> None:
    guard = Guard(Step(Stage.OFF, 0))
    guard.heard(Step(Stage.SHADOW, 1))
    assert not guard.is_on
    guard.heard(Step(Stage.VALIDATE, 2))
    assert (guard.is_on, guard.number) == (True, 0)  # calls of before may still run
    guard.strays_ended()
    assert (guard.is_on, guard.number) == (True, 2)
    guard.heard(Step(Stage.SHADOW, 1))  # an old answer
    assert (guard.is_on, guard.number) == (True, 2)


def test_a_worker_that_starts_in_the_migration_is_guarded_and_let_go_by_a_table_that_is_back() -> None:
    guard = Guard(Step(Stage.SHADOW, 4, is_back=True))
    assert (guard.is_on, guard.number) == (True, 0)
    for table in (None, OWNERS, NOBODY, PEERS):  # that of peers is of a step before
        guard.saw(table, 0)
        assert guard.is_on
    guard.saw(PEERS._replace(step=4), 3)
    assert guard.is_on  # its state still says that it is guarded
    guard.saw(PEERS._replace(step=4), None)
    assert guard.is_on, "the bucket has no state of its session"
    guard.saw(PEERS._replace(step=4), 0)
    assert not guard.is_on
    guard.saw(OWNERS, 0)  # as it should not be: better no call than two owners
    assert guard.is_on


def test_a_worker_that_is_guarded_again_waits_for_the_calls_of_the_time_between() -> None:
    guard = Guard(Step(Stage.VALIDATE, 2))
    assert guard.number == 2  # it has started guarded, with no calls of before
    guard.heard(Step(Stage.SHADOW, 3))
    guard.saw(PEERS._replace(step=3), 0)
    guard.heard(Step(Stage.VALIDATE, 4))
    assert (guard.is_on, guard.number) == (True, 0)
    guard.heard(Step(Stage.SWITCH, 5))
    assert guard.number == 0
    guard.strays_ended()
    assert guard.number == 5


@pytest.mark.parametrize("start", [Step(Stage.VALIDATE, 2), Step(Stage.SHADOW, 2, is_back=True)])
def test_a_worker_that_has_handed_over_what_its_disk_had_begins_with_calls_of_before(start: Step) -> None:
    guard = Guard(start, has_called=True)
    guard.heard(Step(Stage.VALIDATE, 3))
    assert (guard.is_on, guard.number) == (True, 0)
    guard.strays_ended()
    assert (guard.is_on, guard.number) == (True, 3)
    assert not Guard(Step(Stage.SHADOW, 2), has_called=True).strays, "it waits until it gets guarded"


@pytest.mark.parametrize("begins", [Step(Stage.SHADOW, 2), Step(Stage.SHADOW, 2, is_back=True)])
def test_a_worker_that_is_said_to_be_gone_is_guarded_until_a_later_step(begins: Step) -> None:
    back = PEERS._replace(step=2)
    guard = Guard(begins)
    guard.saw(back, 0)
    assert not guard.is_on
    guard.said_gone()
    assert (guard.is_on, guard.strays, guard.number) == (True, True, 0)
    guard.saw(back, 0)
    guard.heard(begins)
    assert guard.is_on, "a table that it knew, and a step that it had heard of, let it go no more"
    guard.heard(Step(Stage.VALIDATE, 3))
    guard.strays_ended()
    assert (guard.is_on, guard.number) == (True, 3)
    guard.heard(Step(Stage.SHADOW, 4, is_back=True))
    guard.saw(PEERS._replace(step=4), 0)
    assert not guard.is_on


def test_a_worker_of_a_store_that_does_not_migrate_is_not_guarded_because_it_is_said_to_be_gone() -> None:
    guard = Guard(Step(Stage.SHADOW, 2))
    guard.heard(Step(Stage.OFF, 3))
    guard.said_gone()
    assert not guard.is_on


def test_at_the_end_a_worker_is_let_go_by_its_own_state() -> None:
    """It has missed the step back. That its state says that it is guarded keeps no operator from ``OFF`` where another
    process of its id has written one since."""
    guard = Guard(SWITCH)
    guard.heard(Step(Stage.OFF, 5))
    assert (guard.is_on, guard.number) == (True, 0)
    for said in (None, 3):
        guard.saw(OWNERS, said)
        assert guard.is_on
    guard.saw(OWNERS, 0)
    assert not guard.is_on
    guard.saw(OWNERS, 0)
    assert not guard.is_on, "nobody obeys a table any more"


def test_at_the_end_a_worker_that_was_said_to_be_gone_is_let_go_as_any_other() -> None:
    guard = Guard(SWITCH)
    guard.heard(Step(Stage.OFF, 5))
    guard.said_gone()
    assert guard.is_on
    guard.saw(None, 0)
    assert not guard.is_on


# ---- the operator


def test_an_operator_goes_one_stage_further_or_back_to_the_shadow() -> None:
    ways = {stage: set(next_stages(stage)) for stage in Stage}
    assert ways == {
        Stage.OFF: {Stage.SHADOW},
        Stage.SHADOW: {Stage.OFF, Stage.VALIDATE},
        Stage.VALIDATE: {Stage.SHADOW, Stage.SWITCH},
        Stage.SWITCH: {Stage.SHADOW, Stage.FINISH},
        Stage.FINISH: set(),
    }


def test_a_member_that_has_not_said_so_since_the_step_is_not_guarded() -> None:
    states = {"a": state(A, guarded=5), "b": state(B, guarded=2)}
    assert unguarded(Step(Stage.VALIDATE, 5), {"a", "b", "dead"}, states) == {"b", "dead"}
    assert not unguarded(Step(Stage.VALIDATE, 5), {"a"}, states)


@pytest.mark.parametrize(
    ("registered_at", "gone_as_of", "counts"),
    [(7, None, True), (7, 7, False), (7, 6, True), (7, 8, False), (1, 0, True)],
)
def test_a_registration_counts_unless_its_worker_is_said_to_be_gone_since(
    registered_at: int, gone_as_of: int | None, counts: bool
) -> None:
    gone = {"a": gone_as_of} if gone_as_of is not None else {}
    assert counted({"a": registered_at, "b": 1}, gone) == ({"a", "b"} if counts else {"b"})


@pytest.mark.parametrize(
    ("value", "found"),
    [("7", 7), ("0", 0), (None, None), ("", None), ("-1", None), ("1.5", None), ("٣", None), ("9" * 21, None)],
)
def test_a_marker_says_as_of_when_a_worker_is_gone(value: str | None, found: int | None) -> None:
    assert said_gone({} if value is None else {names.HEADER_GONE: value}) == found


def test_the_end_waits_for_the_table_and_for_each_member() -> None:
    back, free = Step(Stage.SHADOW, 4), {"a": state(A, guarded=0)}
    table = PEERS._replace(step=4)
    assert may_end(back, {"a"}, free, table)
    assert not may_end(back, {"a"}, free, None)
    assert may_end(back, set(), {}, None)
    assert not may_end(back, {"a"}, free, PEERS)
    assert not may_end(back, {"a"}, free, OWNERS._replace(step=4))
    assert not may_end(back, {"a"}, {"a": state(A)}, table)


# ---- the record


@pytest.mark.parametrize("table", [PEERS, NOBODY, OWNERS, PEERS._replace(peers=())])
def test_a_table_of_each_rule_is_read_as_it_was_written(table: Table) -> None:
    assert decode_table(encode_table(table), 2) == table


def test_a_table_of_a_store_that_does_not_migrate_says_nothing_of_it() -> None:
    data = encode_table(Table(12, (Entry(A, 11),)))
    assert not any(field in data for field in (b"rule", b"since", b"peers", b"step"))


@pytest.mark.parametrize(
    ("data", "because"),
    [
        (b'{"epoch":5,"sessions":[],"owners":[-1],"tokens":[0],"moves":[],"peers":[0]}', "names session 0 of 0"),
        (b'{"epoch":5,"sessions":[],"owners":[-1],"tokens":[0],"moves":[],"since":6}', "a token of a later one"),
        (
            b'{"epoch":5,"sessions":[],"owners":[-1],"tokens":[0],"moves":[[0,"drain",-1,4]],"rule":"peers"}',
            "no owners under the rule peers",
        ),
        (b'{"epoch":5,"sessions":[],"owners":[-1],"tokens":[0],"moves":[],"rule":"all"}', "can't be read"),
    ],
)
def test_a_table_that_can_t_be_is_refused(data: bytes, because: str) -> None:
    with pytest.raises(ProtocolError, match=because):
        decode_table(data, 1)


def test_numbers_above_the_revision_are_refused() -> None:
    with pytest.raises(ProtocolError, match="number 30"):
        check_numbers(PEERS._replace(peers=(Session("a", "a", 30),)), 20)
    with pytest.raises(ProtocolError, match=f"number {MAX_NUMBER}"):
        check_numbers(state(A, stopped=MAX_NUMBER), 20)
