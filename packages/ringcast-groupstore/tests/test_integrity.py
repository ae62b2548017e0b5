"""The file: older layouts, copies, purges, forks, and what else can lie in its place."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from ringcast_groupstore import GroupStore, InputError, StoreError, StoreFullError, StoreOpenError, _purge

Clock = Any  # of conftest.py

KV = "CREATE TABLE kv (grp TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (grp, key))"
KV_EXPIRES = KV.replace("value TEXT NOT NULL,", "value TEXT NOT NULL, expires_at INTEGER,")
ENTRIES = """
    CREATE TABLE entries (group_name TEXT NOT NULL, entry_key TEXT NOT NULL, entry_value TEXT NOT NULL,
    PRIMARY KEY (group_name, entry_key))
    """
ENTRIES_EXPIRES = ENTRIES.replace("entry_value TEXT NOT NULL,", "entry_value TEXT NOT NULL, expires_at INTEGER,")


def write(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([KV, "INSERT INTO kv VALUES ('g', 'k', 'v'), ('g', 'l', 'w'), ('h', 'k', '')"], ["g k v", "g l w", "h k "]),
        ([KV_EXPIRES, "INSERT INTO kv VALUES ('g', 'k', 'v', NULL), ('g', 'old', 'w', 1)"], ["g k v"]),
        ([ENTRIES, "INSERT INTO entries VALUES ('g', 'k', 'v')"], ["g k v"]),
        ([ENTRIES_EXPIRES, "INSERT INTO entries VALUES ('g', 'k', 'v', NULL), ('g', 'old', 'w', 1)"], ["g k v"]),
        (
            [
                ENTRIES,
                "INSERT INTO entries VALUES ('g', 'k', 'newer')",
                KV,
                "INSERT INTO kv VALUES ('g', 'k', 'older'), ('a', 'k', 'v')",
            ],
            ["a k v", "g k newer"],
        ),
        ([KV], []),
    ],
)
def test_older_layouts_are_converted(path: Path, clock: Clock, statements: list[str], expected: list[str]) -> None:
    write(path, *statements)
    with GroupStore(path, clock=clock, purge_interval_s=None) as store:
        assert [f"{entry.group} {entry.key} {entry.value!s}" for entry in store.entries()] == expected
        assert store.check() == []
        revision = store.revision
        assert sorted(entry.revision for entry in store.entries())[-1:] <= [revision]
        assert store.changes(revision) == []
        assert store.set("g", "k", "next", ttl_ms=5) == revision + 1
    with GroupStore(path, clock=clock) as store:
        assert store.get("g", "k") == "next"
        assert store.revision == revision + 1


def test_an_expiry_outlives_the_conversion(path: Path, clock: Clock) -> None:
    write(path, KV_EXPIRES, f"INSERT INTO kv VALUES ('g', 'k', 'v', {clock.now_ms + 5})")
    with GroupStore(path, clock=clock) as store:
        assert store.get("g", "k") == "v"
        clock.advance(5)
        assert store.purge_expired() == 1


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["CREATE TABLE notes (text TEXT)"], "is no store: it has a table 'notes'"),
        ([KV, "CREATE TABLE notes (text TEXT)"], "is no store: it has a table 'notes'"),
        (["CREATE TABLE kv (grp TEXT, something TEXT)"], "is no store: it has a table 'kv'"),
        (
            [KV.replace(" NOT NULL", ""), "INSERT INTO kv VALUES ('g', 'k', 'v'), ('g', NULL, 'v')"],
            "can't be converted: 1 rows of 'kv' are no text keys with values",
        ),
        (
            ["PRAGMA application_id = 1380143956", "PRAGMA user_version = 3"],
            "has layout version 3: this release knows 2",
        ),
    ],
)
def test_what_is_no_store_is_left_alone(path: Path, statements: list[str], said: str) -> None:
    write(path, *statements)

    def schema() -> list[Any]:
        connection = sqlite3.connect(path)
        found = connection.execute("SELECT name, sql FROM sqlite_schema").fetchall()
        connection.close()
        return found

    before = schema()
    for on_damage in ("raise", "quarantine"):
        with pytest.raises(StoreOpenError, match=said):
            GroupStore(path, on_damage=on_damage)
    assert schema() == before


def test_files_that_can_not_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreOpenError, match="its directory does not exist"):
        GroupStore(tmp_path / "no" / "a.db")
    with pytest.raises(StoreOpenError, match="can't be opened"):
        GroupStore(tmp_path)
    (tmp_path / "text.db").write_text("this is no database, whatever its name says" * 100)
    with pytest.raises(StoreOpenError, match="is not an SQLite database"):
        GroupStore(tmp_path / "text.db")
    assert (tmp_path / "text.db").read_text().startswith("this is no database")


def test_a_backup_is_a_store_of_that_moment(store: GroupStore, tmp_path: Path, clock: Clock) -> None:
    store.set_many("g", {f"k{number}": "v" * 50 for number in range(5_000)})
    target, stop, backups = tmp_path / "copy.db", threading.Event(), 0

    def write_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.set_many("pair", {"a": str(number), "b": str(number)})

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        for backups in range(1, 6):
            store.backup(target.with_suffix(f".{backups}"))
    finally:
        stop.set()
        writer.join()
    for number in range(1, backups + 1):
        with GroupStore(target.with_suffix(f".{number}"), clock=clock, check="full") as copy:
            assert copy.check() == []
            assert copy.count("g") == 5_000
            pair = copy.get_all("pair")
            assert pair.get("a") == pair.get("b"), "never half of a transaction"
            assert copy.set("g", "new", "v") == copy.revision
    assert not list(tmp_path.glob("*.partial-*"))


def test_a_backup_overwrites_nothing(store: GroupStore, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        store.backup(target)
    assert target.read_text() == "precious"
    with pytest.raises(StoreError, match=r"can't be opened|can't be written"):
        store.backup(tmp_path / "none" / "copy.db")


def test_the_background_purge(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    purged = threading.Event()
    purge = _purge.drop_expired

    def watched(*arguments: Any) -> int:
        dropped = purge(*arguments)
        if dropped:
            purged.set()
        return dropped

    monkeypatch.setattr(_purge, "drop_expired", watched)
    with GroupStore(path, clock=clock, purge_interval_s=0.005) as store:
        store.set("g", "k", "v", ttl_ms=1)
        clock.advance(1)
        assert purged.wait(10)
        assert store._source.rows("SELECT count(*) FROM entries", ()) == [(0,)]
    assert not [thread for thread in threading.enumerate() if thread.name == "ringcast-groupstore-purge"]


def test_the_background_purge_goes_on_after_an_error(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    second = threading.Event()

    def fails(*_: object) -> int:
        tries.append(1)
        if len(tries) == 2:
            second.set()
        raise StoreFullError("no room")

    monkeypatch.setattr(_purge, "drop_expired", fails)

    with (
        caplog.at_level(logging.WARNING, logger="ringcast_groupstore"),
        GroupStore(path, purge_interval_s=0.005),
    ):
        assert second.wait(10)
    assert 'event=expired_keys.purge_failed retry_s=0.005 error="no room"' in caplog.text


def test_a_store_that_is_forgotten_ends_its_thread(path: Path) -> None:
    store = GroupStore(path, purge_interval_s=0.005)
    thread = store._purger._thread
    assert thread is not None
    del store
    thread.join(10)
    assert not thread.is_alive()


def test_a_forked_child_can_not_use_the_store(store: GroupStore) -> None:
    store.set("g", "k", "v")
    child = os.fork()
    if child == 0:  # no test framework here: only the exit code counts
        code = 1
        try:
            store.get("g", "k")
        except StoreError as error:
            code = 0 if "is closed" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    store.set("g", "k", "w")
    assert store.get("g", "k") == "w"
    assert store.check() == []
