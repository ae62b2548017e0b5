"""The store against a model in memory: whatever is done in whatever order, both say the same.

Time stands still unless a rule moves it. Two store objects on one file take turns, as two processes would. A crash
leaves what the process had handed to the file system, which is what a copy of the files is at that moment.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ringcast_groupstore import Entry, EventKind, GroupStore, LiveWatch, Transaction, Value

GROUPS = st.sampled_from(["a", "a:b", "b", "é"])
KEYS = st.sampled_from(["k", "l", "k\x00", "漢"])
VALUES: st.SearchStrategy[Value] = st.one_of(st.text(max_size=4), st.binary(max_size=4))
TTLS = st.one_of(st.none(), st.integers(1, 20))
WHICH = st.integers(0, 1)
BATCHES = st.dictionaries(KEYS, VALUES, max_size=4)


class Told(NamedTuple):
    """An event, as far as the model knows it."""

    kind: EventKind
    group: str
    key: str
    value: Value | None
    revision: int


class Model:
    """Groups of keys in a dictionary."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Entry] = {}
        self.events: list[Told] = []

    @property
    def revision(self) -> int:
        return len(self.events)

    def live(self, now: int) -> list[Entry]:
        """In the order of group and key."""
        found = [entry for entry in self.entries.values() if entry.expires_at_ms is None or entry.expires_at_ms > now]
        return sorted(found, key=lambda entry: (entry.group.encode(), entry.key.encode()))

    def find(self, group: str, key: str, now: int) -> Entry | None:
        entry = self.entries.get((group, key))
        return entry if entry in self.live(now) else None

    def set(self, group: str, key: str, value: Value, expires_at_ms: int | None) -> int:
        self._tell(EventKind.SET, group, key, value)
        self.entries[group, key] = Entry(group, key, value, expires_at_ms, self.revision)
        return self.revision

    def delete(self, group: str, key: str, now: int) -> bool:
        found = self.find(group, key, now)
        self.entries.pop((group, key), None)
        if found:
            self._tell(EventKind.DELETE, group, key, None)
        return found is not None

    def delete_group(self, group: str, now: int) -> int:
        found = [entry for entry in self.live(now) if entry.group == group]
        self.entries = {place: entry for place, entry in self.entries.items() if place[0] != group}
        if found:
            self._tell(EventKind.DELETE_GROUP, group, "", None)
        return len(found)

    def _tell(self, kind: EventKind, group: str, key: str, value: Value | None) -> None:
        self.events.append(Told(kind, group, key, value, self.revision + 1))


