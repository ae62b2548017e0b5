"""Row ids that a release adds are held to be unique beyond what normalisation takes away.

What a release adds is compared with every row that its key keeps, with what else it adds, and with what releases that
are being published are still to add. The databases have no such normalisations in common, so all ids of the key are
read once, page by page, when the release begins to be published; 8 bytes are kept of each that the release adds, a
hash. What has the same hash is compared as text.

That is done in a snapshot, without a lock. So it counts only if no other release has begun since: when this one begins
it holds a lock that they need too, and looks which have begun. If it is more than the snapshot had, it is done again.

Every statement goes along an index, and none asks for one row at a time: of a release that was staged just now
PostgreSQL has no statistics, takes its rows for a few, and may look one of them up by reading them all.
"""

from __future__ import annotations

import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ringcast_wire import ConditionFailedError, ReleaseState, StorePolicy, shown

from ringcast_config_service.repository.release_records import Release
from ringcast_config_service.repository.release_transactions import Ask, ReleaseStatements, Transaction

_IGNORED: Final = {
    "unique_ignoring_unicode_form": "Unicode form",
    "unique_ignoring_case": "case",
    "unique_ignoring_outer_space": "outer space",
    "unique_ignoring_trailing_dot": "trailing dot",
}
"""The policies, and what each ignores."""
_PAGE_ROWS: Final = 2_000
_PARTS: Final = 256
_MOST_ALIKE: Final = 50_000
"""Rows that are like one that is added, of which those that the release deletes are told apart at once."""


class Normal:
    """What ids are compared by, for the policies of a store."""

    def __init__(self, policy: StorePolicy) -> None:
        self.policies = tuple(name for name in _IGNORED if getattr(policy, name))
        self._form, self._case, self._space, self._dot = (bool(getattr(policy, name)) for name in _IGNORED)

    def of(self, row_id: str) -> str:
        """Two ids are the same for the policies if and only if this is."""
        if self._form:
            row_id = unicodedata.normalize("NFKC", row_id)
        if self._case:
            row_id = row_id.casefold()
            if self._form:  # what is folded need not be normal: the dot of a capital I
                row_id = unicodedata.normalize("NFKC", row_id)
        if self._space:
            row_id = row_id.strip()
        if self._dot:
            row_id = row_id.removesuffix(".")
            if self._space:  # what was before the dot is outer space now
                row_id = row_id.strip()
        return row_id

    def refusal(self, release: Release, key: str, one: str, other: str, adds: int = 0) -> ConditionFailedError:
        """``adds``: the release that is still to add the row ``one``, 0 for none."""
        where = f", which release {adds} is still to add," if adds else ""
        *most, last = (_IGNORED[name] for name in self.policies)
        ignored = f"{', '.join(most)} and {last} are" if most else f"{last} is"
        policies = f"polic{'ies' if most else 'y'} {', '.join(self.policies)}"
        refuse = "refuse" if most else "refuses"
        return ConditionFailedError(
            f"{release.place} can't be published, nothing is published: key {key!r} would have the rows "
            f"{shown(one)}{where} and {shown(other)}, which are the same where {ignored} ignored; the {policies} of "
            f"the store {refuse} it",
            field=self.policies[0],
        )


class Hashes:
    """Hashes of texts, 8 bytes each: in small sorted arrays, so that no more is needed to sort them."""

    def __init__(self) -> None:
        self._parts = [array("q") for _ in range(_PARTS)]

    def add(self, text: str) -> None:
        found = hash(text)
        self._parts[found % _PARTS].append(found)

    def sort(self) -> list[int]:
        """Has to be called before anything is looked up; returns those that were added twice."""
        self._parts = [array("q", sorted(part)) for part in self._parts]
        return [one for part in self._parts for one, other in pairwise(part) if one == other]

    def __contains__(self, text: str) -> bool:
        wanted = hash(text)
        part = self._parts[wanted % _PARTS]
        place = bisect_left(part, wanted)
        return place < len(part) and part[place] == wanted


class Compared(NamedTuple):
    """By which policies a release was compared, and which other ones had begun to be published by then."""

    policies: tuple[str, ...] = ()
    begun: frozenset[int] = frozenset()


def is_still_unique(
    sql: ReleaseStatements, release: Release, policy: StorePolicy, compared: Compared
) -> Transaction[bool]:
    """Whether what :func:`check_duplicates` has found still holds for releases, and will when the transaction ends:
    until then no other release of the store begins that has to be compared."""
    policies = Normal(policy).policies
    if not policies:
        return True
    yield Ask(sql.lock_release_pin, (release.store,))
    begun = yield Ask(sql.begun_releases, (release.store, release.number))
    return policies == compared.policies and compared.begun.issuperset(number for number, _ in begun)


