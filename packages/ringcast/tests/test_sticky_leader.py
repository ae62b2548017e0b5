"""What the leader of a key writes next, and what proves the end of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.leader import Leader, LeaderTimes, Step, TakeTerm, View, WriteTable
from ringcast._protocol.sticky.plan import Wishes
from ringcast_wire.owner_records import MAX_MOVING, Entry, Phase, Session, State, Table, Term

WAIT_S = 11.0
A, B, C = (Session(name, name, number) for name, number in (("a", 1), ("b", 2), ("c", 3)))
LED = Term(leader="a")


def state(session: Session, **said: Any) -> State:
    return State(lease=session.lease, session=session.number, **said)


def view(*entries: Entry, states: Mapping[str, State], epoch: int = 10, **more: Any) -> View:
    table = Table(epoch, entries) if entries else None
    seen: dict[str, Any] = {"term": LED, "term_revision": 4, "table": table, "table_revision": 20 if entries else 0}
    return View(states=states, **({"live": frozenset(states)} | seen | more))


class Bench:
    """A leader whose members have been quiet for a long time, unless a test says otherwise."""

    def __init__(self, partitions: int, worker_id: str = "a", **times: float) -> None:
        self.evidence = LeaseEvidence(WAIT_S)
        self.leader = Leader(worker_id, partitions, self.evidence, WAIT_S, LeaderTimes(**times))

    def step(self, seen: View, now: float = 1000.0) -> Step:
        return self.leader.step(seen, now)

    def settled(self, seen: View, now: float = 1000.0) -> Step:
        self.leader.step(seen, now - 20.0)
        return self.leader.step(seen, now)


def entries_of(step: Step) -> Sequence[Entry]:
    assert isinstance(step.write, WriteTable)
    assert step.write.last == 20
    assert step.write.table.epoch == 11
    return step.write.table.entries


BOTH = {"a": state(A), "b": state(B)}


def test_the_first_candidate_takes_a_vacant_term_at_once_and_the_others_later() -> None:
    seen = View(states=BOTH, live=frozenset("ab"))
    assert Bench(2).step(seen).write == TakeTerm(LED, 0)
    second = Bench(2, "b")
    step = second.step(seen)
    assert (step.write, step.wake_at) == (None, 1000.5)
    assert second.step(seen, 1000.5).write == TakeTerm(Term(leader="b"), 0)


def test_a_term_whose_leader_lives_is_left_alone_and_one_that_does_not_is_taken() -> None:
    seen = view(states=BOTH)
    assert Bench(2, "b").step(seen).write is None
    assert Bench(2, "b").step(replace(seen, live=frozenset("b"))).write == TakeTerm(Term(leader="b"), 4)


def test_a_process_without_a_session_takes_no_term() -> None:
    assert Bench(2).step(View(states={"b": state(B)}, live=frozenset("ab"))).write is None


def test_a_cold_start_waits_until_the_members_are_quiet() -> None:
    bench, seen = Bench(4), view(states=BOTH)
    step = bench.step(seen, 100.0)
    assert (step.write, step.wake_at) == (None, 101.0)
    three = view(states=BOTH | {"c": state(C)})
    assert bench.step(three, 100.9).wake_at == 101.9
    write = bench.step(three, 101.9).write
    assert isinstance(write, WriteTable)
    assert (write.founds, write.last) == (True, 4)
    assert write.table.epoch == 5, "above the revision of the term, so that tokens rise over tables that are gone"
    assert [entry.token for entry in write.table.entries] == [5] * 4
    assert {entry.owner for entry in write.table.entries} == {A, B, C}


def test_members_that_never_become_quiet_are_waited_for_no_longer_than_that() -> None:
    bench, now = Bench(4), 100.0
    for number in range(40):
        now = 100.0 + number * 0.5
        step = bench.step(view(states={"a": state(A), f"w{number}": state(Session(f"w{number}", "l", 9))}), now)
        if step.write is not None:
            break
    assert now == 110.0


def test_after_a_table_was_lost_its_owners_have_to_be_over() -> None:
    bench = Bench(2)
    seen = view(states={"a": state(A), "b": state(B, seen=70)})
    assert bench.settled(seen).write is None, "b still acts by the table"
    gone = view(states={"a": state(A), "b": state(B, seen=70)}, live=frozenset("a"))
    fresh = Bench(2)
    assert fresh.step(gone, 100.0).write is None
    fresh.evidence.wrote(150, 99.9)
    assert fresh.step(gone, 100.0 + WAIT_S).write is None, "of no refresh is it known that it came after the table"
    fresh.evidence.wrote(180, 100.0)
    assert fresh.step(gone, 100.0 + WAIT_S - 0.1).write is None
    assert fresh.step(gone, 100.0 + WAIT_S).write is None, "who is not believed to live may refresh all the same"
    fresh.evidence.wrote(190, 100.0 + WAIT_S)
    fresh.evidence.answered("ab", {"a": 180, "b": B.number}, 180, 100.1 + WAIT_S)
    assert fresh.step(gone, 100.1 + WAIT_S).write is None, "the server that answers may lag behind"
    fresh.evidence.answered("ab", {"a": 190, "b": B.number}, 190, 100.2 + WAIT_S)
    write = fresh.step(gone, 100.2 + WAIT_S).write
    assert isinstance(write, WriteTable)
    assert write.table.epoch == 191, "above the revision of every table that was written before"


@pytest.mark.parametrize("last", [2, 0])
def test_after_a_table_was_lost_a_worker_without_a_session_is_waited_for_too(last: int) -> None:
    """Its last calls may run still, or (0) those of the process whose worker id it has taken."""
    bench, resting = Bench(2), State(lease="b", session=0, seen=70, first=last, ended=last)
    seen = view(states={"a": state(A), "b": resting}, live=frozenset("a"))
    assert bench.step(seen, 100.0).write is None
    bench.evidence.wrote(190, 101.0)
    bench.evidence.answered("ab", {"a": 190}, 190, 101.0)
    assert bench.step(seen, 100.9 + WAIT_S).write is None
    bench.evidence.wrote(195, 101.0 + WAIT_S)
    bench.evidence.answered("ab", {"a": 195}, 195, 101.0 + WAIT_S)
    step = bench.step(seen, 101.0 + WAIT_S)
    assert isinstance(step.write, WriteTable), "its lease has been gone for so long"
    refreshed = Bench(2)
    assert refreshed.step(seen, 100.0).write is None
    for number in range(1, 30):
        refreshed.evidence.wrote(190 + 2 * number, 100.0 + number)
        refreshed.evidence.answered(
            "ab", {"a": 190 + 2 * number, "b": 191 + 2 * number}, 190 + 2 * number, 100.0 + number
        )
        assert refreshed.step(seen, 100.0 + number).write is None


def test_the_table_after_a_lost_one_is_above_it_where_all_have_stopped_to_act_by_it() -> None:
    """Else two owners would have the same token: what the first has written late would be taken for the second's."""
    write = Bench(2).settled(view(states=BOTH, states_revision=30)).write
    assert isinstance(write, WriteTable)
    assert write.table.epoch == 31


