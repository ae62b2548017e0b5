"""The files of a database: what lies beside it, and where it goes when it can't be used."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

COMPANIONS: Final = ("", "-journal", "-wal", "-shm")
"""The ends of the names of a database and of what may lie beside it; first the database."""
_MICROSECOND: Final = timedelta(microseconds=1)


def quarantine(path: Path, label: str, replacement: Path | None = None) -> Path:
    """Renames a closed database to ``<name>.<label>-<time>``, with what lies beside it; returns its new name.

    ``replacement``: a database without companions, which gets the old name. Whenever the process dies, either the old
    database or the replacement has the old name, and all of the old one has a name. Waits for the disk.

    Raises:
        OSError: a file can't be renamed.
    """
    moment = datetime.now(UTC)
    while any(_companion(_quarantine_name(path, label, moment), end).exists() for end in COMPANIONS):
        moment += _MICROSECOND
    target = _quarantine_name(path, label, moment)
    for end in COMPANIONS:
        if _companion(path, end).exists():
            _link(_companion(path, end), _companion(target, end))
    sync_to_disk(path.parent)
    # The log before the database: one that has lost it is merely old, one that meets another's is damaged by it.
    for end in COMPANIONS[1:]:
        _companion(path, end).unlink(missing_ok=True)
    sync_to_disk(path.parent)
    if replacement is None:
        path.unlink(missing_ok=True)
    else:
        replacement.replace(path)
    sync_to_disk(path.parent)
    return target


def quarantined(path: Path, label: str) -> list[Path]:
    """The databases that :func:`quarantine` has renamed, the oldest first."""
    found = path.parent.glob(f"{path.name}.{label}-*")
    return sorted(each for each in found if not each.name.endswith(COMPANIONS[1:]))


def remove_database(path: Path) -> None:
    """Deletes a closed database and what lies beside it; one that is not there is no error."""
    for end in reversed(COMPANIONS):
        _companion(path, end).unlink(missing_ok=True)


def try_lock(descriptor: int) -> bool:
    """Locks an open file for this process alone, without waiting; false where another has a lock on it."""
    import fcntl  # not on Windows, where the rest of this module works

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quarantine_name(path: Path, label: str, moment: datetime) -> Path:
    return path.with_name(f"{path.name}.{label}-{moment:%Y%m%dT%H%M%S.%fZ}")  # sorts by age


def _companion(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _link(source: Path, target: Path) -> None:
    """Gives a file a second name; where the file system has no such thing, a copy has it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_to_disk(target)
