"""Damage to the file: it is noticed, reported, and the file is quarantined and never built over."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ringcast_groupstore import GroupStore, RevisionGapError, StoreCorruptError, StoreError, StoreOpenError
from ringcast_groupstore._log import _record_checksum


def write(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def damage(path: Path) -> None:
    """Random bytes over all but the first page."""
    data = bytearray(path.read_bytes())
    assert len(data) > 16 * 4096
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


@pytest.fixture
def damaged(path: Path) -> Path:
    """A store that was sound once."""
    with GroupStore(path) as store:
        store.set_many("g", {f"k{number}": "v" * 50 for number in range(5_000)})
    damage(path)
    return path


@pytest.mark.parametrize("check", ["quick", "full"])
def test_a_damaged_file_is_reported(damaged: Path, check: Any) -> None:
    before = damaged.read_bytes()
    with pytest.raises(StoreCorruptError, match="is damaged"):
        GroupStore(damaged, check=check)
    assert damaged.read_bytes() == before, "it is left as it was"


def test_a_damaged_file_is_set_aside(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = damaged.read_bytes()
    with (
        caplog.at_level(logging.WARNING, logger="ringcast_groupstore"),
        GroupStore(damaged, check="quick", on_damage="quarantine") as store,
    ):
        assert store.count_all() == 0
        store.set("g", "k", "v")
        aside = store.quarantined
    assert aside is not None
    assert aside.read_bytes() == before, "nothing of it is lost"
    assert aside.name.startswith("store.db.damaged-")
    assert f"event=group_store.quarantined path={aside} kept=0 error=" in caplog.text
    assert "is damaged" in caplog.text
    damage_again(damaged)
    with GroupStore(damaged, check="quick", on_damage="quarantine") as store:
        assert store.quarantined not in (None, aside), "each has a name of its own"
    with GroupStore(damaged, check="full", on_damage="quarantine") as store:
        assert store.quarantined is None


def test_a_damaged_first_page(damaged: Path) -> None:
    damaged.write_bytes(bytes(4096) + damaged.read_bytes()[4096:])
    with pytest.raises(StoreOpenError, match="is not an SQLite database"):
        GroupStore(damaged)
    with GroupStore(damaged, on_damage="quarantine") as store:
        assert store.quarantined is not None
        assert store.set("g", "k", "v") == store.revision


def test_of_many_processes_one_sets_the_file_aside(damaged: Path) -> None:
    script = """
import sys
from ringcast_groupstore import GroupStore
print("ready", flush=True)
sys.stdin.readline()
with GroupStore(sys.argv[1], check="quick", on_damage="quarantine", busy_timeout_s=30) as store:
    store.set("g", sys.argv[2], "v")
    print(store.quarantined is not None)
    sys.stdin.readline()