def test_a_table_where_there_is_none_is_written_only_if_nobody_has_led_since() -> None:
    """The table of another leader may be lost as well: nothing but its term shows it."""
    write = Bench(2).settled(view(states=BOTH)).write
    assert isinstance(write, WriteTable)
    assert (write.founds, write.last) == (True, 4), "the revision of the term"
    write = Bench(2).settled(view(states=BOTH, table_revision=95)).write
    assert isinstance(write, WriteTable)
    assert (write.founds, write.last) == (True, 95), "that of the marker of a table"


def test_the_table_after_a_lost_one_is_above_it_where_no_worker_says_that_it_has_seen_that() -> None:
    """All have to say that they act by none: what is left is the sessions that they have begun since."""
    since = {"a": state(A._replace(number=90), ended=1), "b": state(B._replace(number=80), ended=2)}
    seen = view(states=since)
    step = Bench(2).settled(seen)
    assert isinstance(step.write, WriteTable)
    assert step.write.table.epoch == 91
    step = Bench(2).settled(replace(seen, table_revision=95))  # of a marker
    assert isinstance(step.write, WriteTable)
    assert step.write.table.epoch == 96


def test_a_planned_move_goes_step_by_step() -> None:
    both = (Entry(A, 5), Entry(A, 5))
    bench = Bench(2)
    offered = entries_of(bench.settled(view(*both, states=BOTH)))
    assert offered == (Entry(A, 5), Entry(A, 5, Phase.PREPARE, B, 11))
    moving = (Entry(A, 5), Entry(A, 5, Phase.PREPARE, B, 8))
    assert bench.step(view(*moving, states=BOTH)).write is None
    wrong = BOTH | {"b": state(B, prepared=((1, 7),))}
    assert bench.step(view(*moving, states=wrong)).write is None, "prepared for an offer before"
    prepared = BOTH | {"b": state(B, prepared=((1, 8),))}
    draining = (Entry(A, 5), Entry(A, 5, Phase.DRAIN, B, 8))
    assert entries_of(bench.step(view(*moving, states=prepared))) == draining
    assert bench.step(view(*draining, states=prepared)).write is None
    released = prepared | {"a": state(A, released=((1, 5),))}
    assert entries_of(bench.step(view(*draining, states=released))) == (Entry(A, 5), Entry(B, 8))
    assert bench.step(view(Entry(A, 5), Entry(B, 8), states=BOTH)).write is None


