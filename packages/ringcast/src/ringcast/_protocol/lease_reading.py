"""Which leases live, as far as this worker has read itself: which to read when, and what follows from an answer.

The end of a lease sends no message, and no refresh is delivered to other workers. Every few seconds a worker reads the
leases of a few members in one question: those of its neighbours on a ring of each key, which it watches for all others,
and a few of the rest in turn. What it finds ended it reports, and workers that get the report read for themselves. So a
report, or the watch of another worker, is a hint: without any of them the turns correct each view.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate, islice
from typing import Final, NamedTuple
from zlib import crc32

from ringcast_wire import limits

from ringcast._protocol.given_up import is_given_up
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership

READ_EVERY_S: Final = 2.5
LATE_AFTER_S: Final = 7.5
"""A lease that was not refreshed for so long is late: it was read three times without a change."""
LATE_EVERY_S: Final = 0.5
"""How often to read while one is late, was reported, or was not there in an answer that proves nothing."""
AT_ONCE_S: Final = 0.2
"""The least time between two readings."""
WATCHED: Final = 3
"""How many neighbours of each key a worker watches: so many watch it."""
IN_TURN: Final = 2
"""How many other leases are read each time."""
READ_AGAIN: Final = 2
"""How many more times to read what had ended when all were read: such an end is not reported, so not contradicted."""
MOST_READ: Final = 512
"""Leases in one question; a server answers at most 1,024."""
MOST_READ_BYTES: Final = 48 * 1024
"""What their ids may have together, so that the question is far below what a server takes; of short ids all fit."""
MOST_REPORTED: Final = 40
"""Leases in one report, so that it fits into a record."""
MOST_SUSPECTED: Final = 2 * MOST_REPORTED
"""How many leases one worker can have the others read within a refresh by its reports; the rest is read in turn."""
ENDED_AFTER_S: Final = limits.LEASE_SEEN_TO_END_S
"""A lease that was stored so long before the newest of an answer has ended, though the server has it still."""


PROVES_FOR_S: Final = limits.LEASE_REFRESH_S + 1.0
"""An answer with an older revision of the own lease proves nothing: a server that lags lets live leases run out."""


class Lease(NamedTuple):
    """A lease as a server has it: its revision, what it says, and when it was stored by the server's clock."""

    revision: int
    value: bytes
    stored_s: float


class _Seen(NamedTuple):
    """The revision that was read last, and about when it was written, by this process's clock."""

    revision: int
    since: float


