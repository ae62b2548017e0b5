"""What an agent says of processes that have ended: only what they said of themselves, and only to their own workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.leader import Leader, LeaderTimes, TakeTerm, View, WriteTable
from ringcast._protocol.sticky.witness import Witness
from ringcast_wire import LimitExceededError, ProtocolError
from ringcast_wire.ended_sessions import MAX_GONE, Span, believed, decode_gone, encode_gone
from ringcast_wire.owner_records import Entry, Phase, Session, State, Table, Term

A, B = Session("a", "a", 3), Session("b", "b", 5)
D_S = 11.1


def test_a_process_that_has_ended_is_over_and_one_that_is_forgotten_is_not() -> None:
    witness = Witness()
    witness.reported("p1", "a", "k", Span(3, 4))
    witness.reported("p1", "a", "l", Span(7, 7))
    witness.reported("p2", "b", "k", Span(5, 5))
    witness.forget("p2")
    assert witness.ended("p2") == frozenset()
    assert witness.record("k") == {}
    assert witness.ended("p1") == {"k", "l"}
    assert (witness.record("k"), witness.record("l")) == ({"a": Span(3, 4)}, {"a": Span(7, 7)})
    assert witness.ended("p1") == frozenset()


def test_of_two_processes_of_one_worker_the_later_counts() -> None:
    witness = Witness()
    witness.reported("p1", "a", "k", Span(3, 4))
    witness.reported("p2", "a", "k", Span(8, 9))
    witness.ended("p2")
    witness.ended("p1")
    assert witness.record("k") == {"a": Span(8, 9)}


def test_the_oldest_make_room() -> None:
    witness = Witness()
    for number in range(MAX_GONE + 3):
        witness.reported(number, f"w{number}", "k", Span(1, 1))
        witness.ended(number)
    assert list(witness.record("k")) == [f"w{number}" for number in range(3, MAX_GONE + 3)]
    encode_gone(witness.record("k"))
    with pytest.raises(LimitExceededError, match="gone has 257 workers: at most 256 are allowed"):
        encode_gone(dict(witness.record("k")) | {"one-more": Span(1, 1)})


def test_a_record_of_the_largest_names_and_numbers_is_read_back() -> None:
    gone = {f"{number:064d}": Span(2**53 - 2, 2**53 - 1) for number in range(MAX_GONE)}
    assert decode_gone(encode_gone(gone), 2**53) == gone


def test_sessions_that_had_not_begun_are_passed_over() -> None:
    assert decode_gone(encode_gone({"a": Span(3, 4), "b": Span(3, 9), "c": Span(4, 3)}), 8) == {"a": Span(3, 4)}


def test_what_an_agent_of_a_build_to_come_says_besides_is_passed_over() -> None:
    assert decode_gone(b'{"gone":[["a",3,4]],"why":"oom"}', 8) == {"a": Span(3, 4)}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"gone":[["a",0,1]]}', b'{"gone":[["a",1,1],["a",2,2]]}'])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_gone(data, 9)


def test_an_agent_is_believed_of_the_workers_that_name_it() -> None:
    states = {
        "a": State(lease="a", session=3, agent="host-1"),
        "b": State(lease="b", session=5, agent="host-2"),
        "c": State(lease="c", session=6),
    }
    everyone = {name: Span(1, 9) for name in "abcd"}
    assert believed({"host-1": everyone, "host-3": everyone, "": everyone}, states) == {"a": Span(1, 9)}


# --- the leader -------------------------------------------------------------------------------------------------------


def leader() -> Leader:
    return Leader("b", 1, LeaseEvidence(D_S), D_S, LeaderTimes())


def view(**changes: Any) -> View:
    settings: dict[str, Any] = {
        "term": Term(leader="b"),
        "term_revision": 6,
        "table": Table(9, (Entry(A, 9),)),
        "table_revision": 9,
        "states": {"a": State(lease="a", session=3, seen=9, agent="host-1"), "b": State(lease="b", session=5, seen=9)},
        "live": frozenset("ab"),
    }
    return View(**(settings | changes))


def test_a_partition_of_a_process_that_has_ended_is_given_away_at_once() -> None:
    made = leader()
    assert made.step(view(), 0.0).write is None
    write = made.step(view(gone={"a": Span(3, 3)}), 0.1).write
    assert isinstance(write, WriteTable)
    assert write.table.entries == (Entry(B, 10),)


@pytest.mark.parametrize("span", [Span(1, 2), Span(4, 9)])
def test_other_sessions_of_the_worker_are_not(span: Span) -> None:
    made = leader()
    made.step(view(), 0.0)
    assert made.step(view(gone={"a": span}), 0.1).write is None


def test_a_move_under_way_ends_with_the_process_that_has_the_partition() -> None:
    for phase in (Phase.PREPARE, Phase.DRAIN):
        table = Table(9, (Entry(A, 4, phase, B, 9),))
        write = leader().step(view(table=table, gone={"a": Span(3, 3)}), 0.0).write
        assert isinstance(write, WriteTable)
        assert write.table.entries == (Entry(B, 9),)


def test_the_term_of_a_process_that_has_ended_is_taken_at_once() -> None:
    dead = view(term=Term(leader="a"), gone={"a": Span(3, 3)})
    assert leader().step(view(term=Term(leader="a")), 0.0).write is None
    assert leader().step(dead, 0.0).write == TakeTerm(Term(leader="b"), 6)


def test_a_process_that_is_started_again_lives() -> None:
    states = {"a": State(lease="a", session=7, first=7, agent="host-1"), "b": State(lease="b", session=5)}
    table = Table(9, (Entry(Session("a", "a", 7), 9),))
    assert leader().step(view(states=states, table=table, gone={"a": Span(3, 3)}), 0.0).write is None


# --- any order of events ----------------------------------------------------------------------------------------------


EVENTS = st.lists(
    st.tuples(st.sampled_from(["starts", "session", "dies", "forget", "sees"]), st.integers(0, 3)), max_size=60
)


@given(EVENTS)
def test_nothing_is_said_of_a_process_that_may_live(events: list[tuple[str, int]]) -> None:
    """Workers 0 to 3 start, have sessions, die and are seen to be dead, in any order, each number once."""
    witness, revision = Witness(), 0
    current: dict[int, object] = {}
    sessions: dict[object, list[int]] = {}
    dead: set[object] = set()
    for event, worker in events:
        process = current.get(worker)
        match event:
            case "starts" if process is None or process in dead:
                current[worker] = object()
                sessions[current[worker]] = []
            case "session" if process is not None and process not in dead:
                revision += 1
                sessions[process].append(revision)
                witness.reported(process, str(worker), "k", Span(sessions[process][0], revision))
            case "dies" if process is not None:
                dead.add(process)
            case "forget" if process is not None:
                witness.forget(process)
            case "sees":
                for one in dead:
                    witness.ended(one)
        alive = {number for one, numbers in sessions.items() if one not in dead for number in numbers}
        said = decode_gone(encode_gone(witness.record("k")), revision)
        for name, span in said.items():
            own = {n for one, numbers in sessions.items() if one is current.get(int(name)) for n in numbers}
            assert not any(span.has(number) for number in alive & own)
