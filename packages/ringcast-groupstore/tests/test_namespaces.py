"""Tenants that share a file, and their quotas."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ringcast_groupstore import (
    GroupStore,
    InputError,
    Limits,
    Namespace,
    Quota,
    QuotaExceededError,
    _entries,
)

Clock = Any  # of conftest.py


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a_b", "ä", "a\n", "a" * 65, "../x"])
def test_names_are_checked(store: GroupStore, name: str) -> None:
    with pytest.raises(InputError, match="1 to 64 characters of A-Z a-z 0-9 - are"):
        store.namespace(name)


def test_namespaces_do_not_meet(store: GroupStore) -> None:
    one, two, longer = store.namespace("t"), store.namespace("u"), store.namespace("t-2")
    one.set("g", "k", "1")
    two.set("g", "k", "2")
    longer.set_many("h", {"k": "3", "l": "4"})
    store.set("g", "k", "0")
    assert [space.get("g", "k") for space in (store, one, two, longer)] == ["0", "1", "2", None]
    assert one.name == "t"
    assert list(longer.groups()) == ["h"]
    assert list(longer.items("h")) == [("k", "3"), ("l", "4")]
    assert [tuple(entry)[:3] for entry in one.entries()] == [("g", "k", "1")]
    assert (one.count_all(), longer.count_all(), longer.count_all("x"), longer.count("h")) == (1, 2, 0, 2)
    assert list(store.groups()) == ["g", "t-2:h", "t:g", "u:g"]
    assert store.get("t:g", "k") == "1", "whoever has the store sees every namespace"
    assert longer.delete_group("h") == 2
    assert one.delete("g", "k")
    assert store.count_all() == 2


def test_a_snapshot_of_one_namespace(store: GroupStore) -> None:
    space = store.namespace("n")
    space.set("g", "k", "1")
    with space.snapshot() as view:
        space.set("g", "k", "2")
        assert view.name == "n"
        assert view.get_all("g") == {"k": "1"}
        assert list(view.groups()) == ["g"]


def test_purging_one_namespace(store: GroupStore, clock: Clock) -> None:
    one, two = store.namespace("one"), store.namespace("two")
    for space in (one, two):
        space.set("g", "k", "v", ttl_ms=1)
    clock.advance(1)
    assert one.purge_expired() == 1
    assert one.purge_expired() == 0
    assert two.purge_expired() == 1


def test_hearing_of_one_namespace(store: GroupStore) -> None:
    space, called = store.namespace("n"), []
    remove = space.on_change(lambda event: called.append((event.group, event.key)), "g")
    with space.watch() as every, space.watch("g") as one, space.watch(since=0) as log, store.watch() as root:
        space.set("g", "a", "1")
        space.set("h", "b", "2")
        store.set("g", "c", "3")
        store.set("n", "d", "4")
        expected = [("g", "a"), ("h", "b")]
        for watch in (every, log):
            assert [(event.group, event.key) for event in (watch.next(0), watch.next(0)) if event] == expected
            assert watch.next(0) is None
        event = one.next(0)
        assert event is not None
        assert event.group == "g"
        assert one.next(0) is None
        event = root.next(0)
        assert event is not None
        assert event.group == "n:g"
    assert called == [("g", "a")]
    remove()


def test_a_quota_of_keys(store: GroupStore, clock: Clock) -> None:
    space = store.namespace("n", quota=Quota(max_keys=3))
    space.set_many("g", {"a": "1", "b": "1"})
    space.set("h", "c", "1")
    with pytest.raises(QuotaExceededError, match="namespace 'n' would have 4 keys: its quota is 3"):
        space.set("g", "d", "1")
    with pytest.raises(QuotaExceededError, match="would have 5 keys"):
        space.set_many("g", {"a": "2", "d": "2", "e": "2"})
    assert space.get_all("g") == {"a": "1", "b": "1"}, "nothing of the batch was written"
    space.set_many("g", {"a": "2", "b": "2"})  # to keys that are there
    assert space.create("g", "a", "3") is None
    space.delete("h", "c")
    assert space.create("h", "d", "1", ttl_ms=5)
    with pytest.raises(QuotaExceededError):
        space.set("h", "e", "1")
    clock.advance(5)
    space.set("h", "e", "1")  # what has expired no longer counts
    store.set("unlimited", "x", "1")
    store.namespace("other").set("g", "x", "1")


def test_a_quota_of_groups(store: GroupStore) -> None:
    space = store.namespace("n", quota=Quota(max_groups=2))
    space.set("g", "a", "1")
    space.set("h", "a", "1")
    space.set_many("h", {"b": "1", "c": "1"})
    with pytest.raises(QuotaExceededError, match="would have 3 groups: its quota is 2"):
        space.set("i", "a", "1")
    space.delete_group("h")
    space.set("i", "a", "1")


@pytest.mark.parametrize(
    "past",
    [
        lambda store: store.set("n:g", "past", "1"),
        lambda store: store.namespace("n").set("g", "past", "1"),
        lambda store: store.namespace("n", quota=Quota(max_keys=9)).set("g", "past", "1"),
    ],
)
def test_what_is_written_past_a_quota_counts(store: GroupStore, past: Callable[[GroupStore], object]) -> None:
    space = store.namespace("n", quota=Quota(max_keys=2, max_groups=1))
    space.set("g", "a", "1")
    past(store)
    with pytest.raises(QuotaExceededError):
        space.set("g", "b", "1")
    with pytest.raises(QuotaExceededError):
        space.set("h", "past", "1")


def test_what_another_process_writes_counts(store: GroupStore, path: Path) -> None:
    quota = Quota(max_keys=3)
    space = store.namespace("n", quota=quota)
    space.set("g", "a", "1")
    with GroupStore(path) as other:
        other.namespace("n", quota=quota).set("g", "b", "1")
        space.set("g", "c", "1")
        with pytest.raises(QuotaExceededError):
            other.namespace("n", quota=quota).set("g", "d", "1")


def test_what_another_process_purges_no_longer_counts(store: GroupStore, path: Path, clock: Clock) -> None:
    keys = store.namespace("keys", quota=Quota(max_keys=2))
    groups = store.namespace("groups", quota=Quota(max_groups=1))
    with GroupStore(path, clock=clock, purge_interval_s=None) as other:
        for _ in range(2):
            keys.set_many("g", {"a": "1", "b": "1"}, ttl_ms=5)
            groups.set("g", "a", "1", ttl_ms=5)
            refused(keys, "g", "c")
            clock.advance(5)
            assert other.purge_expired() >= 3
            with keys.transaction() as tx:
                tx.set("g", "c", "1", ttl_ms=1)
            groups.set("h", "a", "1", ttl_ms=1)
            with pytest.raises(QuotaExceededError, match="would have 2 groups"):
                groups.set("i", "a", "1")
            clock.advance(1)


def test_quotas_inside_a_transaction(store: GroupStore) -> None:
    quota = Quota(max_keys=2)
    space = store.namespace("n", quota=quota)

    def fill() -> None:
        with space.transaction() as tx:
            for key in "abc":
                tx.set("g", key, "1")

    with pytest.raises(QuotaExceededError):
        fill()
    assert space.count_all() == 0
    with space.transaction() as tx:
        tx.set("g", "a", "1")
        tx.delete("g", "a")
        tx.set("g", "b", "1")
        tx.set("g", "c", "1")
        with pytest.raises(QuotaExceededError):
            tx.set("g", "d", "1")
    assert list(space.keys("g")) == ["b", "c"], "a refused write ends the transaction only if nobody catches it"
    with store.transaction() as root:
        inside = root.namespace("n", quota=quota)
        assert inside.delete("g", "b")
        inside.set("g", "d", "1")
        with inside.transaction() as same:
            same.set("g", "d", "2")
    assert space.get_all("g") == {"c": "1", "d": "2"}


def test_the_rows_of_a_namespace_are_counted_once(store: GroupStore, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    count = _entries.count_of_range

    def counts(rows: _entries.Rows, prefix: str, now_ms: int) -> int:
        counted.append(prefix)
        return count(rows, prefix, now_ms)

    monkeypatch.setattr(_entries, "count_of_range", counts)
    space = store.namespace("n", quota=Quota(max_keys=100))
    for number in range(100):
        space.set("g", str(number), "v")
        store.set("elsewhere", str(number), "v")
    assert counted == ["n:"]
    for _ in range(3):
        with pytest.raises(QuotaExceededError):
            space.set("g", "one more", "v")
    space.delete("g", "7")
    space.set("g", "one more", "v")
    assert counted == ["n:"]


def test_the_limit_of_a_group_s_name_includes_the_namespace(path: Path) -> None:
    with GroupStore(path, limits=Limits(max_group_bytes=8)) as store:
        space = store.namespace("abc")
        space.set("1234", "k", "v")
        with pytest.raises(InputError, match="group '12345'… has 5 bytes: 1 to 4 are allowed"):
            space.set("12345", "k", "v")


def test_quotas_have_a_range() -> None:
    with pytest.raises(ValueError, match="max_keys 0 is out of range"):
        Quota(max_keys=0)


def test_a_quota_costs_the_same_however_much_there_is(store: GroupStore, clock: Clock) -> None:
    """Counted in steps of SQLite: a new key, one in the place of another, a refused one, an expired one."""
    steps: dict[int, list[int]] = {}
    for size in (10, 5_000):
        space = store.namespace(f"n{size}", quota=Quota(max_keys=size + 3, max_groups=2))
        space.set_many("g", {f"k{number}": "v" for number in range(size)})
        space.set("h", "first", "v")
        measured = []
        for work in (
            lambda space=space: space.set("g", "new", "v"),
            lambda space=space: space.delete("g", "new"),
            lambda space=space: space.set("g", "new", "v", ttl_ms=1),
            lambda space=space: clock.advance(1),
            lambda space=space: space.set("g", "newer", "v"),
            lambda space=space: space.set("g", "newest", "v"),
            lambda space=space: refused(space, "h", "more"),
            lambda space=space: refused(space, "i", "more"),
        ):
            taken = 0

            def step() -> int:
                nonlocal taken
                taken += 1
                return 0

            store._engine.writer.set_progress_handler(step, 1)
            work()
            store._engine.writer.set_progress_handler(None, 1)
            measured.append(taken)
        steps[size] = measured
    assert max(steps[10]) > 10, "they were counted"
    for few, many in zip(steps[10], steps[5_000], strict=True):
        assert many <= few + 20


def refused(space: Namespace, group: str, key: str) -> None:
    with pytest.raises(QuotaExceededError):
        space.set(group, key, "v")


@pytest.mark.parametrize("seed", range(8))
def test_what_a_quota_counts_is_what_is_there(store: GroupStore, clock: Clock, seed: int) -> None:
    """Whatever is written, removed, expires, is purged, or is taken back in between."""
    choice = random.Random(seed)
    quota = Quota(max_keys=12, max_groups=3)
    space, refusals = store.namespace("n", quota=quota), 0
    for _ in range(600):
        group, key = choice.choice("abcde"), f"k{choice.randrange(5)}"
        ttl_ms = choice.choice([None, None, 1, 5])
        match choice.randrange(9):
            case 0 | 1 | 2 | 3:
                new = not space.contains(group, key)
                groups = set(space.groups())
                fits = space.count_all() + new <= 12 and len(groups | {group}) <= 3
                try:
                    space.set(group, key, "v" * choice.choice([1, 1_000]), ttl_ms=ttl_ms)
                except QuotaExceededError:
                    refusals += 1
                    assert new
                    assert not fits
                else:
                    assert fits or not new
            case 4:
                space.delete(group, key)
            case 5:
                clock.advance(choice.randrange(4))
            case 6:
                works: list[Callable[[], object]] = [
                    store.purge_expired,
                    space.purge_expired,
                    partial(space.get, group, key),
                ]
                choice.choice(works)()
            case 7:
                if choice.random() < 0.3:
                    space.delete_group(group)
                store.set("elsewhere", key, "v", ttl_ms=ttl_ms)
            case _:
                with suppress(QuotaExceededError, KeyError), space.transaction() as tx:
                    tx.set(group, key, "v", ttl_ms=ttl_ms)
                    tx.delete(choice.choice("abcde"), key)
                    tx.get(group, f"k{choice.randrange(5)}")
                    if choice.random() < 0.5:
                        raise KeyError
    assert refusals > 5
