"""A copy in memory of a key-value bucket, kept up to date by a watch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from ringcast_wire import EndedLeases, LeaseRecord, NodeRecord, ProtocolError, SlotClaim, decode_record

T = TypeVar("T", NodeRecord, SlotClaim, LeaseRecord, EndedLeases)


class Entry(NamedTuple):
    """What a bucket says of a key: the revision that a compare-and-set has to name, and ``None`` if the key is gone."""

    revision: int
    value: bytes | None


class KvMirror:
    """The entries of a bucket, and the records in them as they were decoded. Repeats and late arrivals do no harm."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.generation = 0
        """Rises with every change: as long as it is the same, so is everything that can be read here."""
        self._groups: dict[str, set[str]] = {}
        self.complete = False
        """Whether a first whole snapshot has arrived."""
        self.on_snapshot: Callable[[], None] = lambda: None
        """Called after each whole snapshot."""
        self.on_entry: Callable[[str], None] = lambda _: None
        """Called with the key of each entry that comes by itself, and not with a snapshot."""
        self._before: dict[str, bytes] = {}
        self.unreadable = 0
        """Records that could not be read, each counted once."""
        self._unreadable: dict[str, int] = {}
        self._read: dict[str, tuple[int, Any]] = {}
        """Records as they were decoded, and at which revision: every change is a reason to read all of them."""

    def replace(self, entries: Mapping[str, Entry]) -> None:
        """Takes a whole snapshot: what it does not name is gone."""
        self.entries = dict(entries)
        self.generation += 1
        self._groups = {}
        self._read = {}
        self._unreadable = {key: at for key, at in self._unreadable.items() if key in self.entries}
        for key in self.entries:
            self._group(key)
        self.complete = True
        self._before.clear()
        self.on_snapshot()

    def group(self, head: str) -> frozenset[str] | set[str]:
        """The keys whose first token is ``head``."""
        return self._groups.get(head, frozenset())

    def correct(self, key: str, entry: Entry | None) -> None:
        """Takes what a read has found: a marker can expire without the watch being notified."""
        self.generation += 1
        if entry is not None:
            self.entries[key] = entry
            self._group(key)
        elif key in self.entries:
            del self.entries[key]
            self._groups[key.partition(".")[0]].discard(key)
            self._read.pop(key, None)
            self._unreadable.pop(key, None)

    def drop(self, key: str, revision: int) -> None:
        """The entry of this revision was deleted; the watch has not said so yet."""
        entry = self.entries.get(key)
        if entry is not None and entry.revision == revision:
            self.entries[key] = Entry(revision, None)
            self.generation += 1
            self._before.pop(key, None)

    def put(self, key: str, entry: Entry) -> bool:
        """Takes one entry; returns whether the key has another value now (a refreshed lease has not)."""
        known = self.entries.get(key)
        if known is not None and known.revision >= entry.revision:
            return False
        self.entries[key] = entry
        self.generation += 1
        self._group(key)
        changed = known is None or known.value != entry.value
        if changed and known is not None and known.value is not None and entry.value is not None:
            self._before[key] = known.value
        elif changed:
            self._before.pop(key, None)
        self.on_entry(key)
        return changed

    def get(self, key: str, kind: type[T]) -> T | None:
        """The record under a key, if there is one that can be read."""
        entry = self.entries.get(key)
        if entry is None or entry.value is None:
            return None
        at, record = self._read.get(key, (None, None))
        if at != entry.revision:
            try:
                record = decode_record(entry.value, kind)
            except ProtocolError:
                self.pass_over(key)
                record = None  # its writer is no member that this version can know
            self._read[key] = entry.revision, record
        return record

    def before(self, key: str, kind: type[T]) -> T | None:
        """The record that the one under a key took the place of, if that was seen."""
        value = self._before.get(key)
        try:
            return decode_record(value, kind) if value is not None else None
        except ProtocolError:
            return None

    def was_other(self, key: str) -> bool:
        """Whether the record under a key took the place of one that was seen."""
        return key in self._before

    def forget_before(self) -> None:
        """Forgets what stood there before."""
        self._before.clear()

    def pass_over(self, key: str) -> None:
        """Counts the record under a key as one that can't be used."""
        revision = self.revision(key)
        if self._unreadable.get(key) != revision:
            self._unreadable[key] = revision
            self.unreadable += 1

    def revision(self, key: str) -> int:
        """The revision to name in a compare-and-set; 0 for a key that never was."""
        entry = self.entries.get(key)
        return entry.revision if entry is not None else 0

    def _group(self, key: str) -> None:
        self._groups.setdefault(key.partition(".")[0], set()).add(key)
