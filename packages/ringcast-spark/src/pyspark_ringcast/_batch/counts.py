"""What became of the rows of a write, and where it is told: Spark has no place for it."""

from __future__ import annotations

import logging
import sys
from typing import Final

import msgspec.structs
from ringcast_wire import EventLog

_log = EventLog(logging.getLogger(__name__))

_PACKAGE: Final = "pyspark_ringcast"


class Counts(msgspec.Struct, frozen=True):
    """Rows of a job or a batch. ``deleted`` has those that an overwrite removes; ``unchanged`` were right already."""

    written: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, others = self.by_name(), other.by_name()
        return Counts(**{name: mine[name] + others[name] for name in mine})

    def by_name(self) -> dict[str, int]:
        """Count by name."""
        return msgspec.structs.asdict(self)


class Staged(msgspec.Struct, frozen=True):
    """What was staged: the number of the release, ``None`` where nothing differs, and what it has of each key.

    Of ``counts``, ``written`` are rows that the release adds or changes, and ``deleted`` those that it deletes.
    """

    release: int | None
    counts: dict[str, Counts]


def log_committed(place: str, job: str, counts: Counts) -> None:
    """One line; ``place`` is ``store/key``."""
    _show_info()
    _log.info("write.committed", **_facts(place, job, counts))


def log_aborted(place: str, job: str, counts: Counts) -> None:
    """The same for a job that failed: what its tasks had done by then."""
    _show_info()
    _log.info("write.aborted", **_facts(place, job, counts))


def log_staged(place: str, job: str, release: int | None, counts: Counts) -> None:
    """The same for rows that are staged as a release; 0: nothing differs, and there is none."""
    _show_info()
    _log.info("write.staged", release=release or 0, **_facts(place, job, counts))


def _facts(place: str, job: str, counts: Counts) -> dict[str, object]:
    store, _, key = place.partition("/")
    return {"store": store, "key": key, "job": job, **counts.by_name()}


def _show_info() -> None:
    """Spark configures no logging in the processes where a driver commits, and Python drops lines below WARNING."""
    package = logging.getLogger(_PACKAGE)
    if package.level == logging.NOTSET:
        package.setLevel(logging.INFO)
    if not package.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        package.addHandler(handler)