"""
    pipe = subprocess.PIPE
    others = [
        subprocess.Popen([sys.executable, "-c", script, str(damaged), str(n)], stdin=pipe, stdout=pipe, text=True)
        for n in range(4)
    ]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
    said = [other.communicate("go\nend\n", timeout=60)[0] for other in others]
    assert [other.returncode for other in others] == [0] * 4
    assert sorted(said) == ["False\n"] * 3 + ["True\n"]
    with GroupStore(damaged, check="full") as store:
        assert list(store.keys("g")) == ["0", "1", "2", "3"]


def test_bent_bytes_are_never_handed_out(path: Path) -> None:
    """Wherever a byte of the file changes: the whole content is right, or the damage is told."""
    with GroupStore(path, durable=False) as store:
        for number in range(60):
            value: str | bytes = f"value {number}" * (number % 40) if number % 3 else bytes(range(number))
            store.set(f"g{number % 7}", f"key {number}", value, ttl_ms=10**9 if number % 5 == 0 else None)
        expected, events = list(store.entries()), store.changes(0)
    sound = path.read_bytes()
    places, told = random.Random(1), 0
    found_once = [(3514, 2), (13596, 2), (16331, 0)]  # in the schema, a type, a revision: what no checksum covers
    for at, bit in found_once + [(places.randrange(100, len(sound)), places.randrange(8)) for _ in range(250)]:
        data = bytearray(sound)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            with GroupStore(path, check="full", purge_interval_s=None) as store:
                assert (list(store.entries()), store.changes(0)) == (expected, events), at
        except StoreError:
            told += 1
    assert told > 50


def damage_again(path: Path) -> None:
    with GroupStore(path) as store:
        store.set_many("g", {f"k{number}": "v" * 50 for number in range(5_000)})
    damage(path)


def test_damage_that_is_met_later_stops_the_writing(damaged: Path) -> None:
    with GroupStore(damaged, purge_interval_s=None) as store:
        with pytest.raises(StoreCorruptError, match="is damaged"):
            store.get_all("g")
        with pytest.raises(StoreCorruptError, match=r"takes no more writes: .* is damaged"):
            store.set("g", "k", "v")
        assert store.check() != []
    with GroupStore(damaged, check="quick", on_damage="quarantine") as store:
        assert store.quarantined is not None


def test_a_damaged_log_beside_the_file(path: Path) -> None:
    """SQLite's own checksums end the log where it is damaged: what was written before is there."""
    store = GroupStore(path)
    store.set("g", "a", "1")
    store._engine.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.set("g", "b", "2")
    log = path.with_name(path.name + "-wal").read_bytes()
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copy.with_name("copy.db-wal").write_bytes(log[:-100] + os.urandom(100))
    store.close()
    with GroupStore(copy, check="full") as found:
        assert found.get_all("g") == {"a": "1"}
        assert found.check() == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE entries SET revision = 99 WHERE entry_key = 'a'", "1 keys have a revision that is not of 1 to 3"),
        ("UPDATE entries SET entry_value = 5 WHERE entry_key = 'a'", "1 keys have a value that is neither"),
        ("DELETE FROM changes WHERE last = 2", "1 records of the change log are unreadable"),
        ("UPDATE changes SET body = '[]' WHERE last = 2", "1 records of the change log are unreadable"),
        ("UPDATE changes SET body = '[[0,' WHERE last = 2", "1 records of the change log are unreadable"),
        ('UPDATE changes SET body = \'[[7,"g",null,["b"]]]\' WHERE last = 2', "1 records of the change log are"),
    ],
)
def test_a_check_finds_what_breaks_the_store_s_own_rules(
    store: GroupStore, path: Path, statement: str, said: str
) -> None:
    for key in "abc":
        store.set("g", key, "v")
    assert store.check() == []
    write(path, statement)
    assert [found for found in store.check() if said in found]
    if "body" in statement:
        with pytest.raises(StoreCorruptError, match="the change log is damaged at revision 2"):
            store.changes(0)


def test_a_record_of_the_log_that_is_readable_but_wrong(store: GroupStore, path: Path) -> None:
    """Its checksum fits, as if a faulty release had written it."""
    for key in "abc":
        store.set("g", key, "v")
    for body in ("[]", "[[0,", '[[7,"g",null,["b"]]]', '[[0,"g",null,["b","c"]]]', "{}"):
        stored = _record_checksum(1, at_ms(path), body)
        write(path, f"UPDATE changes SET body = '{body}', checksum = {stored} WHERE last = 2")
        with pytest.raises(StoreCorruptError, match="the change log is damaged at revision 2"):
            store.changes(0)
        assert [event.key for event in store.changes(2)] == ["c"]