def test_what_is_prepared_waits_a_little_for_the_rest_since_each_write_goes_to_all() -> None:
    bench, moving = Bench(3), (Entry(A, 5, Phase.PREPARE, B, 8), Entry(A, 5, Phase.PREPARE, C, 8), Entry(A, 5))
    all_of = {"a": state(A), "b": state(B), "c": state(C)}
    first = view(*moving, states=all_of | {"b": state(B, prepared=((0, 8),))})
    step = bench.step(first, 100.0)
    assert (step.write, step.wake_at) == (None, 100.2), "it has been so for no time"
    phases = [entry.phase for entry in entries_of(bench.step(first, 100.2))]
    assert phases == [Phase.DRAIN, Phase.PREPARE, Phase.HELD]
    both = view(*moving, states={**first.states, "c": state(C, prepared=((1, 8),))})
    bench = Bench(3)
    phases = [entry.phase for entry in entries_of(bench.step(both, 100.0))]
    assert phases == [Phase.DRAIN, Phase.DRAIN, Phase.HELD], "there is nothing to wait for"


def test_what_is_released_waits_for_nothing_that_only_is_offered() -> None:
    draining = (Entry(A, 5, Phase.DRAIN, B, 8), Entry(A, 5, Phase.PREPARE, C, 8), Entry(A, 5))
    released = {"a": state(A, released=((0, 5),)), "b": state(B), "c": state(C)}
    after = entries_of(Bench(3).step(view(*draining, states=released), 100.0))
    assert after == (Entry(B, 8), *draining[1:])


GIVING = {"a": state(A, leaving=True), "b": state(B)}


@pytest.mark.parametrize(("took_s", "waits_s"), [(0.0, 0.0), (0.05, 0.05), (30.0, 0.2)])
def test_what_is_released_waits_for_the_rest_no_longer_than_it_took(took_s: float, waits_s: float) -> None:
    draining = (Entry(A, 5, Phase.DRAIN, B, 8), Entry(A, 6, Phase.DRAIN, B, 9))
    bench = Bench(2)
    assert bench.settled(view(*draining, states=GIVING), 100.0).write is None
    first = view(*draining, states=GIVING | {"a": state(A, leaving=True, released=((0, 5),))})
    at = 80.0 + took_s  # it is drained since the first look
    if waits_s:
        step = bench.step(first, at)
        assert step.write is None
        assert step.wake_at == pytest.approx(at + waits_s)
    assert entries_of(bench.step(first, at + waits_s)) == (Entry(B, 8), draining[1])


def test_what_all_have_released_goes_on_at_once() -> None:
    draining = (Entry(A, 5, Phase.DRAIN, B, 8), Entry(A, 6, Phase.DRAIN, B, 9))
    bench = Bench(2)
    bench.settled(view(*draining, states=GIVING), 100.0)
    both = view(*draining, states=GIVING | {"a": state(A, leaving=True, released=((0, 5), (1, 6)))})
    assert entries_of(bench.step(both, 130.0)) == (Entry(B, 8), Entry(B, 9))


