"""Values that don't fit into a page lie apart: whoever counts or lists keys does not read them."""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from ringcast_groupstore import GroupStore, StoreCorruptError, Value
from ringcast_groupstore._schema import INLINE_LENGTH

MIB = 1024 * 1024
SIZES = (0, 1, INLINE_LENGTH - 1, INLINE_LENGTH, INLINE_LENGTH + 1, 5_000, 100_000)


def value_of(size: int, kind: int) -> Value:
    return (b"\x00\xff" * size)[:size] if kind == 2 else ("v", "ä")[kind] * size


def large_values(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("SELECT count(*) FROM large_values").fetchone()
    connection.close()
    return int(found)


def test_values_of_every_size_come_back_and_leave_nothing_behind(path: Path, clock: object) -> None:
    """Written one by one and in batches, over each other, deleted, and expired."""
    choice, held = random.Random(7), dict[tuple[str, str], Value]()
    with GroupStore(path, durable=False, clock=clock, purge_interval_s=None) as store:  # type: ignore[arg-type]
        for _ in range(400):
            group = choice.choice("gh")
            keys = [f"k{choice.randrange(12)}" for _ in range(choice.randrange(1, 5))]
            match choice.randrange(6):
                case 0 | 1:
                    value = value_of(choice.choice(SIZES), choice.randrange(3))
                    store.set(group, keys[0], value)
                    held[group, keys[0]] = value
                case 2 | 3:
                    values = {key: value_of(choice.choice(SIZES), choice.randrange(3)) for key in keys}
                    store.set_many(group, values)
                    held |= {(group, key): value for key, value in values.items()}
                case 4:
                    store.delete_many(group, keys)
                    held = {place: value for place, value in held.items() if place[0] != group or place[1] not in keys}
                case _:
                    store.set(group, keys[0], value_of(5_000, 0), ttl_ms=1)
                    clock.advance(1)  # type: ignore[attr-defined]
                    assert store.purge_expired() == 1
                    held.pop((group, keys[0]), None)
            assert {(entry.group, entry.key): entry.value for entry in store.entries()} == held
        assert store.check() == []
        with store.watch(since=store.revision) as watch:
            store.set("g", "k", "x" * 5_000)
            event = watch.next(0)
            assert event is not None
            assert event.value == "x" * 5_000
        held["g", "k"] = "x" * 5_000
        apart = sum(len(value) > INLINE_LENGTH for value in held.values())
        assert large_values(path) == apart > 0
        store.delete_group("g")
        store.delete_group("h")
        assert large_values(path) == 0


def test_a_write_that_is_taken_back_leaves_the_value_that_was_there(store: GroupStore, path: Path) -> None:
    store.set("g", "k", "x" * 5_000)
    with suppress(RuntimeError), store.transaction() as tx:
        tx.set("g", "k", "y" * 6_000)
        tx.delete_group("g")
        raise RuntimeError
    assert store.get("g", "k") == "x" * 5_000
    assert large_values(path) == 1


def test_counting_does_not_read_values(path: Path) -> None:
    with GroupStore(path, durable=False) as store:
        for number in range(40):
            store.set("g", f"k{number:02d}", "x" * MIB)
    with GroupStore(path) as store:
        before = bytes_read()
        assert (store.count("g"), store.count_all(), store.contains("g", "k07")) == (40, 40, True)
        assert (len(list(store.keys("g"))), list(store.groups())) == (40, ["g"])
        assert bytes_read() - before < MIB, "less than one of the values"
        assert store.get("g", "k07") == "x" * MIB


def bytes_read() -> int:
    """What this process has had the system read for it, from the disk or its cache."""
    (line,) = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar:")]
    return int(line.split()[1])


def test_a_value_that_is_missing_is_damage(path: Path) -> None:
    with GroupStore(path) as store:
        store.set("g", "k", "x" * 5_000)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM large_values")
    connection.commit()
    connection.close()
    with GroupStore(path) as store:
        assert store.check() == [
            "1 keys have a value that is neither text nor bytes",
            "1 keys do not fit their checksums",
        ]
        with pytest.raises(StoreCorruptError, match="does not fit its checksum"):
            store.get("g", "k")
