"""Writes that belong together, and views that do not change."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ringcast_groupstore import GroupStore, StoreBusyError, StoreError

Clock = Any  # of conftest.py


def test_all_or_nothing(store: GroupStore) -> None:
    store.set("g", "a", "0")
    with store.transaction() as tx:
        assert tx.set("g", "a", "1") == 2
        assert tx.set_many("h", {"b": "2", "c": "3"}) == 4
        assert tx.create("g", "a", "x") is None
        assert tx.compare_and_set("g", "a", "2", revision=2) == 5
        assert tx.delete("h", "b")
        assert tx.delete_group("h") == 1
        assert tx.get_all("g") == {"a": "2"}, "it sees what it wrote"
        assert list(tx.groups()) == ["g"]
        assert store.get("g", "a") == "0", "and nobody else does"
    assert store.get("g", "a") == "2"
    assert store.revision == 7

    def fails() -> None:
        with store.transaction() as tx:
            tx.set("g", "a", "3")
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert store.get("g", "a") == "2"
    assert store.revision == 7
    assert store.set("g", "a", "4") == 8, "what was rolled back has left no gap"


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), sqlite3.DatabaseError("mine")])
def test_what_the_caller_raises_inside_stays_as_it_is(store: GroupStore, error: Exception) -> None:
    def fails() -> None:
        with store.transaction() as tx:
            tx.set("g", "a", "1")
            raise error

    with pytest.raises(type(error)) as caught:
        fails()
    assert caught.value is error
    store.set("g", "b", "2")
    assert store.get_all("g") == {"b": "2"}


def test_a_transaction_without_changes_leaves_no_trace(store: GroupStore) -> None:
    with store.transaction() as tx:
        assert tx.get("g", "k") is None
        assert not tx.delete("g", "k")
    assert store.revision == 0


def test_time_stands_still_inside(store: GroupStore, clock: Clock) -> None:
    store.set("g", "k", "v", ttl_ms=5)
    with store.transaction() as tx:
        clock.advance(5)
        assert tx.get("g", "k") == "v"
        tx.set("g", "late", "v", ttl_ms=5)
    assert store.get_all("g") == {}
    with store.transaction() as tx:
        assert tx.get("g", "k") is None
        assert tx.namespace("n").purge_expired() == 0
    assert store.purge_expired() == 1, "the read in the transaction has removed the other"


def test_the_store_can_not_be_written_past_a_transaction(store: GroupStore) -> None:
    with store.transaction() as tx:
        calls: list[Callable[[], object]] = [lambda: store.set("g", "k", "v"), store.purge_expired]
        for call in calls:
            with pytest.raises(StoreError, match="this thread is inside a transaction"):
                call()
        with pytest.raises(StoreError, match="can't be closed inside a transaction"):
            store.close()
        with pytest.raises(StoreError, match="this thread is inside a transaction"), store.transaction():
            pass
        tx.set("g", "k", "v")
    assert store.get("g", "k") == "v"


def test_a_transaction_that_has_ended(store: GroupStore) -> None:
    with store.transaction() as tx:
        pass
    calls: list[Callable[[], object]] = [lambda: tx.set("g", "k", "v"), lambda: tx.get("g", "k")]
    for call in calls:
        with pytest.raises(StoreError, match="the transaction has ended"):
            call()


def test_other_threads_wait_but_do_not_wait_for_ever(path: Path) -> None:
    with GroupStore(path, busy_timeout_s=0.05) as store:
        raised: list[BaseException] = []

        def write() -> None:
            try:
                store.set("g", "other", "v")
            except StoreBusyError as error:
                raised.append(error)

        with store.transaction() as tx:
            tx.set("g", "k", "v")
            thread = threading.Thread(target=write)
            thread.start()
            thread.join(10)
            assert store.get("g", "k") is None, "reads don't wait"
        assert "another thread has been writing for over 0.05 s" in str(raised[0])
        assert list(store.keys("g")) == ["k"]


def test_another_process_that_keeps_the_lock(path: Path) -> None:
    with GroupStore(path, busy_timeout_s=0.02) as store, GroupStore(path) as other:
        with other.transaction() as tx:
            tx.set("g", "k", "v")
            with pytest.raises(StoreBusyError, match="is locked by another process"):
                store.set("g", "k", "w")
            assert store.get("g", "k") is None
        assert store.set("g", "k", "w") == 2


def test_a_read_never_waits_to_remove_what_has_expired(path: Path, clock: Clock) -> None:
    with GroupStore(path, clock=clock, purge_interval_s=None) as store, GroupStore(path, clock=clock) as other:
        store.set("g", "k", "v", ttl_ms=1)
        clock.advance(1)
        with other.transaction() as tx:
            tx.set("g", "other", "v")
            assert store.get("g", "k") is None, "it would wait for 5 s, and fail"
        with store.transaction():
            assert store.get("g", "k") is None
        assert store.purge_expired() == 1
        with store.transaction():
            pass


def test_a_snapshot_does_not_change(store: GroupStore, clock: Clock) -> None:
    store.set_many("g", {"a": "1", "b": "2"})
    store.set("g", "c", "3", ttl_ms=5)
    with store.snapshot() as view:
        assert view.revision == 3
        store.set("g", "a", "changed")
        store.delete("g", "b")
        clock.advance(5)
        assert store.purge_expired() == 1
        assert view.get_all("g") == {"a": "1", "b": "2", "c": "3"}
        assert list(view.keys("g")) == ["a", "b", "c"]
        assert view.count("g") == 3
        assert view.namespace("n").count_all() == 0
        assert store.get_all("g") == {"a": "changed"}
        with store.snapshot() as later:
            assert later.get_all("g") == {"a": "changed"}
    with pytest.raises(StoreError, match="the snapshot has ended"):
        view.get("g", "a")


def test_eight_threads_at_once(store: GroupStore) -> None:
    """Each adds one to the same key with compare-and-set, and to one of its own; readers look on."""
    rounds, errors = 40, []
    done = threading.Event()

    def add(number: int) -> None:
        for _ in range(rounds):
            with store.transaction() as tx:
                tx.set("own", str(number), str(int(tx.get("own", str(number), "0") or 0) + 1))
            while True:
                entry = store.entry("g", "sum")
                value = str(int(entry.value if entry else 0) + 1)
                if store.compare_and_set("g", "sum", value, revision=entry.revision if entry else 0):
                    break

    def look() -> None:
        last = 0
        while not done.is_set():
            now = int(store.get("g", "sum", "0") or 0)
            if now < last:
                errors.append((last, now))
            last = now

    writers = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    readers = [threading.Thread(target=look) for _ in range(2)]
    for thread in [*writers, *readers]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert errors == []
    assert store.get("g", "sum") == str(6 * rounds)
    assert set(store.get_all("own").values()) == {str(rounds)}
    assert store.revision == 12 * rounds
    assert store.check() == []