class LeaseReadings:
    """Keeps ``membership.leases`` by what was read. ``watched`` and ``in_turn``: see the constants.

    An answer says of a lease that is missing, or too old, that it has ended only if the worker's own lease is in it, as
    it was refreshed last: a server that does not have that, or no worker at all, can't say which leases live. After a
    lost connection nothing has ended for ``grace_s``: all leases may have run out, and are taken again one by one. Only
    what another worker has given up meanwhile has, for then it was not all of them.
    """

    def __init__(self, keys: Iterable[str], membership: Membership, *, grace_s: float) -> None:
        self._keys = tuple(keys)
        self._membership = membership
        self._grace_s = grace_s
        self._own = ""
        self._own_seen: _Seen | None = None
        """The newest revision of the own lease."""
        self._seen: dict[str, _Seen] = {}
        self._ended: dict[str, int] = {}
        """The revision at which each lease ended: a server that has it still does not bring it back."""
        self._suspected: dict[str, int | None] = {}
        """Leases that were reported, and at which revision they were there all the same."""
        self._reported_by: Counter[str] = Counter()
        """How many leases each worker has had suspected since ``_reported_since``."""
        self._reported_since = 0.0
        self._found: dict[str, None] = {}
        """What this worker has found ended, and no other had reported."""
        self._again: dict[str, int] = {}
        """How many more times to read leases that have ended."""
        self._back: set[str] = set()
        """Leases that had ended, and whose records were written again since."""
        self._verify: set[str] = set()
        """Leases to read since the records are a new snapshot."""
        self._urgent = False
        """Whether there is a lease to read that was not asked for yet."""
        self._watching: frozenset[str] = frozenset()
        self._turn = ""
        self._lenient_until = 0.0
        self._records_are_old = False
        """Whether the records are as they were before the connection was lost."""
        self._due = 0.0
        self._read_at = 0.0
        self.finds = 0
        """How often it found one: as long as it is the same, there is nothing new to report."""
        self.presumed_dead = False
        """Whether another worker has found this worker's lease ended: then its records are to be written again."""
        membership.observe(self)

    @property
    def due(self) -> float | None:
        """When to read next; not before the records are known."""
        if not self._membership.nodes.complete:
            return None
        return self._due if not self._urgent else min(self._due, self._read_at + AT_ONCE_S)

    @property
    def reports(self) -> tuple[str, ...]:
        """The leases that this worker reports to the others: it found them ended, and records name them."""
        return tuple(self._found)

    def reconnected(self, now: float) -> None:
        """The connection was lost and is back."""
        if self._membership.leases.complete:
            self._lenient_until = now + self._grace_s
        self._records_are_old = True
        self._due = now

    def put_off(self, now: float) -> None:
        """Readings keep failing."""
        self._due = now + READ_EVERY_S

    def ends_reported(self, reporter: str, leases: Iterable[str]) -> None:
        """Another worker has found these ended; what is reported beyond ``MOST_SUSPECTED`` is left to the turns."""
        for lease in leases:
            if lease == self._own:
                self.presumed_dead = True
            elif self._membership.alive(lease) and lease not in self._suspected:
                if self._reported_by[reporter] >= MOST_SUSPECTED:
                    continue
                self._reported_by[reporter] += 1
                self._suspected[lease] = None
                self._urgent = True

    def ask(self, own: str, now: float) -> list[str]:
        """The leases to read now; ``own``: the one that this worker's records name."""
        if own != self._own:
            self._own, self._own_seen = own, None
        if now - self._reported_since >= limits.LEASE_REFRESH_S:
            self._reported_since = now
            self._reported_by.clear()
        self._read_at = now
        self._due = now + LATE_EVERY_S  # unless the answer says otherwise
        named = self._membership.named(self._keys)
        self._forget(named)
        self._watching = frozenset(self._neighbours())
        first = [own, *sorted(self._watching), *self._suspected, *self._unread(named), *self._again]
        wanted = list(dict.fromkeys([*first, *self._in_turn(named)]))
        asked = wanted[: _that_fit(wanted)]
        self._urgent = len(asked) < len(wanted)
        return asked

    def answer(self, requested: Collection[str], found: Mapping[str, Lease], now: float) -> bool:
        """Takes what a server has of the leases that were asked for; returns whether that changes anything."""
        newest_s = max((lease.stored_s for lease in found.values()), default=0.0)
        fresh = {key: lease for key, lease in found.items() if newest_s - lease.stored_s <= ENDED_AFTER_S}
        proves = self._proves(fresh.get(self._own), now, newest_s)
        changed, ended, unsure, finds = False, False, False, self.finds
        for key in requested:
            lease = fresh.get(key)
            if lease is not None and self._ended.get(key) != lease.revision:
                changed |= self._lives(key, lease, now, newest_s - lease.stored_s)
            elif key == self._own or (proves and self._may_end(key, now)):
                ended |= self._ends(key, found.get(key))
            else:
                unsure |= self._membership.alive(key)
        unread = self._unread(self._membership.named(self._keys))
        if not self._membership.leases.complete and not unread and proves:
            self._membership.leases.complete = changed = True
        slow = not (unread or unsure or self._suspected or self._is_late(now))
        self._due = now + (AT_ONCE_S if ended else READ_EVERY_S if slow else LATE_EVERY_S)
        return changed or ended or finds != self.finds

    # ---- which to read

    def _unread(self, named: Collection[str]) -> list[str]:
        known = self._membership.leases.entries
        return sorted(lease for lease in named if lease not in known or lease in self._verify)

    def _neighbours(self) -> Iterable[str]:
        """The leases that come after this worker's on the ring of each key. Hashed, so that a rack is spread out."""
        for key in self._keys:
            ring = sorted(
                _place(lease)
                for lease in self._membership.named((key,))
                if lease != self._own and self._membership.alive(lease)
            )
            at = bisect_right(ring, _place(self._own))
            yield from (lease for _, lease in (ring[at:] + ring[:at])[:WATCHED])

    def _in_turn(self, named: Collection[str]) -> list[str]:
        """Some of all the others, those that have ended too."""
        others = sorted(lease for lease in named if lease != self._own and lease not in self._watching)
        at = bisect_right(others, self._turn)
        some = (others[at:] + others[:at])[:IN_TURN]
        self._turn = some[-1] if some else ""
        return some

    def _forget(self, named: Collection[str]) -> None:
        """Forgets leases that no record names any more."""
        keep = {*named, self._own, *self._membership.named_before(self._keys)}
        self._back &= keep
        for known in (self._seen, self._ended, self._suspected, self._found, self._again):
            for lease in [lease for lease in known if lease not in keep]:
                del known[lease]
        self._verify &= keep
        for lease in self._membership.leases.entries.keys() - keep:
            self._membership.leases.correct(lease, None)

    def records_replaced(self) -> None:
        self._urgent = True
        self._records_are_old = False
        # A report that came while the connection was lost: without a newer record it would count for ever.
        self.presumed_dead = self.presumed_dead or is_given_up(self._membership.nodes, self._own, self._keys)
        self._verify = set(self._membership.named(self._keys))

    def lease_named(self, lease: str, *, claim: bool) -> None:
        """A record that names it was written. If it had ended it is to be read, and reports of it are over.

        A claim is no sign of life, for any worker can write it; but it is a reason to look.
        """
        if not claim:
            self._suspected.pop(lease, None)
        if self._membership.alive(lease):
            return
        self._urgent = True
        if self._membership.ended(lease):
            self._membership.leases.correct(lease, None)
            if not claim:
                self._found.pop(lease, None)
                self._back.add(lease)
        self._membership.on_leases_due()

    # ---- what follows from an answer

    def _proves(self, own: Lease | None, now: float, newest_s: float) -> bool:
        """Whether a lease that is not in an answer has ended; ``own``: the worker's own lease in it."""
        seen = self._own_seen
        if own is None:
            return False
        if seen is None or own.revision > seen.revision:
            self._own_seen = seen = _Seen(own.revision, now - (newest_s - own.stored_s))
        elif own.revision < seen.revision and now - seen.since > ENDED_AFTER_S:
            self._own_seen = _Seen(own.revision, now)  # the bucket was created again: its revisions began again
            return False
        return own.revision == seen.revision and now - seen.since <= PROVES_FOR_S

    def _may_end(self, key: str, now: float) -> bool:
        """Whether a lease that is not there has ended, and is not only late to be taken again."""
        if now >= self._lenient_until:
            return True
        return not self._records_are_old and is_given_up(self._membership.nodes, key, self._keys)

    def _is_late(self, now: float) -> bool:
        return any(now - seen.since > LATE_AFTER_S for lease, seen in self._seen.items() if lease in self._watching)

    def _lives(self, key: str, lease: Lease, now: float, age_s: float) -> bool:
        lived = self._membership.alive(key)
        if (seen := self._seen.get(key)) is None or seen.revision != lease.revision:
            self._seen[key] = _Seen(lease.revision, now - age_s)
        self._membership.leases.correct(key, Entry(lease.revision, lease.value))
        if key in self._suspected:
            if self._suspected[key] in (None, lease.revision):
                self._suspected[key] = lease.revision
            else:
                del self._suspected[key]
        self._ended.pop(key, None)
        self._found.pop(key, None)
        self._again.pop(key, None)
        self._back.discard(key)
        self._verify.discard(key)
        return not lived

    def _ends(self, key: str, kept: Lease | None) -> bool:
        lived = self._membership.alive(key)
        seen = self._seen.pop(key, None)
        if (last := kept or seen) is not None:
            self._ended[key] = last.revision
        known = key in self._membership.leases.entries or key in self._back
        if key in self._verify or not known:
            self._again[key] = READ_AGAIN  # every worker reads these, so every worker finds it
        elif key in self._again:
            self._again[key] -= 1
            if not self._again[key]:
                del self._again[key]
        elif (lived or key in self._back) and key not in self._suspected and key != self._own:
            self._found[key] = None
            self.finds += 1
            if len(self._found) > MOST_REPORTED:
                del self._found[next(iter(self._found))]
        self._suspected.pop(key, None)
        self._back.discard(key)
        self._verify.discard(key)
        self._membership.leases.correct(key, Entry(self._ended.get(key, 0), None))
        return lived or key == self._own


def _that_fit(leases: Iterable[str]) -> int:
    """How many of these leases fit into one question."""
    sizes = accumulate(len(lease.encode()) for lease in leases)
    return sum(size <= MOST_READ_BYTES for size in islice(sizes, MOST_READ))


def _place(lease: str) -> tuple[int, str]:
    return crc32(lease.encode()), lease