def at_ms(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("SELECT at_ms FROM changes WHERE last = 2").fetchone()
    connection.close()
    return int(found)


READS: list[Callable[[GroupStore], object]] = [
    lambda store: store.get("g", "bent"),
    lambda store: store.entry("g", "bent"),
    lambda store: store.get_many("g", ["sound", "bent"]),
    lambda store: store.get_all("g"),
    lambda store: list(store.items("g")),
    lambda store: list(store.entries()),
    lambda store: store.changes(0),
]


@pytest.mark.parametrize("read", READS)
def test_a_bit_that_flips_inside_a_value_is_noticed(path: Path, read: Callable[[GroupStore], object]) -> None:
    """The structure of the file is sound, and SQLite has no objection."""
    with GroupStore(path) as store:
        store.set("g", "bent", "the value of one key")
        store.set("g", "sound", "the value of another")
    data = bytearray(path.read_bytes())
    data[data.index(b"the value of one")] ^= 1
    path.write_bytes(data)
    with GroupStore(path, check="quick") as store:
        assert store.get("g", "sound") == "the value of another"
        with pytest.raises(StoreCorruptError, match="key 'bent' of group 'g' does not fit its checksum"):
            read(store)
        assert store.check() == ["1 keys do not fit their checksums"]
    with pytest.raises(StoreCorruptError, match="1 keys do not fit their checksums"):
        GroupStore(path, check="full")
    with GroupStore(path, check="full", on_damage="quarantine") as store:
        assert store.quarantined is not None
        assert store.get_all("g") == {"sound": "the value of another"}


def test_what_can_be_read_of_a_damaged_store_goes_on(path: Path) -> None:
    """Of a tree with damaged pages in its middle: what lies before and behind them, with values large and small."""
    with GroupStore(path, durable=False) as store:
        values = {f"k{number:05d}": f"{number}" * (1 + number % 300) for number in range(20_000)}
        store.set_many("g", values)
        store.set("g", "expires", "v", ttl_ms=10**9)
        revision = store.revision
        held = {entry.key: entry for entry in store.entries("g")}
    data = bytearray(path.read_bytes())
    at = data.index(b"k10000") // 4096 * 4096
    data[at : at + 4096] = os.urandom(4096)
    path.write_bytes(data)
    with GroupStore(path, check="quick", on_damage="quarantine") as store:
        assert store.quarantined is not None
        kept = {entry.key: entry for entry in store.entries("g")}
        assert len(held) - 200 < len(kept) < len(held)
        assert all(held[key] == entry for key, entry in kept.items())
        assert {"k00000", "k19999", "expires"} <= kept.keys()
        assert "k10000" not in kept
        assert store.check() == []
        with pytest.raises(RevisionGapError):
            store.changes(revision)
        assert store.set("g", "new", "v") == store.revision == revision + 2
    assert not list(path.parent.glob("*.partial-*"))


def leaves(data: bytes | bytearray) -> list[int]:
    """Where the pages lie that have rows of ``entries``."""
    return [at for at in range(4096, len(data), 4096) if data[at] == 0x0A and b"gk0" in data[at : at + 4096]]


def test_of_a_row_that_is_there_twice_the_later_write_is_kept(path: Path) -> None:
    """A page of before has taken the place of another."""
    files = []
    for value in ("old", "new"):
        with GroupStore(path) as store:
            store.set_many("g", {f"k{number:05d}": value * 10 for number in range(2_000)})
        files.append(path.read_bytes())
    old, new = files
    source, target = leaves(new)[5], leaves(new)[-5]
    assert b"old" in old[source : source + 4096]
    path.write_bytes(new[:target] + old[source : source + 4096] + new[target + 4096 :])
    with GroupStore(path, check="full", on_damage="quarantine") as store:
        assert store.quarantined is not None
        kept = store.get_all("g")
    assert 1_000 < len(kept) < 2_000
    assert {*kept.values()} == {"new" * 10}


def test_what_was_removed_does_not_come_back_with_a_page_of_before(path: Path) -> None:
    with GroupStore(path) as store:
        store.set_many("g", {f"k{number:05d}": "v" * 30 for number in range(2_000)})
        store.set_many("h", {"a": "1", "b": "2"})
    old = path.read_bytes()
    with GroupStore(path) as store:
        for number in range(3):
            store.delete("g", f"k{1_000 + number:05d}")
        store.delete_group("h")
        store.set("h", "c", "3")
    data = bytearray(path.read_bytes())
    for at in leaves(data):
        if b"gk01001" in old[at : at + 4096] or b"hb2" in old[at : at + 4096] or b"hb\x01" in old[at : at + 4096]:
            data[at : at + 4096] = old[at : at + 4096]
    at = leaves(data)[5]
    data[at : at + 4096] = os.urandom(4096)
    path.write_bytes(data)
    with GroupStore(path, check="quick", on_damage="quarantine") as store:
        assert store.quarantined is not None
        assert not {"k01000", "k01001", "k01002"} & {*store.keys("g")}
        assert {"k00999", "k01003"} <= {*store.keys("g")}
        assert not {"a", "b"} & {*store.keys("h")}


@pytest.mark.parametrize("rows", [0, 1_000])
def test_where_the_end_of_the_log_is_lost_nobody_resumes_from_a_revision_of_before(path: Path, rows: int) -> None:
    with GroupStore(path) as store:
        store.set_many("g", {f"k{number}": "v" * 100 for number in range(1_000)})
        for _ in range(5):
            store.set("g", "removed", "v")
            store.delete("g", "removed")
        before = store.revision
    if rows:
        write(path, "DELETE FROM changes")
    else:
        damage(path)
    with GroupStore(path, check="full", on_damage="quarantine") as store:
        assert store.quarantined is not None
        assert store.count("g") == rows
        store.set_many("g", {f"k{number}": "w" for number in range(before)})
        with pytest.raises(RevisionGapError):
            store.changes(before)
        assert store.check() == []


# Dies before the file operation with the number that it is given; links are refused where the second word is "copy".
DYING = """
import os, sys
from ringcast_groupstore import GroupStore

left, links = int(sys.argv[2]), sys.argv[3] != "copy"

def hook(event, words):
    global left
    if event == "os.link" and not links:
        raise PermissionError(1, "Operation not permitted")
    if event in ("os.link", "os.rename", "os.remove", "shutil.copyfile") and "store.db" in str(words):
        if left == 0:
            os._exit(9)
        left -= 1

sys.addaudithook(hook)
GroupStore(sys.argv[1], check="quick", on_damage="quarantine").close()
"""


@pytest.mark.parametrize("way", ["link", "copy"])
def test_whoever_dies_while_a_file_is_set_aside_leaves_what_can_be_read(path: Path, tmp_path: Path, way: str) -> None:
    with GroupStore(path) as store:
        store.set_many("g", {f"k{number}": "v" * 50 for number in range(5_000)})
    data = bytearray(path.read_bytes())
    at = len(data) // 8192 * 4096
    data[at : at + 4096] = os.urandom(4096)
    for step in range(20):
        directory = tmp_path / str(step)
        directory.mkdir()
        left = directory / "store.db"
        left.write_bytes(data)
        died = subprocess.run([sys.executable, "-c", DYING, str(left), str(step), way], check=False).returncode
        with GroupStore(left, check="quick", on_damage="quarantine") as store:
            assert 1_000 < store.count("g") < 5_000, f"before file operation {step}"
        assert data in [aside.read_bytes() for aside in directory.glob("store.db.damaged-*")]
        if not died:
            break
        assert died == 9
    assert 2 < step < 19


def test_a_damaged_log_of_changes_costs_no_key(path: Path) -> None:
    with GroupStore(path) as store:
        for key in "abc":
            store.set("g", key, "v")
    write(path, "DELETE FROM changes WHERE last = 2")
    with GroupStore(path, check="full", on_damage="quarantine") as store:
        assert store.quarantined is not None
        assert list(store.keys("g")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "change",
    [
        "entry_value = CAST(entry_value AS BLOB)",
        "entry_value = 5",
        "expires_at = 1e15",
        "group_name = 'h'",
        "entry_key = 'l'",
        "revision = revision + 1",
        "entry_value = CAST(X'ff' AS TEXT)",
        "checksum = checksum + 1",
    ],
)
def test_whatever_of_a_key_is_bent_is_noticed(path: Path, change: str) -> None:
    with GroupStore(path) as store:
        store.set("g", "k", "v")
    write(path, f"UPDATE entries SET {change}")
    with GroupStore(path) as store:
        assert store.check() != []
        with pytest.raises(StoreCorruptError):
            list(store.entries())
        with pytest.raises(StoreCorruptError, match="takes no more writes"):
            store.set("g", "other", "v")
