"""The records of exclusive ownership: what is read back, what is refused, and what others take them for."""

from __future__ import annotations

import json
import logging
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast._common.log import worker_log
from ringcast._coordination.sticky.records import OwnerRecords
from ringcast._protocol.kv_mirror import Entry as Stored
from ringcast._protocol.kv_mirror import KvMirror
from ringcast._protocol.membership import Membership, orphaned_records
from ringcast_wire import LimitExceededError, ProtocolError, limits, names
from ringcast_wire.owner_records import (
    MAX_MOVING,
    MAX_NUMBER,
    MAX_SESSIONS,
    MAX_STATE_BYTES,
    Entry,
    Phase,
    Session,
    State,
    Table,
    Term,
    check_numbers,
    check_step,
    decode_state,
    decode_table,
    decode_term,
    encode_state,
    encode_table,
    encode_term,
)

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
SESSIONS = st.builds(Session, NAMES, NAMES, st.integers(1, 9))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    entries = []
    for _ in range(draw(st.integers(1, 12))):
        phase = draw(st.sampled_from(Phase))
        entry = Entry(draw(st.none() | SESSIONS), draw(st.integers(0, 99)), phase)
        if phase is not Phase.HELD:
            entry = entry._replace(next=draw(st.none() | SESSIONS), next_token=draw(st.integers(0, 99)))
        entries.append(entry)
    return Table(draw(st.integers(99, MAX_NUMBER)), tuple(entries))


@given(tables())
def test_a_table_is_read_back(table: Table) -> None:
    assert decode_table(encode_table(table), len(table.entries)) == table


@given(tables())
def test_what_a_follower_asks_of_a_table_that_it_has_read_is_as_in_the_one_that_was_written(table: Table) -> None:
    read, every = decode_table(encode_table(table), len(table.entries)), range(len(table.entries))
    named = [{session for session in (entry.owner, entry.next) if session is not None} for entry in table.entries]
    assert read.sessions() == table.sessions() == set().union(*named)
    for worker_id in {"other", *(session.worker_id for session in table.sessions())}:
        theirs = {n for n in every if worker_id in {session.worker_id for session in named[n]}}
        assert read.naming(worker_id) == table.naming(worker_id) == theirs
    assert [read.entries[n] for n in every] == [read.entries[n - len(every)] for n in every] == list(table.entries)


def test_a_state_and_a_term_are_read_back() -> None:
    state = State(
        lease="host.x", session=5, first=2, ended=3, seen=9, prepared=((1, 9),), released=((2, 7),), leaving=True
    )
    assert decode_state(encode_state(state)) == state
    assert decode_term(encode_term(Term(leader="w"))) == Term(leader="w")


def test_the_largest_records_fit() -> None:
    sessions = [Session(f"{n:0>64}", f"{n:0>64}.{n:0>64}", MAX_NUMBER) for n in range(MAX_SESSIONS - MAX_MOVING)]
    later = [Session(f"{n:a>64}", f"{n:a>64}.{n:a>64}", MAX_NUMBER) for n in range(MAX_MOVING)]
    entries = [Entry(sessions[n % len(sessions)], MAX_NUMBER) for n in range(4096)]
    for n in range(MAX_MOVING):
        entries[-1 - n] = Entry(sessions[n], MAX_NUMBER, Phase.PREPARE, later[n], MAX_NUMBER)
    table = Table(MAX_NUMBER, tuple(entries))
    assert decode_table(encode_table(table), 4096) == table
    pairs = tuple((4095, MAX_NUMBER) for _ in range(MAX_MOVING))
    lease = f"{'a' * 64}.{'b' * 64}"
    state = State(
        lease=lease,
        session=MAX_NUMBER,
        first=MAX_NUMBER,
        ended=MAX_NUMBER,
        seen=MAX_NUMBER,
        prepared=pairs,
        released=pairs,
        leaving=True,
        capacity=1_000_000,
        agent="c" * 64,
    )
    assert decode_state(encode_state(state)) == state


def test_a_table_of_too_many_moves_or_sessions_is_refused() -> None:
    moving = Entry(None, 1, Phase.DRAIN)
    with pytest.raises(LimitExceededError, match=r"^a table has 65 moves: at most 64 are allowed$"):
        encode_table(Table(1, (moving,) * (MAX_MOVING + 1)))
    owned = tuple(Entry(Session(f"w{n}", "l", 1), 1) for n in range(MAX_SESSIONS + 1))
    with pytest.raises(LimitExceededError, match=rf"^a table has {MAX_SESSIONS + 1} sessions: at most {MAX_SESSIONS}"):
        encode_table(Table(1, owned))