def test_a_table_that_is_written_anyway_takes_along_all_that_is_ready() -> None:
    moving = (Entry(A, 5, Phase.DRAIN, B, 8), Entry(A, 5, Phase.DRAIN, B, 8), Entry(A, 5, Phase.PREPARE, B, 9))
    more = (Entry(A, 5, Phase.PREPARE, B, 9), Entry(A, 5))
    bench = Bench(5)
    bench.settled(view(*moving, *more, states=GIVING), 100.0)
    ready = {"a": state(A, leaving=True, released=((0, 5),)), "b": state(B, prepared=((2, 9),))}
    assert bench.step(view(*moving, more[0], Entry(B, 5), states=ready), 100.1).write is None
    after = entries_of(bench.step(view(*moving, *more, states=ready), 100.1))
    assert [entry.phase for entry in after] == [Phase.HELD, Phase.DRAIN, Phase.DRAIN, Phase.PREPARE, Phase.PREPARE]


def test_what_a_write_releases_makes_room_for_offers_in_it() -> None:
    count = 4 * MAX_MOVING
    moving = [Entry(A, 5, Phase.DRAIN, B, 8)] * MAX_MOVING
    held = [Entry(A, 5)] * (count - MAX_MOVING)
    bench = Bench(count)
    released = BOTH | {"a": state(A, released=tuple((number + count - MAX_MOVING, 5) for number in range(MAX_MOVING)))}
    after = entries_of(bench.settled(view(*held, *moving, states=released)))
    assert [entry.phase for entry in after].count(Phase.PREPARE) == MAX_MOVING, "those before it too"
    assert [entry.owner for entry in after].count(B) == MAX_MOVING


@pytest.mark.parametrize("said", [((1, 4),), ((0, 5),)])
def test_what_was_released_with_another_token_or_of_another_partition_proves_nothing(said: Any) -> None:
    draining = (Entry(A, 6), Entry(A, 5, Phase.DRAIN, B, 8))
    assert Bench(2).settled(view(*draining, states=BOTH | {"a": state(A, released=said)})).write is None


def test_a_move_is_planned_only_when_the_members_are_quiet() -> None:
    bench, both = Bench(2), (Entry(A, 5), Entry(A, 5))
    step = bench.step(view(*both, states=BOTH), 100.0)
    assert (step.write, step.wake_at) == (None, 101.0)
    assert isinstance(bench.step(view(*both, states=BOTH), 101.0).write, WriteTable)


def test_a_worker_that_says_that_its_session_is_over_gets_its_partitions_again_at_once() -> None:
    again = Session("b", "b", 9)
    step = Bench(2).step(view(Entry(A, 5), Entry(B, 6), states=BOTH | {"b": state(again, first=2, ended=2)}))
    assert entries_of(step) == (Entry(A, 5), Entry(again, 11))


def test_another_process_of_the_worker_id_can_say_nothing_of_a_session_before_its_own() -> None:
    other = State(lease="b", session=0, first=4, ended=9)
    after = entries_of(Bench(2).step(view(Entry(A, 5), Entry(B, 6), states=BOTH | {"b": other})))
    assert after[1] == Entry(B, 6, Phase.PREPARE, A, 11), "it may run until its end is proved"


def test_a_drain_has_no_way_back_to_the_token() -> None:
    draining = (Entry(A, 5, Phase.DRAIN, B, 8),)
    alone = {"a": state(A)}
    (entry,) = entries_of(Bench(1).settled(view(*draining, states=alone)))
    assert entry == Entry(A, 5, Phase.DRAIN, A, 11)
    released = {"a": state(A, released=((0, 5),))}
    assert entries_of(Bench(1).settled(view(entry._replace(next_token=9), states=released))) == (Entry(A, 9),)


def test_an_offer_is_withdrawn_or_goes_to_another() -> None:
    offered = (Entry(A, 5, Phase.PREPARE, B, 8),)
    assert entries_of(Bench(1).settled(view(*offered, states={"a": state(A)}))) == (Entry(A, 5),)
    leaving = {"a": state(A, leaving=True), "c": state(C)}
    assert entries_of(Bench(1).settled(view(*offered, states=leaving))) == (Entry(A, 5, Phase.PREPARE, C, 11),)
    again = Session("b", "b", 9)
    later = {"a": state(A, leaving=True), "b": state(again, first=2, ended=2)}
    assert entries_of(Bench(1).settled(view(*offered, states=later))) == (Entry(A, 5, Phase.PREPARE, again, 11),)


