"""Reads of a partition as it was at an earlier revision, in either database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ringcast_wire import (
    ConditionFailedError,
    HeadsReply,
    InvalidInputError,
    ReleaseState,
    RevisionGoneError,
    limits,
    names,
)

from ringcast_config_service.repository import mapping
from ringcast_config_service.repository.answers import PartitionAnswer, answer_bytes
from ringcast_config_service.repository.base import LargeAnswerError
from ringcast_config_service.repository.release_records import REMOVE, Release

_UNPUBLISHED: Final = {
    ReleaseState.STAGING,
    ReleaseState.STAGED,
    ReleaseState.PUBLISHING,
    ReleaseState.DROPPED,
    ReleaseState.EXPIRED,
}

_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""


class Place(NamedTuple):
    """What is asked for: a partition, and a revision of a history; ``as_of`` is ``None`` for what there is now."""

    store: str
    key: str
    partition: int
    history: str
    as_of: int | None

    def revision(self, head: int, current: str) -> int:
        """The revision that is to be read, where the partition is at ``head`` and the history ``current``.

        Raises:
            InvalidInputError: it is still to come.
            RevisionGoneError: it is of another history.
        """
        if self.as_of is None:
            return head
        if self.history != current:
            raise RevisionGoneError(
                f"{self} is of another history: the database was restored, or the key made again, since it was noted"
            )
        if self.as_of > head:
            raise InvalidInputError(f"{self} is still to come: it is at revision {head}", field="as_of")
        return self.as_of

    def check_kept(self, kept: int, head: int) -> None:
        """Looks whether every revision since is there, of which there are ``kept``; raises ``RevisionGoneError``."""
        if self.as_of and kept != head - self.as_of:
            raise self.gone()

    def check_values(self, records: Iterable[mapping.Record]) -> None:
        """Looks at records of the statement ``READ_AS_OF``; raises ``RevisionGoneError`` where one has no value."""
        if any(value is None for _, value, *_ in records):
            raise self.gone()

    def gone(self) -> RevisionGoneError:
        """What is needed to tell it is removed."""
        return RevisionGoneError(f"{self} can't be read any more: what was replaced since is kept for a time only")

    def __str__(self) -> str:
        return f"revision {self.as_of} of partition {self.partition} of {self.store}/{self.key}"


class Reading(NamedTuple):
    """How a partition is read: ``upto`` a revision, ``whole`` or what changed after ``after``."""

    place: Place
    key_id: int
    history: str
    head: int
    upto: int
    whole: bool
    after: int
    live_rows: int
    live_bytes: int

    @classmethod
    def of(cls, place: Place, found: mapping.Record | None, since: int | None) -> Reading:
        """From what the statement ``LOCATE_PARTITION`` found.

        Raises:
            RingcastError: there is no such place, or it is not as it is asked for.
        """
        count, key_id, current, head, floor, rows, size = mapping.located(found, place.store, place.key)
        names.check_partition(place.partition, count)
        upto = place.revision(head or 0, current)
        after = since if place.history == current else None
        whole = mapping.wants_whole(after, upto, floor or 0, rows or 0)
        return cls(place, key_id, current, head or 0, upto, whole, 0 if whole else after or 0, rows or 0, size or 0)

    @property
    def is_earlier(self) -> bool:
        """Whether it is another revision than the partition is at."""
        return self.upto != self.head

    @property
    def params(self) -> tuple[int, ...]:
        """For ``READ_WHOLE`` or ``READ_SINCE``."""
        where = self.key_id, self.place.partition
        return where if self.whole else (*where, self.after)

    @property
    def kept_words(self) -> tuple[int, ...]:
        """For ``KEPT_REVISIONS``."""
        return self.key_id, self.place.partition, self.upto

    def earlier_words(self, kept: int, horizon_ms: int) -> tuple[int | bool, ...]:
        """For ``READ_AS_OF``, with what ``KEPT_REVISIONS`` found; raises ``RevisionGoneError``."""
        self.place.check_kept(kept, self.head)
        return self.key_id, self.place.partition, self.upto, horizon_ms, self.after, not self.whole

    @property
    def rows(self) -> int:
        """At least as many rows as the answer has."""
        replaced = self.head - self.upto
        return self.live_rows + replaced if self.whole else self.upto - self.after

    @property
    def answer_bytes(self) -> int:
        """About how many bytes the answer has.

        Of an earlier revision nobody knows how long its texts are, but no partition has more than the limit. Of what
        changed they are taken to be as long as those of other rows.
        """
        if self.is_earlier:
            most = (self.head - self.upto) * limits.MAX_ROW_BYTES
            return answer_bytes(self.rows, min(limits.MAX_PARTITION_BYTES, self.live_bytes + most))
        return answer_bytes(self.rows, self.live_bytes * min(self.rows, self.live_rows) // max(1, self.live_rows))

    def check_room(self, most_bytes: int) -> None:
        """Raises ``LargeAnswerError`` where the answer is larger than there is room for."""
        if (size := self.answer_bytes) > most_bytes:
            raise LargeAnswerError(size)

    def answer(self, version: int) -> EarlierAnswer | PartitionAnswer:
        """The answer, in that wire version, without rows."""
        facts = self.history, self.place.partition, self.upto
        if self.is_earlier:
            return EarlierAnswer(self.place, *facts, whole=self.whole, rows=self.rows, version=version)
        return PartitionAnswer(*facts, whole=self.whole, rows=self.rows, version=version)


class EarlierAnswer(PartitionAnswer):
    """Rows of one partition at an earlier revision."""

    def __init__(
        self, place: Place, history: str, partition: int, revision: int, *, whole: bool, rows: int, version: int
    ) -> None:
        super().__init__(history, partition, revision, whole=whole, rows=rows, version=version)
        self._place = place

    def add(self, page: Sequence[mapping.Record]) -> None:
        """Raises ``RevisionGoneError`` where a row can't be told any more."""
        self._place.check_values(page)
        super().add(page)