GOOD: dict[str, Any] = {
    "epoch": 5,
    "sessions": [["w", "l", 1]],
    "owners": [0, -1],
    "tokens": [5, 0],
    "moves": [[0, "drain", -1, 0]],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"owners": [0]}, "table has 1 owners and 2 tokens, not 2"),
        ({"owners": [1, -1]}, "table names session 1 of 1"),
        ({"moves": [[0, "drain", 3, 0]]}, "table names session 3 of 1"),
        ({"tokens": [6, 0]}, "table of epoch 5 has a token of a later one"),
        ({"moves": [[0, "drain", -1, 6]]}, "table of epoch 5 has a token of a later one"),
        ({"moves": [[0, "drain", -1, 0]] * 2}, "table moves partition 0 of 2 twice, or not at all"),
        ({"moves": [[2, "drain", -1, 0]]}, "table moves partition 2 of 2 twice, or not at all"),
        ({"moves": [[0, "held", -1, 0]]}, "table moves partition 0 of 2 twice, or not at all"),
        ({"epoch": 0}, "TableRecord of .* can't be read"),
        ({"owners": [-2, 0]}, "TableRecord of .* can't be read"),
        ({"sessions": [[">", "l", 1]]}, "TableRecord of .* can't be read"),
        ({"sessions": [["w", "a.b.c", 1]]}, "TableRecord of .* can't be read"),
        ({"moves": [[0, "drain", -1, 0]] * 65}, "TableRecord of .* can't be read"),
    ],
)
def test_a_damaged_table_is_refused(change: dict[str, Any], message: str) -> None:
    assert decode_table(json.dumps(GOOD).encode(), 2)
    with pytest.raises(ProtocolError, match=message):
        decode_table(json.dumps(GOOD | change).encode(), 2)


def test_records_that_are_too_long_are_refused() -> None:
    with pytest.raises(ProtocolError, match=rf"^TableRecord takes {limits.MAX_TABLE_BYTES + 1} bytes: at most"):
        decode_table(b" " * (limits.MAX_TABLE_BYTES + 1), 2)
    for decode in (decode_state, decode_term):
        with pytest.raises(ProtocolError, match=rf"takes {MAX_STATE_BYTES + 1} bytes: at most {MAX_STATE_BYTES} are"):
            decode(b" " * (MAX_STATE_BYTES + 1))


@given(st.binary(max_size=60))
def test_rubbish_is_refused(data: bytes) -> None:
    for decode in (decode_state, decode_term, lambda data: decode_table(data, 2)):
        with pytest.raises(ProtocolError):
            decode(data)


def test_others_take_them_for_no_member_and_no_claim() -> None:
    """The agent deletes claims on slots of workers that it does not have; a worker counts members."""
    records = {
        names.term_key("list"): encode_term(Term(leader="w")),
        names.table_key("list"): encode_table(Table(1, (Entry(Session("w", "host", 1), 1),))),
        names.state_key("list", "w"): encode_state(State(lease="host", session=1)),
    }
    nodes = KvMirror()
    nodes.replace({name: Stored(at + 1, value) for at, (name, value) in enumerate(records.items())})
    assert orphaned_records(nodes, "host", living=()) == []
    membership = Membership()
    membership.nodes.replace(nodes.entries)
    assert membership.records_of("list") == ({}, {})
    assert membership.named(["list"]) == frozenset()
    assert membership.nodes.unreadable == 0


_OWN = Session("w", "w", 7)


@pytest.mark.parametrize(
    "record",
    [
        Table(7, (Entry(_OWN, 5), Entry(_OWN, 5, Phase.PREPARE, _OWN, 7))),
        State(lease="w", session=7, first=6, ended=6, seen=7),
        State(lease="w", session=0, ended=7),
    ],
)
def test_no_number_of_a_record_is_above_its_revision(record: Table | State) -> None:
    """Otherwise one write of a hostile worker would leave no epoch, or no token, for the others."""
    check_numbers(record, 7)
    with pytest.raises(ProtocolError, match=r"of revision 6 has the number 7: none is higher"):
        check_numbers(record, 6)


def test_no_table_follows_a_step_that_was_never_taken() -> None:
    """Otherwise no leader would change its rule any more."""
    table = Table(7, (Entry(_OWN, 5),), step=3)
    check_step(table, 3)
    with pytest.raises(ProtocolError, match="table follows step 3 of a migration: the last one is 2"):
        check_step(table, 2)


class Bucket:
    """Takes every write."""

    def __init__(self) -> None:
        self._revisions = count(10)

    async def put(self, name: str, value: bytes, *, last: int, among: str = "") -> int:
        return next(self._revisions)


_SAID = State(lease="w", session=5, first=5)
_SAYS_ELSE: dict[str, Any] = {
    "session": 6,
    "first": 4,
    "ended": 4,
    "seen": 9,
    "prepared": ((1, 9),),
    "released": ((1, 9),),
    "leaving": True,
    "capacity": 2,
    "agent": "host",
    "stopped": 8,
    "guarded": 3,
    "wire": 3,
}


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(State) if field.name != "lease"])
async def test_how_far_a_worker_is_concerns_the_leader_alone_and_whether_it_takes_part_all(
    field: str,
) -> None:
    changed: list[str] = []
    progressed: list[tuple[str, str]] = []
    buckets = SimpleNamespace(bucket=lambda name: Bucket())
    records = OwnerRecords(
        cast("Any", buckets),
        "store",
        ("list",),
        2,
        changed.append,
        lambda key, worker_id: progressed.append((key, worker_id)),
        worker_log(logging.getLogger("ringcast")),
    )
    name, is_progress = names.state_key("list", "w"), field not in {"session", "leaving", "capacity", "agent"}
    await records.write(name, encode_state(_SAID), last=0)
    assert (changed, progressed) == (["list"], [])
    await records.write(name, encode_state(msgspec.structs.replace(_SAID, **{field: _SAYS_ELSE[field]})), last=10)
    assert (changed[1:], progressed) == (([], [("list", "w")]) if is_progress else (["list"], []))
    await records.write(name, b"{}", last=11)
    assert (changed[-1], records.states("list")) == ("list", {})