def test_without_a_worker_that_takes_any_partitions_are_without_owner() -> None:
    draining = (Entry(A, 5, Phase.DRAIN, B, 8), Entry(A, 5))
    leaving = {"a": state(A, leaving=True, released=((0, 5),))}
    after = entries_of(Bench(2).settled(view(*draining, states=leaving)))
    assert after == (Entry(None, 5), Entry(A, 5)), "an owner that nobody can follow goes on"


def test_no_more_partitions_move_at_once_than_a_state_lists() -> None:
    count = 4 * MAX_MOVING
    bench = Bench(count)
    offered = entries_of(bench.settled(view(*[Entry(A, 5)] * count, states=BOTH)))
    assert [entry.phase for entry in offered].count(Phase.PREPARE) == MAX_MOVING


def test_a_worker_that_never_prepares_is_passed_over_for_a_while() -> None:
    bench = Bench(3, prepare_s=60.0, passed_over_s=300.0)
    three = {"a": state(A, leaving=True), "b": state(B), "c": state(C)}
    offered = (Entry(A, 5, Phase.PREPARE, B, 8), Entry(B, 5), Entry(C, 5))
    assert bench.step(view(*offered, states=three), 100.0).passed_over == ()
    assert bench.step(view(*offered, states=three), 159.9).passed_over == ()
    step = bench.step(view(*offered, states=three), 160.0)
    assert step.passed_over == ((0, "b"),)
    assert entries_of(step) == (Entry(A, 5, Phase.PREPARE, C, 11), Entry(B, 5), Entry(C, 5)), "b keeps what it has"
    kept = (Entry(C, 11), Entry(B, 5), Entry(C, 5))
    two = {"b": state(B), "c": state(C)}
    assert bench.step(view(*kept, states=two), 200.0).write is None


def test_a_worker_that_was_passed_over_is_asked_again_where_no_other_is_left() -> None:
    bench = Bench(1, prepare_s=60.0, passed_over_s=300.0)
    offered, here = (Entry(A, 5, Phase.PREPARE, B, 8),), BOTH | {"a": state(A, leaving=True)}
    bench.step(view(*offered, states=here | {"c": state(C)}), 100.0)
    step = bench.step(view(*offered, states=here | {"c": state(C)}), 160.0)
    assert entries_of(step) == (Entry(A, 5, Phase.PREPARE, C, 11),)
    step = bench.settled(view(*offered, states=here), 200.0)
    assert (step.write, step.passed_over) == (None, ()), "it has the offer, and is told of once"
    alone = {"b": state(B)}
    assert entries_of(bench.settled(view(Entry(None, 5), states=alone), 240.0)) == (Entry(B, 11),)


def test_records_are_written_again_before_the_bucket_forgets_them() -> None:
    bench, seen = Bench(2, touch_s=3600.0), view(Entry(A, 5), Entry(B, 5), states=BOTH)
    assert bench.step(seen, 100.0).write is None
    assert bench.step(seen, 3700.0).write == TakeTerm(LED, 4)
    touched = replace(seen, term_revision=30)
    assert entries_of(bench.step(touched, 3700.0)) == (Entry(A, 5), Entry(B, 5))


def test_pins_and_loads_and_capacities_are_obeyed() -> None:
    held = (Entry(A, 5), Entry(B, 5), Entry(B, 5), Entry(A, 5))
    pinned = view(*held, states=BOTH, wishes=Wishes(pins={0: "b"}))
    after = entries_of(Bench(4).settled(pinned))
    assert after[0].next == B
    wide = view(*held, states=BOTH | {"b": state(B, capacity=3)})
    assert sum(entry.next == B for entry in entries_of(Bench(4).settled(wide))) == 1
    heavy = view(*held, states=BOTH, wishes=Wishes(loads=(9, 1, 1, 1)))
    assert entries_of(Bench(4).settled(heavy))[3].next == B