class StoreMachine(RuleBasedStateMachine):
    """Does the same to two stores on one file, and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ringcast-groupstore-"))
        self.numbers = itertools.count()
        self.now = 1_000
        self.model = Model()
        self.stores: list[GroupStore] = []
        self.watch: LiveWatch | None = None
        self.told: list[Told] = []

    @initialize()
    def begin(self) -> None:
        self.path = self.directory / "store.db"
        self._open()

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.directory)

    @rule(which=WHICH, group=GROUPS, key=KEYS, value=VALUES, ttl=TTLS)
    def set(self, which: int, group: str, key: str, value: Value, ttl: int | None) -> None:
        with self._telling(which):
            assert self.stores[which].set(group, key, value, ttl_ms=ttl) == self.model.set(
                group, key, value, self._expiry(ttl)
            )

    @rule(which=WHICH, group=GROUPS, values=BATCHES, ttl=TTLS)
    def set_many(self, which: int, group: str, values: dict[str, Value], ttl: int | None) -> None:
        with self._telling(which):
            last = self.stores[which].set_many(group, values, ttl_ms=ttl)
            for key, value in sorted(values.items()):
                self.model.set(group, key, value, self._expiry(ttl))
            assert last == self.model.revision

    @rule(which=WHICH, group=GROUPS, key=KEYS, value=VALUES, ttl=TTLS)
    def create(self, which: int, group: str, key: str, value: Value, ttl: int | None) -> None:
        with self._telling(which):
            made = self.stores[which].create(group, key, value, ttl_ms=ttl)
            expected = (
                None if self.model.find(group, key, self.now) else self.model.set(group, key, value, self._expiry(ttl))
            )
            assert made == expected

    @rule(which=WHICH, group=GROUPS, key=KEYS, value=VALUES, right=st.booleans())
    def compare_and_set(self, which: int, group: str, key: str, value: Value, right: bool) -> None:
        with self._telling(which):
            found = self.model.find(group, key, self.now)
            revision = (found.revision if found else 0) if right else self.model.revision + 1
            made = self.stores[which].compare_and_set(group, key, value, revision=revision)
            assert made == (self.model.set(group, key, value, None) if right else None)

    @rule(which=WHICH, group=GROUPS, key=KEYS)
    def delete(self, which: int, group: str, key: str) -> None:
        with self._telling(which):
            assert self.stores[which].delete(group, key) == self.model.delete(group, key, self.now)

    @rule(which=WHICH, group=GROUPS, keys=st.lists(KEYS, max_size=3))
    def delete_many(self, which: int, group: str, keys: list[str]) -> None:
        with self._telling(which):
            dropped = self.stores[which].delete_many(group, keys)
            assert dropped == sum(self.model.delete(group, key, self.now) for key in keys)

    @rule(which=WHICH, group=GROUPS)
    def delete_group(self, which: int, group: str) -> None:
        with self._telling(which):
            assert self.stores[which].delete_group(group) == self.model.delete_group(group, self.now)

    @rule(which=WHICH, group=GROUPS, key=KEYS, values=BATCHES, commit=st.booleans(), crash=st.booleans())
    def transaction(
        self, which: int, group: str, key: str, values: dict[str, Value], commit: bool, crash: bool
    ) -> None:
        """One that commits, is rolled back, or is under way when the process dies."""
        try:
            with self.stores[which].transaction() as tx:
                self._do(tx, group, key, values)
                if not commit:
                    if crash:
                        self._move_to_copy()
                    raise LookupError  # noqa: TRY301  as a caller would
        except LookupError:
            if crash:
                self._reopen()
            return
        with self._telling(which):
            self.model.delete(group, key, self.now)
            for name, value in sorted(values.items()):
                self.model.set(group, name, value, None)

    @rule(milliseconds=st.integers(1, 15))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds

    @rule(which=WHICH)
    def purge(self, which: int) -> None:
        self.stores[which].purge_expired()
        (rows,) = self.stores[which]._source.rows("SELECT count(*) FROM entries", ())
        assert rows[0] == len(self.model.live(self.now))

    @rule()
    def reopen(self) -> None:
        self._reopen()

    @rule()
    def crash(self) -> None:
        self._move_to_copy()
        self._reopen()

    @rule(which=WHICH, group=GROUPS, key=KEYS)
    def read_one(self, which: int, group: str, key: str) -> None:
        expected = self.model.find(group, key, self.now)
        store = self.stores[which]
        assert store.entry(group, key) == expected
        assert store.get(group, key) == (expected.value if expected else None)
        assert store.contains(group, key) == (expected is not None)

    @rule(which=WHICH, prefix=st.sampled_from(["", "a", "a:", "b", "none"]))
    def read_many(self, which: int, prefix: str) -> None:
        expected = [entry for entry in self.model.live(self.now) if entry.group.startswith(prefix)]
        store = self.stores[which]
        assert list(store.entries(prefix)) == expected
        assert list(store.groups(prefix)) == list(dict.fromkeys(entry.group for entry in expected))
        assert store.count_all(prefix) == len(expected)
        for group in {entry.group for entry in expected}:
            assert list(store.items(group)) == [(entry.key, entry.value) for entry in expected if entry.group == group]

    @rule(which=WHICH, data=st.data())
    def read_log(self, which: int, data: st.DataObject) -> None:
        since = data.draw(st.integers(0, self.model.revision))
        current = {entry.revision: entry.value for entry in self.model.entries.values()}
        for event, expected in itertools.zip_longest(
            self.stores[which].changes(since, limit=1_000_000), self.model.events[since:]
        ):
            assert (event.kind, event.group, event.key, event.revision) == (*expected[:3], expected.revision)
            # A key that has expired may have been removed, and its value with it.
            assert event.value in (None, current.get(event.revision))

    @invariant()
    def same_entries(self) -> None:
        for store in self.stores:
            assert list(store.entries()) == self.model.live(self.now)
            assert store.revision == self.model.revision

    @invariant()
    def same_events(self) -> None:
        while self.watch and (event := self.watch.next(0)) is not None:
            assert self.told
            assert Told(event.kind, event.group, event.key, event.value, event.revision) == self.told.pop(0)
        assert self.told == []

    def _do(self, tx: Transaction, group: str, key: str, values: dict[str, Value]) -> None:
        tx.delete(group, key)
        tx.set_many(group, values)
        assert tx.get_many(group, values) == values

    def _expiry(self, ttl: int | None) -> int | None:
        return None if ttl is None else self.now + ttl

    def _telling(self, which: int) -> _Telling:
        return _Telling(self, which)

    def _open(self) -> None:
        self.stores = [
            GroupStore(self.path, clock=lambda: self.now, durable=False, purge_interval_s=None) for _ in range(2)
        ]
        self.watch = self.stores[0].watch()  # to the other nobody listens

    def _move_to_copy(self) -> None:
        """From now on the files are what they are at this moment, as after a crash."""
        copy = self.directory / f"store-{next(self.numbers)}.db"
        shutil.copy(self.path, copy)
        log = self.path.with_name(self.path.name + "-wal")
        if log.exists():
            shutil.copy(log, copy.with_name(copy.name + "-wal"))
        self.path = copy

    def _reopen(self) -> None:
        for store in self.stores:
            store.close()
        self._open()
        assert self.stores[0].check() == []


class _Telling:
    """Whatever the model does inside is what the watch hears, if it is done by the store that is watched."""

    def __init__(self, machine: StoreMachine, which: int) -> None:
        self._machine = machine
        self._which = which

    def __enter__(self) -> None:
        self._start = self._machine.model.revision

    def __exit__(self, *_: object) -> None:
        if self._which == 0:
            self._machine.told += self._machine.model.events[self._start :]


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