def check_time(at_ms: int, now_ms: int) -> None:
    """Raises ``InvalidInputError`` for a moment (Unix time) that is none, or still to come by the database's clock."""
    if not 0 <= at_ms <= _LAST_MS:
        raise InvalidInputError(f"time_ms {at_ms} is no time: 0 to {_LAST_MS} is allowed", field="time_ms")
    if at_ms > now_ms:
        raise InvalidInputError(
            f"time {mapping.utc(at_ms)} is still to come: the database's clock says {mapping.utc(now_ms)}",
            field="time_ms",
        )


def check_moment(at_ms: int, horizon_ms: int, store: str, key: str) -> None:
    """Raises ``RevisionGoneError`` where revisions that were there at a moment (Unix time) may be removed."""
    if at_ms < horizon_ms:
        raise RevisionGoneError(
            f"what {store}/{key} had at {mapping.utc(at_ms)} can't be read any more: its history goes back to "
            f"{mapping.utc(horizon_ms)}"
        )


def check_release(release: Release, key: str) -> None:
    """Refuses a release of which nobody can say what a key had when it was published.

    Raises:
        ConditionFailedError: not all of it is published, or nothing.
        RevisionGoneError: its rows are removed.
    """
    why = _unreadable(release, key)
    if release.state in _UNPUBLISHED:
        raise ConditionFailedError(f"{why}: the release is {release.state}", field="release")
    if release.work == REMOVE or not release.kept:
        raise RevisionGoneError(f"{why} any more: the rows of a release are kept for a time only")
    if not release.published:
        raise ConditionFailedError(f"{why}: no row of it was published", field="release")


def check_release_moment(release: Release, key: str, at_ms: int | None, horizon_ms: int) -> None:
    """Raises ``RevisionGoneError`` where revisions that were there when a release was published may be removed.

    ``at_ms``: when that was, or earlier where the last revisions of it are removed; ``None``: all are.
    """
    if at_ms is None or at_ms < horizon_ms:
        raise RevisionGoneError(
            f"{_unreadable(release, key)} any more: its history goes back to {mapping.utc(horizon_ms)}"
        )


def _unreadable(release: Release, key: str) -> str:
    return f"what {release.store}/{key} had when release {release.number} was published can't be read"


def release_heads(
    now: HeadsReply, published_at: Iterable[mapping.Record], last: Iterable[mapping.Record]
) -> HeadsReply:
    """The heads with those of the moment ``published_at`` (``REVISIONS_AT``), and at least what the release has written
    itself (``RELEASE_HEADS``): another instance's clock may have been behind."""
    found = earlier_heads(now, published_at)
    for partition, revision in last:
        found.heads[partition] = max(found.heads[partition], revision)
    return found


def earlier_heads(now: HeadsReply, found: Iterable[mapping.Record]) -> HeadsReply:
    """The heads with those of the statement ``REVISIONS_AT``. How many rows there were is not known."""
    heads = list(now.heads)
    for partition, revision in found:
        heads[partition] = revision
    return HeadsReply(now.wire_version, heads, now.history)
