"""The records of exclusive ownership as a tool reads them: once, from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ringcast_wire import ProtocolError, names
from ringcast_wire.ended_sessions import Span, believed, decode_gone
from ringcast_wire.owner_records import (
    MAX_NUMBER,
    Session,
    State,
    Table,
    Term,
    decode_state,
    decode_table,
    decode_term,
)

from ringcast._coordination.sticky.wishes import decode_wishes
from ringcast._protocol.sticky.balance import HotPartition, hot_partitions, measured_rates
from ringcast._protocol.sticky.loads import KeyLoad, decode_loads
from ringcast._protocol.sticky.plan import Wishes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyRecords:
    """Of the key ``key``. ``unreadable``: why a record can't be read, by its name; it counts as if it was not there."""

    key: str
    term: Term | None
    table: Table | None
    states: Mapping[str, State]
    """By worker, without those that name a lease that is not the worker's."""
    wishes: Wishes
    loads: Mapping[str, KeyLoad]
    """What workers report, by worker."""
    unreadable: Mapping[str, str]
    ended: Mapping[str, Span]
    """The sessions whose process has ended, by worker, as its agent says."""

    def has_stopped(self, session: Session) -> bool:
        """Whether a session has no calls of the rule before any more, as far as records say it."""
        state, span = self.states.get(session.worker_id), self.ended.get(session.worker_id)
        if span is not None and span.has(session.number):
            return True
        if state is None or self.table is None or state.lease != session.lease:
            return False
        is_over = state.first <= session.number <= state.ended
        return is_over or (state.session == session.number and state.stopped == self.table.since)

    def holds(self, worker_id: str) -> int:
        """How many partitions a worker owns, those that it is to stop included."""
        entries = self.table.entries if self.table is not None else ()
        return sum(entry.owner is not None and entry.owner.worker_id == worker_id for entry in entries)

    def rates(self) -> list[float | None]:
        """The changes a second of each partition, as far as its owner reports it; none where there is no table."""
        return measured_rates(self.table, self.loads, ()) if self.table is not None else []

    def hot(self) -> tuple[HotPartition, ...]:
        """The hot partitions, the hottest first."""
        taking = {worker_id: self.states[worker_id].capacity for worker_id in self.taking()}
        return hot_partitions(self.rates(), taking)

    def workers(self) -> set[str]:
        """The workers that take part, own something or are to: those that have said that they ended are not."""
        found = {worker_id for worker_id, state in self.states.items() if state.session}
        for entry in self.table.entries if self.table is not None else ():
            found.update(session.worker_id for session in (entry.owner, entry.next) if session is not None)
        return found

    def taking(self) -> set[str]:
        """The workers that may get partitions, as far as their states and the wishes say."""
        return {
            worker_id
            for worker_id, state in self.states.items()
            if state.session and not state.leaving and worker_id not in self.wishes.drains
        }


def key_records(owners: Mapping[str, bytes], wishes: bytes | None, key: str, partitions: int) -> KeyRecords:
    """The records of a key, of all entries of the bucket of owners, and its record in the bucket of wishes."""
    unreadable: dict[str, str] = {}

    def read(name: str, data: bytes | None, decode: Callable[[bytes], T]) -> T | None:
        try:
            return decode(data) if data is not None else None
        except ProtocolError as error:
            unreadable[name] = str(error)
            return None

    prefix, states = names.state_key(key, ""), {}
    load_prefix, loads = names.load_key(""), {}
    gone_prefix, gone = names.gone_key(key, ""), {}
    for name, data in owners.items():
        if name.startswith(prefix):
            state = read(name, data, decode_state)
            if state is not None and state.lease == (worker_id := name.removeprefix(prefix)):
                states[worker_id] = state
        elif name.startswith(gone_prefix):
            said = read(name, data, lambda data: decode_gone(data, MAX_NUMBER))
            gone[name.removeprefix(gone_prefix)] = said or {}
        elif name.startswith(load_prefix) and (load := (read(name, data, decode_loads) or {}).get(key)) is not None:
            loads[name.removeprefix(load_prefix)] = load
    term, table = names.term_key(key), names.table_key(key)
    return KeyRecords(
        key,
        read(term, owners.get(term), decode_term),
        read(table, owners.get(table), lambda data: decode_table(data, partitions)),
        states,
        read(names.wishes_key(key), wishes, lambda data: decode_wishes(data, partitions)) or Wishes(),
        loads,
        unreadable,
        believed(gone, states),
    )