def test_a_dead_workers_partition_waits_for_the_proof_and_is_prepared_meanwhile() -> None:
    bench, held = Bench(1), (Entry(B, 5),)
    alone = view(*held, states=BOTH, live=frozenset("a"))
    assert entries_of(bench.step(alone, 100.0)) == (Entry(B, 5, Phase.PREPARE, A, 11),)
    offered = (Entry(B, 5, Phase.PREPARE, A, 8),)
    ready = view(*offered, states=BOTH | {"a": state(A, prepared=((0, 8),))}, live=frozenset("a"))
    step = bench.step(ready, 100.0)
    assert step.write is None
    assert bench.step(ready, 200.0).write is None, "silence is no proof"
    bench.evidence.wrote(50, 100.0 + WAIT_S)
    bench.evidence.answered(["a", "b"], {"a": 50, "b": 2}, 50, 112.0)
    assert entries_of(bench.step(ready, 112.0)) == (Entry(A, 8),)


def test_the_end_of_a_session_needs_a_write_after_the_wait_and_an_answer_that_has_it() -> None:
    evidence = LeaseEvidence(WAIT_S)
    evidence.note(B, 0.0)
    assert evidence.provable_at(B) == WAIT_S
    evidence.wrote(40, WAIT_S - 0.1)
    evidence.answered(["b"], {"b": 2}, 40, 20.0)
    assert not evidence.is_over(B, 99.0), "the write was asked for too early"
    evidence.wrote(41, WAIT_S)
    evidence.answered(["b"], {"b": 2}, 40, 20.0)
    assert not evidence.is_over(B, 99.0), "the answer is of before the write"
    evidence.answered(["b"], {}, 0, 20.0)
    assert not evidence.is_over(B, 99.0), "the answer does not have the write"
    evidence.answered(["b"], {"b": 2}, 41, 20.0)
    assert evidence.is_over(B, 20.0)


def test_a_refresh_starts_the_wait_again_and_one_of_before_the_session_proves_nothing() -> None:
    evidence = LeaseEvidence(WAIT_S)
    evidence.note(B, 0.0)
    evidence.answered(["b"], {"b": 30}, 0, 5.0)
    evidence.wrote(41, WAIT_S)
    evidence.answered(["b"], {"b": 30}, 41, 12.0)
    assert not evidence.is_over(B, 12.0)
    evidence.wrote(42, 5.0 + WAIT_S)
    evidence.answered(["b"], {"b": 30}, 42, 17.0)
    assert evidence.is_over(B, 17.0)
    assert not evidence.is_over(Session("b", "b", 31), 17.0)


def test_a_lease_that_is_gone_may_have_been_refreshed_before_and_counts_from_when_it_was_found_gone() -> None:
    evidence = LeaseEvidence(WAIT_S)
    evidence.answered(["b"], {"b": 30}, 0, 0.0)
    evidence.wrote(29, 5.0)
    evidence.answered(["b"], {}, 29, 20.0)
    assert not evidence.is_over(B, 99.0), "the answer may be of before the lease was there"
    evidence.wrote(41, 50.0)
    evidence.answered(["b"], {}, 41, 50.1)
    assert evidence.provable_at(B) == WAIT_S
    assert not evidence.is_over(B, 50.0 + WAIT_S)
    evidence.answered(["b"], {}, 41, 60.0)
    assert evidence.is_over(B, 50.1 + WAIT_S)
    evidence.answered(["b"], {"b": 43}, 41, 70.0)
    assert not evidence.is_over(B, 70.0), "what is there again starts the wait again"


def test_a_session_whose_lease_another_process_took_is_over_after_the_wait() -> None:
    evidence = LeaseEvidence(WAIT_S)
    evidence.succeeded(B, Session("b", "host.b", 9), 0.0)
    assert not evidence.is_over(B, 99.0), "by another lease, the first one may still be refreshed"
    evidence.succeeded(B, Session("b", "b", 9), 100.0)
    assert not evidence.is_over(B, 100.0 + WAIT_S - 0.1)
    assert evidence.is_over(B, 100.0 + WAIT_S)
    evidence.keep([A])
    assert not evidence.is_over(B, 999.0)
