"""What the audit log says of each mutation, and how its entries are chained, decided without a database.

Why entries are chained afterwards. A chain has one end, and a transaction that puts an entry there keeps all others out
until it commits: every write of a PostgreSQL database would wait for every other. So a transaction adds its entry to
``audit_pending``, without any lock: it is there if and only if the mutation is. Then one instance at a time, with the
row of ``audit_chain`` locked, moves what is pending to the end of the chain. It removes exactly what it appends, in one
transaction: nothing is lost and nothing is there twice, whatever dies in between. The order of the chain is that in
which entries were found; a transaction that began earlier and committed later comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from ringcast_wire import Migration, limits, stage_name
from ringcast_wire.audit import FORGET, AuditEntry, Chain, Link, entry_hash

from ringcast_config_service.repository.base import Authorship, Deletion, StoreRecord

MAX_SEALED: Final = 1_000
"""Entries that one transaction moves to the chain."""
MAX_FORGOTTEN: Final = 5_000
"""Entries that one transaction removes."""
SCANNED: Final = 50_000
"""Entries that one page of a list looks at, however few of them are wanted."""
_RANGES: Final = 8
"""Partitions of which an entry names the revisions; of more it says only how many there are."""
_DAY_MS: Final = 86_400_000

_json = msgspec.json.Encoder()


class AuditFact(NamedTuple):
    """An entry before it is chained; the database adds the time. The columns of INSERT_AUDIT in their order."""

    principal: str
    action: str
    store: str = ""
    key: str = ""
    outcome: str = "done"
    reason: str = ""
    details: str = "{}"


def fact(by: Authorship, action: str, store: str, key: str = "", outcome: str = "done", **details: Any) -> AuditFact:
    """What a principal has done. ``details`` must have neither the value of a row nor a secret."""
    return AuditFact(by.author, action, store, key, outcome, by.reason, pack(details))


def created(by: Authorship, store: StoreRecord) -> AuditFact:
    """A store was created."""
    settings: dict[str, Any] = {"partition_count": store.partition_count, "inline_max_bytes": store.inline_max_bytes}
    return fact(by, "CreateStore", store.name, **settings, history_id=store.history_id)


def migrated(by: Authorship, store: str, step: Migration) -> AuditFact:
    """A step of a migration was taken."""
    times: dict[str, Any] = {"lease_ttl_ms": step.lease_ttl_ms, "call_bound_ms": step.call_bound_ms}
    return fact(by, "MigrateStore", store, stage=stage_name(step.stage), number=step.number, **times)


def gone(by: Authorship, store: str, worker_id: str, keys: Sequence[str]) -> AuditFact:
    """An operator has said that a worker is gone: these keys, and more than these, do not wait for it any more."""
    return fact(by, "MigrateStore", store, gone=worker_id, keys=len(keys), named=sorted(keys)[:_RANGES])


def deleted(by: Authorship, deletion: Deletion, store: str, key: str = "") -> AuditFact:
    """A store, or a key, was deleted, or its purge was asked for."""
    action = "DeleteKey" if key else "DeleteStore"
    return fact(by, action, store, key, purge=not deletion.expires_at_ms)


def pack(details: dict[str, Any]) -> str:
    """Details as they are stored."""
    return _json.encode(details).decode()


class RowChanges(NamedTuple):
    """What one request has written to a key: ``ranges`` of (partition, first revision, last revision)."""

    by: Authorship
    store: str
    key: str
    written: int
    deleted: int
    ranges: Sequence[tuple[int, int, int]]


class AuditFilter(NamedTuple):
    """Which entries to list: of a store, a principal, an action (each empty for all), from a time on."""

    store: str = ""
    principal: str = ""
    action: str = ""
    since_ms: int = 0


class AuditPage(NamedTuple):
    """Entries, and where to go on: behind ``next``, or where the newest come first below it; 0: that was all."""

    entries: list[AuditEntry]
    next: int


class ChainPage(NamedTuple):
    """Entries one behind the other, and what was noted of the chain at that moment."""

    chain: Chain
    entries: list[AuditEntry]


def facts_of(changes: Iterable[RowChanges]) -> list[AuditFact]:
    """An entry for each principal, key and reason of a group of requests, not for each row or request."""
    sums: dict[tuple[Authorship, str, str], _Sum] = {}
    for change in changes:
        place = change.by, change.store, change.key
        found = sums.get(place)
        if found is None:
            found = sums[place] = _Sum()
        found.add(change)
    return [fact(by, "WriteRows", store, key, **found.details()) for (by, store, key), found in sums.items()]


class _Sum:
    __slots__ = ("deleted", "ranges", "written")

    def __init__(self) -> None:
        self.written = self.deleted = 0
        self.ranges: dict[int, tuple[int, int]] = {}

    def add(self, change: RowChanges) -> None:
        self.written += change.written
        self.deleted += change.deleted
        for partition, first, last in change.ranges:
            known = self.ranges.get(partition)
            self.ranges[partition] = (first, last) if known is None else (min(first, known[0]), max(last, known[1]))

    def details(self) -> dict[str, Any]:
        ranges = [(partition, *found) for partition, found in sorted(self.ranges.items())[:_RANGES]]
        return {
            "written": self.written,
            "deleted": self.deleted,
            "partitions": len(self.ranges),
            "revisions": ranges,
        }


def to_chain(record: Sequence[Any]) -> Chain:
    """From the columns of AUDIT_CHAIN."""
    seq, digits, floor_seq, floor_digits = record
    return Chain(Link(seq, digits), Link(floor_seq, floor_digits))


def to_entries(records: Iterable[Sequence[Any]]) -> list[AuditEntry]:
    """From the columns of an entry."""
    return [AuditEntry(*record) for record in records]


def sealed(head: Link, pending: Iterable[Sequence[Any]]) -> list[AuditEntry]:
    """What follows the head: records of pending entries (id, then the columns), in the order of their ids."""
    made: list[AuditEntry] = []
    seq, before = head
    for _, *columns in sorted(pending, key=lambda record: int(record[0])):
        seq += 1
        entry = AuditEntry(seq, *columns)
        before = entry_hash(before, entry)
        made.append(entry._replace(hash=before))
    return made


def oldest_kept_ms(now_ms: int, retention_ms: int) -> int:
    """Up to when entries are removed: by whole days (a tenth of the retention, if that is less), so that an entry about
    each removal does not make another one due every minute."""
    step = max(1, min(_DAY_MS, retention_ms // 10))
    return (now_ms - retention_ms) // step * step


def expired(ages: Iterable[tuple[int, int, str]], before_ms: int) -> tuple[Link | None, int]:
    """The last of the oldest entries (seq, time, hash) that are all older than a moment, and how many they are."""
    last, count = None, 0
    for seq, at_ms, digits in ages:
        if at_ms >= before_ms:
            break
        last, count = Link(seq, digits), count + 1
    return last, count


def forget_fact(by: Authorship, upto: Link, count: int) -> AuditFact:
    """What is said of a removal."""
    return fact(by, FORGET, "", upto=upto.seq, entries=count)


def window(after: int, chain: Chain, *, newest_first: bool) -> tuple[int, int]:
    """The entries that a page looks at: above the first, up to the second."""
    if newest_first:
        last = min(after - 1, chain.head.seq) if after else chain.head.seq
        return max(chain.floor.seq, last - SCANNED), last
    first = max(after, chain.floor.seq)
    return first, min(chain.head.seq, first + SCANNED)


def page_of(
    entries: list[AuditEntry], limit: int, bounds: tuple[int, int], chain: Chain, *, newest_first: bool
) -> AuditPage:
    """A page from what was found within its bounds."""
    first, last = bounds
    end = entries[-1].seq if len(entries) == limit else first + 1 if newest_first else last
    more = end > chain.floor.seq + 1 if newest_first else end < chain.head.seq
    return AuditPage(entries, end if more else 0)


def cut(text: str, most: int = limits.MAX_NAME_LENGTH) -> str:
    """What a client gave, as long as it may be and in printable characters: a refused call may name anything, and a
    database may refuse to store it."""
    text = text[:most]
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)
