"""The reading and writing verbs of a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ringcast_groupstore import Entry, GroupStore, InputError, Limits, NotFoundError, StoreClosedError, StoreFullError

Clock = Any  # of conftest.py
Calls = list[Callable[[], object]]


def stored_rows(path: Path) -> int:
    """How many rows lie in the file, expired ones too."""
    connection = sqlite3.connect(path)
    try:
        (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    finally:
        connection.close()
    return int(count)


@pytest.mark.parametrize("value", ["", "text", "nul \0 inside", "ß 漢 🎉", b"", b"bytes", b"\x00\xff", "x" * 100_000])
def test_a_value_comes_back_as_what_it_was(store: GroupStore, value: str | bytes) -> None:
    store.set("g", "k", value)
    found = store.get("g", "k")
    assert found == value
    assert type(found) is type(value)


def test_reading_and_writing(store: GroupStore) -> None:
    assert store.get("g", "a") is None
    assert store.get("g", "a", "none") == "none"
    assert store.entry("g", "a") is None
    assert not store.contains("g", "a")
    assert store.set("g", "a", "1") == 1
    assert store.set("g", "a", "2") == 2
    assert store.set("other", "a", "3") == 3
    assert store.get("g", "a") == store.require("g", "a") == "2"
    assert store.entry("g", "a") == Entry("g", "a", "2", None, 2)
    assert store.contains("g", "a")
    assert store.delete("g", "a")
    assert not store.delete("g", "a")
    with pytest.raises(NotFoundError, match="group 'g' has no key 'a'"):
        store.require("g", "a")
    assert store.get("other", "a") == "3"
    assert store.revision == 4


def test_batches(store: GroupStore) -> None:
    assert store.set_many("g", {}) == 0
    assert store.set_many("g", {"a": "1", "b": b"2", "c": "3"}) == 3
    assert store.set_many("g", {"c": "4", "d": "5"}) == 5
    assert store.get_many("g", ["d", "missing", "a", "a"]) == {"a": "1", "d": "5"}
    assert store.get_many("g", []) == {}
    assert store.get_all("g") == {"a": "1", "b": b"2", "c": "4", "d": "5"}
    assert store.delete_many("g", ["a", "missing", "b"]) == 2
    assert store.delete_group("g") == 2
    assert store.delete_group("g") == 0
    assert store.get_all("g") == {}
    assert store.revision == 8, "a group's deletion is one change, and that of nothing is none"


def test_a_batch_is_written_whole_or_not_at_all(store: GroupStore) -> None:
    with pytest.raises(InputError, match="half of a surrogate pair"):
        store.set_many("g", {"a": "1", "b": "\ud800"})
    assert store.get_all("g") == {}
    with store.transaction() as tx:
        tx.set("g", "before", "1")
        with pytest.raises(InputError, match="half of a surrogate pair"):
            tx.set_many("g", {"a": "1", "b": "\ud800"})
        tx.set("g", "after", "1")
    assert list(store.keys("g")) == ["after", "before"]
    assert store.revision == 2
    assert store.check() == []


def test_create_and_compare_and_set(store: GroupStore, clock: Clock) -> None:
    first = store.create("g", "k", "1", ttl_ms=100)
    assert first == 1
    assert store.create("g", "k", "2") is None
    assert store.compare_and_set("g", "k", "2", revision=7) is None
    assert store.compare_and_set("g", "missing", "2", revision=7) is None
    assert store.get("g", "k") == "1"
    assert store.compare_and_set("g", "k", "2", revision=first, ttl_ms=100) == 2
    assert store.compare_and_set("g", "k", "3", revision=first) is None
    clock.advance(100)
    assert store.compare_and_set("g", "k", "3", revision=2) is None, "what has expired is missing"
    assert store.create("g", "k", "3") == 3
    assert store.entry("g", "k") == Entry("g", "k", "3", None, 3)


def test_expiry(store: GroupStore, clock: Clock, path: Path) -> None:
    store.set("g", "short", "1", ttl_ms=10)
    store.set_many("g", {"long": "2", "longer": "3"}, ttl_ms=20)
    store.set("g", "ever", "4")
    entry = store.entry("g", "short")
    assert entry is not None
    assert entry.expires_at_ms == clock.now_ms + 10
    clock.advance(9)
    assert store.get("g", "short") == "1"
    clock.advance(1)
    assert store.count("g") == 3
    assert store.count_all() == 3
    assert list(store.keys("g")) == ["ever", "long", "longer"]
    assert set(store.get_many("g", ["short", "ever"])) == {"ever"}
    assert [found.key for found in store.entries()] == ["ever", "long", "longer"]
    assert not store.contains("g", "short")
    assert stored_rows(path) == 4, "so far it was only not shown"
    assert store.get("g", "short") is None
    assert stored_rows(path) == 3, "the read that met it has removed it"
    clock.advance(10)
    assert store.purge_expired() == 2
    assert store.purge_expired() == 0
    assert stored_rows(path) == 1
    assert not store.delete("g", "long")
    assert store.revision == 4, "expiry is no change"


def test_a_write_renews_or_ends_the_expiry(store: GroupStore, clock: Clock) -> None:
    store.set("g", "renewed", "1", ttl_ms=10)
    store.set("g", "kept", "1", ttl_ms=10)
    clock.advance(5)
    store.set("g", "renewed", "2", ttl_ms=10)
    store.set("g", "kept", "2")
    clock.advance(5)
    assert store.get_all("g") == {"renewed": "2", "kept": "2"}
    clock.advance(5)
    assert store.get_all("g") == {"kept": "2"}


def test_deleting_what_has_expired_is_no_change(store: GroupStore, clock: Clock) -> None:
    store.set_many("g", {"a": "1", "b": "2"}, ttl_ms=5)
    clock.advance(5)
    assert not store.delete("g", "a")
    assert store.delete_group("g") == 0
    assert store.revision == 2


def test_a_purge_takes_more_than_one_batch(store: GroupStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast_groupstore._purge.BATCH_ROWS", 10)
    store.set_many("g", {f"k{number}": "v" for number in range(35)}, ttl_ms=1)
    store.set("g", "stays", "v")
    clock.advance(1)
    assert store.purge_expired() == 35
    assert store.get_all("g") == {"stays": "v"}


GROUPS = ["a", "a:b", "a:b:c", "ab", "b", "퟿", "퟿x", "\ue000", "z", "\U0010ffff", "\U0010ffffz"]


@pytest.mark.parametrize("prefix", ["", "a", "a:", "a:b", "퟿", "\U0010ffff", "none", "%", "_"])
def test_prefixes(store: GroupStore, prefix: str) -> None:
    for group in GROUPS:
        store.set_many(group, {"k1": "v", "k2": "v"})
    expected = sorted(group for group in GROUPS if group.startswith(prefix))
    assert list(store.groups(prefix)) == expected
    assert store.count_all(prefix) == 2 * len(expected)
    assert [(entry.group, entry.key) for entry in store.entries(prefix)] == [
        (group, key) for group in expected for key in ("k1", "k2")
    ]


def test_iterators_stream_and_hold_nothing(store: GroupStore) -> None:
    store.set_many("g", {f"{number:05}": "v" for number in range(2_500)})
    items = store.items("g")
    assert next(items) == ("00000", "v")
    store.set("g", "00000a", "seen or not")
    store.set("g", "99999", "of a later page")
    rest = list(items)
    assert len(rest) in (2_500, 2_501)
    assert rest[-1] == ("99999", "of a later page")


def test_a_page_of_large_values_is_short(store: GroupStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set_many("g", {f"{number:02}": b"x" * 300_000 for number in range(30)})
    sizes = []
    rows = type(store._source).rows

    def counted(source: Any, sql: str, params: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        found = rows(source, sql, params, max_bytes)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(type(store._source), "rows", counted)
    assert [key for key, _ in store.items("g")] == [f"{number:02}" for number in range(30)]
    assert max(sizes) == 4
    sizes.clear()
    assert len(list(store.entries())) == 30
    assert max(sizes) == 4


def test_split_and_fields(store: GroupStore) -> None:
    store.set("g", "list", "a,b,,c")
    store.set("g", "words", "  one\ttwo\n\u2003three ")
    store.set("g", "bytes", b"a,b")
    assert list(store.get_split("g", "list", ",")) == ["a", "b", "", "c"]
    assert list(store.get_split("g", "list", ",,")) == ["a,b", "c"]
    assert list(store.get_split("g", "list", ";")) == ["a,b,,c"]
    assert list(store.get_fields("g", "words")) == ["one", "two", "three"]
    calls: Calls = [lambda: store.get_split("g", "none", ","), lambda: store.get_fields("g", "none")]
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    with pytest.raises(InputError, match="holds bytes"):
        store.get_split("g", "bytes", ",")
    with pytest.raises(InputError, match="separator is empty"):
        store.get_split("g", "list", "")


@pytest.mark.parametrize(
    ("limits", "group", "key", "value", "said"),
    [
        ({}, "", "k", "v", "group is empty: 1 to 512 bytes are allowed"),
        ({}, "g", "", "v", "key is empty: 1 to 512 bytes are allowed"),
        ({"max_group_bytes": 8}, "g" * 9, "k", "v", "group 'ggggggggg'… has 9 bytes: 1 to 8 are allowed"),
        ({"max_key_bytes": 8}, "g", "ß" * 5, "v", "key 'ßßßßß'… has 10 bytes: 1 to 8 are allowed"),
        ({"max_value_bytes": 8}, "g", "k", "ß" * 5, "value has 10 bytes: at most 8 are allowed"),
        ({"max_value_bytes": 8}, "g", "k", b"x" * 9, "value has 9 bytes: at most 8 are allowed"),
        ({}, "g", "\ud800", "v", "half of a surrogate pair"),
    ],
)
def test_what_is_too_large_is_refused(
    path: Path, limits: dict[str, int], group: str, key: str, value: str, said: str
) -> None:
    with GroupStore(path, limits=Limits(**limits)) as store:
        calls: Calls = [lambda: store.set(group, key, value), lambda: store.set_many(group, {"a": "b", key: value})]
        for call in calls:
            with pytest.raises(InputError, match=said):
                call()
        assert store.count_all() == store.revision == 0


def test_what_just_fits_is_taken(path: Path) -> None:
    with GroupStore(path, limits=Limits(max_group_bytes=8, max_key_bytes=8, max_value_bytes=8)) as store:
        store.set("ßßßß", "k" * 8, b"12345678")
        store.set_many("g" * 8, {"ßßßß": "ßßßß"})
        assert store.count_all() == 2


def test_what_is_of_another_type_is_refused(store: GroupStore) -> None:
    wrong: Any = 5
    calls: Calls = [
        lambda: store.set("g", "k", wrong),
        lambda: store.set("g", wrong, "v"),
        lambda: store.set(wrong, "k", "v"),
        lambda: store.set_many("g", {"a": wrong}),
        lambda: store.set_many("g", {wrong: "a"}),
        lambda: store.set("g", "k", "v", ttl_ms=wrong / 2),
        lambda: store.delete("g", wrong),
        lambda: store.delete_many("g", ["a", wrong]),
        lambda: store.get("g", wrong),
        lambda: store.get(wrong, "k"),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    assert store.revision == 0


@pytest.mark.parametrize("ttl_ms", [0, -1, 100 * 366 * 24 * 3600 * 1000 + 1])
def test_times_to_live_have_a_range(store: GroupStore, ttl_ms: int) -> None:
    with pytest.raises(InputError, match=f"ttl_ms {ttl_ms} is out of range"):
        store.set("g", "k", "v", ttl_ms=ttl_ms)


def test_a_transaction_has_a_limit(path: Path) -> None:
    with GroupStore(path, limits=Limits(max_changes=3)) as store:
        with pytest.raises(InputError, match="changes of a transaction are 4: at most 3 are allowed"):
            store.set_many("g", dict.fromkeys("abcd", "v"))
        store.set_many("g", dict.fromkeys("abc", "v"))
        with pytest.raises(InputError, match="keys are 4: at most 3 are allowed"):
            store.get_many("g", "abcd")
        assert store.revision == 3


def test_the_file_has_a_limit(path: Path) -> None:
    with GroupStore(path, limits=Limits(max_file_bytes=256 * 1024)) as store:
        store.set("g", "k", "kept")
        values = {str(number): b"x" * 10_000 for number in range(100)}
        with pytest.raises(StoreFullError, match=r"the disk is full.*max_file_bytes is 262144"):
            store.set_many("big", values)
        store.set_many("big", dict(list(values.items())[:15]))
        assert store.get("g", "k") == "kept"
        assert store.check() == []
        store.delete_group("big")
        store.set("g", "k", "goes on")
        assert path.stat().st_size <= 256 * 1024


@pytest.mark.parametrize(
    "settings", [{"keep_changes": 0}, {"busy_timeout_s": -1}, {"purge_interval_s": 0}, {"purge_interval_s": 1e9}]
)
def test_settings_have_a_range(path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(settings))} .* is out of range"):
        GroupStore(path, **settings)
    assert not path.exists()


def test_limits_have_a_range() -> None:
    with pytest.raises(ValueError, match="max_key_bytes 0 is out of range: 1 to 65536"):
        Limits(max_key_bytes=0)


def test_what_was_written_is_there_the_next_time(path: Path) -> None:
    for number in range(1, 4):
        with GroupStore(path) as store:
            assert store.set("g", str(number), "v") == number
            assert store.count("g") == number


def test_a_closed_store(path: Path) -> None:
    store = GroupStore(path)
    store.set("g", "k", "v")
    items = store.items("g")
    store.close()
    store.close()
    calls: Calls = [lambda: store.get("g", "k"), lambda: store.set("g", "k", "v"), lambda: next(items), store.watch]
    for call in calls:
        with pytest.raises(StoreClosedError, match="is closed"):
            call()
    assert not path.with_name(path.name + "-wal").exists()


@pytest.mark.parametrize(("durable", "synchronous"), [(True, 2), (False, 1)])
def test_the_settings_hold_on_every_connection(path: Path, durable: bool, synchronous: int) -> None:
    names = ("journal_mode", "busy_timeout", "synchronous", "query_only", "foreign_keys")

    def settings(connection: sqlite3.Connection) -> list[object]:
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    with GroupStore(path, durable=durable, busy_timeout_s=1.5) as store:
        store.set("g", "k", "v")
        assert settings(store._engine.writer) == ["wal", 1500, synchronous, 0, 1]
        with store.snapshot() as one, store.snapshot() as two:
            for view in (one, two):
                found = settings(view._source._cursor.connection)  # type: ignore[attr-defined]
                assert (found[0], found[1], found[3], found[4]) == ("wal", 1500, 1, 1)


def test_readers_are_kept_and_bounded(store: GroupStore) -> None:
    """As many as read at once, and not more than a few for later."""
    store.set("g", "k", "v")
    with ExitStack() as stack:
        views = [stack.enter_context(store.snapshot()) for _ in range(40)]
        assert [view.get("g", "k") for view in views] == ["v"] * 40
        assert len({id(view._source._cursor.connection) for view in views}) == 40  # type: ignore[attr-defined]
    assert len(store._engine.readers.idle) == 16
    for _ in range(100):
        store.get("g", "k")
    assert len(store._engine.readers.idle) == 16
