"""What is sound is opened and never quarantined, whatever somebody has added to it, and whatever the limits are now."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ringcast_groupstore import GroupStore, InputError, Limits, StoreCorruptError, StoreOpenError, _schema
from ringcast_groupstore._checksum import checksum
from ringcast_groupstore._log import append_start

KV = "CREATE TABLE kv (grp TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (grp, key))"
ENTRIES = """
    CREATE TABLE entries (group_name TEXT NOT NULL, entry_key TEXT NOT NULL, entry_value TEXT NOT NULL,
    PRIMARY KEY (group_name, entry_key))
    """
MIB = 1024 * 1024


def write(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def names(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    connection.close()
    return found


@pytest.mark.parametrize(
    ("statement", "added"),
    [
        ("ANALYZE", "sqlite_stat1"),
        ("CREATE INDEX mine ON entries (revision)", "mine"),
        ("CREATE VIEW mine AS SELECT * FROM entries", "mine"),
        ("CREATE TABLE mine (text TEXT)", "mine"),
    ],
)
def test_what_others_add_is_no_damage(path: Path, statement: str, added: str) -> None:
    with GroupStore(path) as store:
        store.set_many("g", {f"{number:04d}": "v" * (number % 600) for number in range(2_000)})
        store.set("t", "k", "v", ttl_ms=10**9)
        expected = list(store.entries())
    write(path, statement)
    with GroupStore(path, check="full", on_damage="quarantine") as store:
        assert store.quarantined is None
        assert list(store.entries()) == expected
        assert store.check() == []
        store.set("g", "new", "v")
    assert added in names(path)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE entries ADD COLUMN note TEXT",
        "DROP INDEX entries_by_expiry",
        "DROP TRIGGER large_value_removed",
        "ALTER TABLE changes RENAME TO others",
    ],
)
def test_a_store_whose_own_tables_were_changed_is_left_alone(path: Path, statement: str) -> None:
    with GroupStore(path) as store:
        store.set("g", "k", "v")
    write(path, statement)
    before = path.read_bytes()
    for on_damage in ("raise", "quarantine"):
        with pytest.raises(StoreOpenError, match="is no store that this release can use: its '"):
            GroupStore(path, on_damage=on_damage)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.damaged-*"))


def test_what_lower_limits_forbid_is_no_damage_and_can_be_read_and_removed(path: Path) -> None:
    group, key, value = "g" * 600, "k" * 600, "v" * (5 * MIB)
    with GroupStore(path, limits=Limits(max_group_bytes=600, max_key_bytes=600, max_value_bytes=8 * MIB)) as store:
        store.set_many(group, {key: value, "small": "1"})
        store.set("g", key, "2")
    with GroupStore(path, check="full", on_damage="quarantine") as store:
        assert (store.quarantined, store.check()) == (None, [])
        assert store.get(group, key) == value
        assert store.get_many(group, [key, "small"]) == {key: value, "small": "1"}
        with pytest.raises(InputError, match="value has 5242880 bytes: at most 4194304 are allowed"):
            store.set("g", "k", value)
        assert store.delete("g", key)
        assert store.delete_many(group, [key]) == 1
        assert store.delete_group(group) == 1
        assert store.count_all() == 0


# --- Older layouts ----------------------------------------------------------------------------------------------------


def test_a_large_value_is_converted_with_what_lies_around_it(path: Path) -> None:
    value = "x" * (5 * MIB)
    write(path, KV, f"INSERT INTO kv VALUES ('g', 'big', '{value}'), ('g', 'small', 'v')")
    write(path, "CREATE INDEX entries_by_expiry ON kv (value)", "CREATE VIEW v AS SELECT 1 FROM kv", "ANALYZE")
    for _ in range(2):
        with GroupStore(path, check="full", on_damage="quarantine") as store:
            assert (store.quarantined, store.check()) == (None, [])
            assert store.get_all("g") == {"big": value, "small": "v"}


def test_a_view_goes_on_over_a_conversion(path: Path) -> None:
    write(path, ENTRIES, "INSERT INTO entries VALUES ('g', 'k', 'v')")
    write(path, "CREATE VIEW mine AS SELECT group_name, entry_key FROM entries")
    with GroupStore(path) as store:
        store.set("g", "l", "w")
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM mine").fetchall() == [("g", "k"), ("g", "l")]
    connection.close()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("('g', '', 'v')", "1 rows of 'kv' have an empty group or key"),
        ("('', 'k', 'v')", "1 rows of 'kv' have an empty group or key"),
        (f"('{'g' * 513}', 'k', 'v')", "1 rows of 'kv' have a group of over 512 bytes or a key of over 512"),
        (f"('g', '{'ä' * 257}', 'v')", "1 rows of 'kv' have a group of over 512 bytes or a key of over 512"),
        ("('g', 'k', CAST(X'ff41' AS TEXT))", "1 rows of 'kv' have text that is no UTF-8"),
        ("('g', CAST(X'ff41' AS TEXT), 'v')", "1 rows of 'kv' have text that is no UTF-8"),
    ],
)
def test_rows_that_no_store_can_keep_are_refused_and_left(path: Path, row: str, said: str) -> None:
    write(path, KV, "INSERT INTO kv VALUES ('g', 'sound', 'v')", f"INSERT INTO kv VALUES {row}")
    for on_damage in ("raise", "quarantine"):
        with pytest.raises(StoreOpenError, match=f"can't be converted: {said}"):
            GroupStore(path, on_damage=on_damage)
    assert names(path) >= {"kv"}
    assert not names(path) & {"entries", "changes"}
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM kv").fetchone() == (2,)
    connection.close()


def test_a_store_of_the_first_version_is_converted_with_its_revisions_and_log(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("""
        CREATE TABLE entries (group_name TEXT NOT NULL, entry_key TEXT NOT NULL, entry_value NOT NULL,
        expires_at INTEGER, revision INTEGER NOT NULL, checksum INTEGER NOT NULL,
        PRIMARY KEY (group_name, entry_key)) WITHOUT ROWID
        """)
    connection.execute("CREATE INDEX entries_by_expiry ON entries (expires_at) WHERE expires_at IS NOT NULL")
    connection.execute(_schema._CHANGES)
    values: list[str | bytes] = ["small", "large" * 1_000, b"\x00" * 5_000]
    for revision, value in enumerate(values, 1):
        row = ("g", f"k{revision}", value, None, revision)
        connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (*row, checksum(*row)))
    append_start(connection.cursor(), 7)
    for added in ("INDEX index_of_others ON entries (revision)", "TABLE table_of_others (text TEXT)"):
        connection.execute(f"CREATE {added}")
    connection.execute("CREATE VIEW view_of_others AS SELECT entry_key FROM entries")
    connection.execute("PRAGMA application_id = 1380143956")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    for revision in (7, 8):
        with GroupStore(path, check="full") as store:
            assert [entry.value for entry in store.entries("g")][:3] == values
            assert [entry.revision for entry in store.entries("g")][:3] == [1, 2, 3]
            assert (store.revision, store.check()) == (revision, [])
            store.set("h", "k", "v")
    assert {name for name in names(path) if name.endswith("_of_others")} == {"table_of_others", "view_of_others"}


# --- What is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [{"on_damage": "rasie"}, {"check": "ful"}, {"check": None}])
def test_a_choice_that_there_is_not_is_refused(path: Path, words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not known: "):
        GroupStore(path, **words)
    assert not path.exists()


def test_a_text_file_is_no_store_with_a_damaged_first_page(path: Path) -> None:
    path.write_text("these are notes, and no database" * 100)
    with pytest.raises(StoreOpenError, match="is not an SQLite database"):
        GroupStore(path, on_damage="quarantine")
    assert path.read_text().startswith("these are notes")


# --- What another process has open ------------------------------------------------------------------------------------

SET_ASIDE = """
import sys
from ringcast_groupstore import GroupStore, StoreCorruptError
try:
    with GroupStore(sys.argv[1], check="full", on_damage="quarantine", busy_timeout_s=0.2) as store:
        print("quarantined", store.quarantined is not None, list(store.keys("g")))
except StoreCorruptError as error:
    print(error)
"""


def test_a_file_that_another_process_has_open_is_not_renamed_under_it(path: Path) -> None:
    """It would go on writing to a file that nobody opens again."""

    def other() -> str:
        command = [sys.executable, "-c", SET_ASIDE, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    with GroupStore(path) as store:
        store.set("g", "bent", "the value of one key")
        store.set("g", "sound", "v")
    data = bytearray(path.read_bytes())
    data[data.index(b"the value of one")] ^= 1
    path.write_bytes(data)
    with GroupStore(path) as store:
        said = other()
        assert "1 keys do not fit their checksums" in said
        assert "it is not quarantined, since another process has it open" in said
        store.set("g", "later", "v")
        with pytest.raises(StoreCorruptError, match="it is not quarantined"):
            GroupStore(path, check="full", on_damage="quarantine", busy_timeout_s=0)
    with GroupStore(path) as store:
        assert list(store.keys("g")) == ["bent", "later", "sound"]
    assert other() == "quarantined True ['later', 'sound']\n"
