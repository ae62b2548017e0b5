"""Releases as the load has asked for them, and as the system of record has them, read past the service."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.integration.faults.record import Fetch

_RELEASES: Final = """
SELECT number, reason, state, work, row_count, published, undone, skipped, rollout FROM releases ORDER BY number
"""
_ROWS: Final = """
SELECT number, place, config_key, partition, row_id, value, base, old_value, outcome, version, undo_version
FROM release_rows ORDER BY number, place
"""


class AskedRow(NamedTuple):
    """A change as it was staged. ``value`` is ``None`` for a delete, and otherwise no other write has it."""

    key: str
    row_id: str
    value: str | None
    base: int
    """The version of the row that it was made for, 0 where there was none."""
    old: str | None
    """What that held."""


@dataclass(slots=True)
class AskedRelease:
    """A release as the load sees it: each of its calls is made until it is answered."""

    name: str
    """Why it was staged: no other release has the same."""
    rows: Sequence[AskedRow]
    number: int = 0
    """What the service said when all of it was staged."""
    waves: Sequence[int] = ()
    published: bool = False
    """That it would be was acknowledged; so with ``undone`` and ``dropped``."""
    undone: bool = False
    dropped: bool = False
    taken_back: bool = False
    """The database has gone back since it was begun, so nobody knows what it knows of it."""


class FoundRow(NamedTuple):
    """A row of a release in the record."""

    place: int
    key: str
    partition: int
    row_id: str
    value: str | None
    base: int
    old: str | None
    outcome: str
    version: int = 0
    undo_version: int = 0


@dataclass(frozen=True, slots=True)
class FoundRelease:
    """A release in the record. ``failure``: why its gate has failed; empty: none has."""

    number: int
    name: str
    state: str
    work: str
    row_count: int
    published: int
    undone: int
    skipped: int
    failure: str = ""
    rows: Sequence[FoundRow] = field(default=())

    @property
    def part(self) -> float:
        """How much of its rows is published, or undone, while it is under way; 1: all, but it has not ended."""
        match self.state:
            case "publishing":
                return (self.published + self.skipped) / self.row_count
            case "undoing" if self.published:
                return self.undone / self.published
        return 0.0


async def releases_of(fetch: Fetch, *, with_rows: bool = False) -> list[FoundRelease]:
    """All releases of a database that holds one store."""
    rows: defaultdict[int, list[FoundRow]] = defaultdict(list)
    if with_rows:
        for number, *columns in await fetch(_ROWS):
            rows[number].append(FoundRow(*columns))
    return [_release(record, rows[record[0]]) for record in await fetch(_RELEASES)]


def _release(record: Sequence[Any], rows: Sequence[FoundRow]) -> FoundRelease:
    number, name, state, work, row_count, published, undone, skipped, rollout = record
    failure = json.loads(rollout).get("failure", "") if rollout else ""
    return FoundRelease(number, name, state, work, row_count, published, undone, skipped, failure, rows)
