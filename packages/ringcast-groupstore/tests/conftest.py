"""A store on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ringcast_groupstore import GroupStore


class Clock:
    """Milliseconds since 1970, that pass when told to."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, milliseconds: int) -> None:
        """Lets time pass."""
        self.now_ms += milliseconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[GroupStore]:
    """Purged only when the test says so."""
    with GroupStore(path, clock=clock, durable=False, purge_interval_s=None) as store:
        yield store
