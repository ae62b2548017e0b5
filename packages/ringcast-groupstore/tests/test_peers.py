"""What the README says of others, held against what is installed."""

from __future__ import annotations

import os
import shelve
import sqlite3
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import diskcache
import pytest
import sqlitedict

LACKING = ("watch", "on_change", "changes", "compare_and_set", "namespace", "snapshot", "backup")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Any]:
    with diskcache.Cache(str(tmp_path / "cache")) as cache:
        yield cache


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Any]:
    with sqlitedict.SqliteDict(str(tmp_path / "dict.db")) as records:
        yield records


class Run:
    """Calls a function of the reader's process when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.getpid, ()


def test_the_versions_are_those_of_the_readme() -> None:
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    for name in ("diskcache", "sqlitedict"):
        assert f"{name} {'.'.join(version(name).split('.')[:2])}" in readme


def test_what_the_others_have_not(cache: Any, records: Any, tmp_path: Path) -> None:
    with shelve.open(str(tmp_path / "shelf")) as shelf:
        for other in (cache, records, shelf):
            assert [name for name in LACKING if hasattr(other, name)] == []
        assert not hasattr(records, "transact")
        assert not hasattr(records, "rollback")
        assert not hasattr(shelf, "commit")


def test_diskcache(cache: Any) -> None:
    assert all(hasattr(cache, name) for name in ("add", "check", "expire", "memoize", "push", "transact"))
    settings = {name: getattr(cache, name) for name in ("sqlite_journal_mode", "sqlite_synchronous")}
    assert settings == {"sqlite_journal_mode": "wal", "sqlite_synchronous": 1}, "NORMAL: no sync at a commit"
    cache.set("k", Run(), tag="one")
    assert cache.get("k") == os.getpid(), "what is read was run"

    def fails() -> None:
        with cache.transact():
            cache.set("rolled back", 1)
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert "rolled back" not in cache


def test_diskcache_on_a_damaged_file(tmp_path: Path) -> None:
    with diskcache.Cache(str(tmp_path)) as cache:
        for number in range(2_000):
            cache[number] = "v" * 50
    path = tmp_path / "cache.db"
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        diskcache.Cache(str(tmp_path))


def test_sqlitedict(records: Any) -> None:
    assert records.journal_mode == "DELETE"
    records["k"] = Run()
    records.commit()
    assert records["k"] == os.getpid(), "what is read was run"
    assert isinstance(records.conn, sqlitedict.SqliteMultithread), "one thread for all"


def test_shelve(tmp_path: Path) -> None:
    with shelve.open(str(tmp_path / "shelf")) as shelf:
        shelf["k"] = Run()
        assert shelf["k"] == os.getpid(), "what is read was run"