def check_duplicates(sql: ReleaseStatements, release: Release, policy: StorePolicy) -> Transaction[Compared]:
    """Refuses a release that adds a row whose id is, but for what policies ignore, that of another row.

    Rows that are there already and alike stay as they are. A row that the release deletes is no longer there.

    Raises:
        ConditionFailedError: it adds one; the sentence names both rows.
    """
    normal = Normal(policy)
    if not normal.policies:
        return Compared()
    begun = yield Ask(sql.begun_releases, (release.store, release.number))
    for key, added, _, _, _, key_id, *_ in (yield Ask(sql.release_keys, (release.store, release.number))):
        if not added:
            continue
        hashes = Hashes()
        after = ""
        while page := (yield _added(sql, release, key, after)):
            for (row_id,) in page:
                hashes.add(normal.of(row_id))
            ((after,),) = page[-1:]
        for twice in hashes.sort():
            yield from _compare(sql, release, key, normal, twice)
        if key_id is not None:
            yield from _compare_there(sql, release, key, key_id, normal, hashes)
        for number, state in begun:
            if state == ReleaseState.PUBLISHING:
                yield from _compare_waiting(sql, release, key, number, normal, hashes)
    return Compared(normal.policies, frozenset(number for number, _ in begun))


def _compare_there(
    sql: ReleaseStatements, release: Release, key: str, key_id: int, normal: Normal, hashes: Hashes
) -> Transaction[None]:
    """Compares the rows that are there, and are not deleted by the release, with those that it adds."""
    alike: list[str] = []
    place = (0, "")
    while page := (yield Ask(sql.ids_there, (key_id, *place, _PAGE_ROWS))):
        alike += (row_id for _, row_id in page if normal.of(row_id) in hashes)
        if len(alike) >= _MOST_ALIKE:
            yield from _compare_kept(sql, release, key, normal, alike)
            alike.clear()
        place = page[-1][0], page[-1][1]
    yield from _compare_kept(sql, release, key, normal, alike)


def _compare_kept(
    sql: ReleaseStatements, release: Release, key: str, normal: Normal, alike: Sequence[str]
) -> Transaction[None]:
    """Compares those of some rows that the release does not delete."""
    kept = dict.fromkeys(alike)
    after = ""
    while kept and (page := (yield Ask(sql.deleted_ids, (release.store, release.number, key, after, _PAGE_ROWS)))):
        for (row_id,) in page:
            kept.pop(row_id, None)
        ((after,),) = page[-1:]
    yield from _compare_others(sql, release, key, normal, kept)


def _compare_waiting(
    sql: ReleaseStatements, release: Release, key: str, other: int, normal: Normal, hashes: Hashes
) -> Transaction[None]:
    """Compares the rows that another release is still to add. A row that both add is no duplicate."""
    alike: list[str] = []
    after = ""
    while page := (yield Ask(sql.waiting_ids, (release.store, other, key, after, _PAGE_ROWS))):
        alike += (row_id for (row_id,) in page if normal.of(row_id) in hashes)
        if len(alike) >= _MOST_ALIKE:
            yield from _compare_others(sql, release, key, normal, alike, other)
            alike.clear()
        ((after,),) = page[-1:]
    yield from _compare_others(sql, release, key, normal, alike, other)


def _compare_others(
    sql: ReleaseStatements, release: Release, key: str, normal: Normal, others: Iterable[str], adds: int = 0
) -> Transaction[None]:
    """Looks once more at all rows that the release adds, for those that are like some others."""
    alike: dict[str, str] = {}
    for row_id in others:
        alike.setdefault(normal.of(row_id), row_id)
    after = ""
    while alike and (page := (yield _added(sql, release, key, after))):
        for (row_id,) in page:
            if (other := alike.get(normal.of(row_id), row_id)) != row_id:
                raise normal.refusal(release, key, other, row_id, adds)
        ((after,),) = page[-1:]


def _compare(sql: ReleaseStatements, release: Release, key: str, normal: Normal, wanted: int) -> Transaction[None]:
    """Looks once more for the rows that the release adds with such a hash, of which there are several."""
    alike: dict[str, str] = {}
    after = ""
    while page := (yield _added(sql, release, key, after)):
        for (row_id,) in page:
            found = normal.of(row_id)
            if hash(found) != wanted:
                continue
            if (other := alike.setdefault(found, row_id)) != row_id:
                raise normal.refusal(release, key, other, row_id)
        ((after,),) = page[-1:]


def _added(sql: ReleaseStatements, release: Release, key: str, after: str) -> Ask:
    return Ask(sql.added_ids, (release.store, release.number, key, after, _PAGE_ROWS))
