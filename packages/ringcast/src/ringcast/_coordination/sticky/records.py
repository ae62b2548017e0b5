"""The records of exclusive ownership as a worker sees and writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from ringcast_wire import EventLog, ProtocolError, names
from ringcast_wire.ended_sessions import Span, believed, decode_gone
from ringcast_wire.owner_records import (
    State,
    Table,
    Term,
    check_numbers,
    check_step,
    decode_state,
    decode_table,
    decode_term,
)

from ringcast._bus.buckets import Buckets, ConflictError
from ringcast._coordination.sticky.wishes import WishRecords
from ringcast._protocol.kv_mirror import Entry, KvMirror
from ringcast._protocol.sticky.leader import TOUCH_S
from ringcast._protocol.sticky.plan import Wishes

T = TypeVar("T")

MISSES: Final = 3
"""After so many readings in a row that do not find a table it counts as lost: one may come from a server that lags."""

RENEW_S: Final = TOUCH_S
"""How often all records are read anew: no watch tells of those that the bucket has let go of after a day."""


class OwnerRecords:
    """A mirror of the bucket of owners, without the sessions, and of what operators want of the keys.

    ``changed`` is called with each config key whose records are others, or have other revisions; ``progressed``, in its
    place, with a key and a worker whose state differs in nothing but how far the worker is: the leader goes by that.
    """

    def __init__(
        self,
        buckets: Buckets,
        store: str,
        keys: tuple[str, ...],
        partitions: int,
        changed: Callable[[str], None],
        progressed: Callable[[str, str], None],
        log: EventLog,
    ) -> None:
        self.bucket = buckets.bucket(names.owners_bucket(store))
        self._store = store
        self._keys = keys
        self._partitions = partitions
        self._changed = changed
        self._progressed = progressed
        self._log = log
        self._mirror = KvMirror()
        self._mirror.on_entry = self._entry
        self._mirror.on_snapshot = self._snapshot
        self._decoded: dict[str, tuple[int, Any]] = {}
        self._states: dict[str, dict[str, State]] = {key: {} for key in keys}
        """By key and worker, as they come: each worker writes one, and each reads those of all."""
        self._misses = dict.fromkeys(keys, 0)
        self._wishes = WishRecords(buckets, store, keys, partitions, changed, log)
        self._unreadable = 0
        self._step = 0

    async def watch(self, worker_id: str) -> None:
        """Keeps the mirror until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(worker_id))
            tasks.create_task(self._wishes.watch(worker_id))

    async def _watch(self, worker_id: str) -> None:
        name = names.watch_name(self._store, worker_id)
        patterns = [f"{key}.>" for key in self._keys]
        watch = self.bucket.watch(name, patterns, self._mirror, lambda: None, self._log)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await watch.run()

    @property
    def complete(self) -> bool:
        """Whether all records have been seen; those of operators, as far as they come within a while."""
        return self._mirror.complete and self._wishes.settled

    @property
    def unreadable(self) -> int:
        """Records that could not be read, each revision counted once."""
        return self._unreadable + self._wishes.unreadable

    def term(self, key: str) -> Term | None:
        """The leader of a key, if one is named."""
        return self._read(names.term_key(key), lambda data, _: decode_term(data))

    def table(self, key: str) -> Table | None:
        """The table of a key, if there is one that can be read."""
        return self._read(names.table_key(key), self._decode_table)

    def wishes(self, key: str) -> Wishes:
        """What an operator wants of a key: nothing where there is no record, the last that could be read otherwise."""
        return self._wishes.wishes(key)

    def states(self, key: str) -> Mapping[str, State]:
        """The states of a key by worker, without those that can't be read, or name a lease that is not the worker's.

        They change as records come.
        """
        return self._states[key]

    def gone(self, key: str) -> dict[str, Span]:
        """The sessions of a key whose processes have ended, by worker, as the agent says that the worker names."""
        states = self.states(key)
        said = {}
        for agent in {state.agent for state in states.values() if state.agent}:
            said[agent] = self._read(names.gone_key(key, agent), decode_gone) or {}
        return believed(said, states)

    def heard(self, step: int) -> None:
        """An operator has taken this step of a migration: tables may follow it. In other stores none follows any."""
        if step > self._step:
            self._step = step
            for key in self._keys:
                self._decoded.pop(names.table_key(key), None)

    def value(self, name: str) -> bytes | None:
        """What stands under a name."""
        entry = self._mirror.entries.get(name)
        return entry.value if entry is not None else None

    def revision(self, name: str) -> int:
        """The revision that a compare-and-set has to name; 0 where nothing ever was."""
        return self._mirror.revision(name)

    async def found_table(self, key: str, value: bytes, *, last: int) -> bool:
        """Writes a table where there is none, if no leader has written since revision ``last``, of its own or a table.

        Otherwise reads what is there, and returns ``False``. Raises as :meth:`write`.
        """
        if await self.write(names.table_key(key), value, last=last, among=names.lead_keys(key)):
            return True
        await self._look(names.term_key(key))
        return False

    async def write(self, name: str, value: bytes, *, last: int, among: str = "") -> bool:
        """Writes if the name is at revision ``last``; otherwise reads what is there, and returns ``False``.

        ``among``: as :meth:`Bucket.put` has it.

        Raises:
            BusError, UnavailableError, TimeoutError, OSError: the write may have come about, or not.
        """
        try:
            revision = await self.bucket.put(name, value, last=last, among=among)
        except ConflictError:
            await self._look(name)
            return False
        self._mirror.put(name, Entry(revision, value))
        return True

    async def lost_tables(self) -> list[str]:
        """Reads the table of each key beside the watch; returns the keys that have had none for a while.

        One that can't be read is none: no worker could lead by it, and the ends of workers would go unnoticed.
        """
        lost = []
        for key in self._keys:
            await self._look(names.table_key(key))
            self._misses[key] = self._misses[key] + 1 if self.table(key) is None else 0
            if self._misses[key] >= MISSES:
                lost.append(key)
        return lost

    async def _look(self, name: str) -> Entry | None:
        entry = await self.bucket.get(name)
        if entry is not None:
            self._mirror.put(name, entry)
        elif self._mirror.revision(name):
            self._mirror.correct(name, None)
            self._entry(name)
        return entry

    def _entry(self, name: str) -> None:
        """A record is another."""
        key = name.partition(".")[0]
        if (worker_id := self._take_state(key, name)) is not None:
            self._progressed(key, worker_id)
        else:
            self._changed(key)

    def _take_state(self, key: str, name: str) -> str | None:
        """Returns the worker if the record is its state, and tells nothing new but how far the worker is."""
        if key not in self._states or not name.startswith(prefix := names.state_key(key, "")):
            return None
        worker_id, states = name.removeprefix(prefix), self._states[key]
        before, state = states.get(worker_id), self._read(name, _decode_state)
        if state is None or state.lease != worker_id:
            states.pop(worker_id, None)
            return None
        states[worker_id] = state
        return worker_id if before is not None and _for_all(before) == _for_all(state) else None

    def _decode_table(self, data: bytes, revision: int) -> Table:
        table = decode_table(data, self._partitions)
        check_numbers(table, revision)
        check_step(table, self._step)
        return table

    def _snapshot(self) -> None:
        self._decoded = {name: found for name, found in self._decoded.items() if name in self._mirror.entries}
        for key in self._keys:
            self._states[key] = {}
            for name in self._mirror.group(key):
                self._take_state(key, name)
        for key in self._keys:
            self._changed(key)

    def _read(self, name: str, decode: Callable[[bytes, int], T]) -> T | None:
        """What stands under a name, by a function of its value and its revision."""
        entry = self._mirror.entries.get(name)
        if entry is None or entry.value is None:
            return None
        revision, record = self._decoded.get(name, (0, None))
        if revision != entry.revision:
            try:
                record = decode(entry.value, entry.revision)
            except ProtocolError as error:
                record = None
                self._unreadable += 1
                self._log.warning("owners.record_unreadable", record=name, error=error)
            self._decoded[name] = entry.revision, record
        found: T | None = record
        return found


def _for_all(state: State) -> tuple[str, int, bool, int, str]:
    """What every worker goes by: which of them take part, how they share, and which agents are believed."""
    return state.lease, state.session, state.leaving, state.capacity, state.agent


def _decode_state(data: bytes, revision: int) -> State:
    state = decode_state(data)
    check_numbers(state, revision)
    return state
