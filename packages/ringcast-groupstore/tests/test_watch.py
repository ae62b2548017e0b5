"""Who hears of changes: watches, the change log and callbacks."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_groupstore import (
    Event,
    EventKind,
    GroupStore,
    InputError,
    LiveWatch,
    RevisionGapError,
    StoreClosedError,
    Watch,
    _log,
)

Clock = Any  # of conftest.py
SET, DELETE, DELETE_GROUP, GAP = EventKind.SET, EventKind.DELETE, EventKind.DELETE_GROUP, EventKind.GAP

OTHER_PROCESS = """
import sys
from ringcast_groupstore import GroupStore
with GroupStore(sys.argv[1]) as store:
    for line in sys.stdin:
        store.set("other", line.strip(), "v")
        print("done", flush=True)
"""


def taken(watch: Watch) -> list[Event]:
    """What lies ready."""
    found = []
    while (event := watch.next(0)) is not None:
        found.append(event)
    return found


def seen(events: list[Event]) -> list[tuple[EventKind, str, str, Any, int]]:
    return [(event.kind, event.group, event.key, event.value, event.revision) for event in events]


EXPECTED = [
    (SET, "g", "a", "1", 1),
    (SET, "h", "b", b"2", 2),
    (SET, "h", "c", "3", 3),
    (DELETE, "g", "a", None, 4),
    (DELETE_GROUP, "h", "", None, 5),
]


def change(store: GroupStore) -> None:
    """What gives the events above."""
    store.set("g", "a", "1")
    store.set_many("h", {"b": b"2", "c": "3"})
    store.delete("g", "a")
    store.delete("g", "a")
    store.delete_group("h")
    store.delete_group("h")


def test_a_watch_hears_of_every_change(store: GroupStore, clock: Clock) -> None:
    with store.watch() as every, store.watch("h") as one, store.watch("x") as none:
        change(store)
        found = taken(every)
        assert seen(found) == EXPECTED
        assert {event.at_ms for event in found} == {clock.now_ms}
        assert seen(taken(one)) == [event for event in EXPECTED if event[1] == "h"]
        assert taken(none) == []
        store.set("g", "ttl", "v", ttl_ms=7)
        (event,) = taken(every)
        assert event.expires_at_ms == clock.now_ms + 7


def test_a_watch_that_is_full_drops_counts_and_says_so(store: GroupStore) -> None:
    with store.watch(capacity=3) as watch:
        for number in range(1, 11):
            store.set("g", str(number), "v")
        assert watch.dropped == 7
        assert [event.revision for event in (watch.next(0), watch.next(0)) if event] == [1, 2]
        store.set("g", "11", "v")
        found = taken(watch)
        assert [(event.kind, event.revision, event.missed) for event in found] == [
            (SET, 3, 0),
            (GAP, 10, 7),
            (SET, 11, 0),
        ]
        store.set_many("g", {str(number): "v" for number in range(12, 17)})
        assert [(event.kind, event.revision, event.missed) for event in taken(watch)] == [
            (SET, 12, 0),
            (SET, 13, 0),
            (SET, 14, 0),
            (GAP, 16, 2),
        ], "the gap is told even when nothing follows"
        assert watch.dropped == 9


def test_what_a_reader_has_lost_is_in_the_log(store: GroupStore) -> None:
    with store.watch(capacity=1) as watch:
        for number in range(1, 6):
            store.set("g", str(number), "v")
        last = watch.next(0)
        assert last is not None
        missing = watch.next(0)
        assert missing is not None
        assert missing.kind is GAP
        assert [event.revision for event in store.changes(last.revision)] == [2, 3, 4, missing.revision]


@pytest.mark.parametrize("since", [None, 0])
def test_a_watch_wakes_its_reader_and_ends(store: GroupStore, since: int | None) -> None:
    watch: Watch = store.watch() if since is None else store.watch(since=since, poll_s=3600)
    found: list[str] = []
    third = threading.Event()

    def read() -> None:
        for event in watch:
            found.append(event.key)
            if event.key == "c":
                third.set()

    reader = threading.Thread(target=read)
    reader.start()
    for key in "abc":
        store.set("g", key, "v")
    assert third.wait(10)
    watch.close()
    watch.close()
    reader.join(10)
    assert not reader.is_alive()
    assert found == ["a", "b", "c"]
    assert watch.closed
    store.set("g", "d", "v")
    assert watch.next(0) is None


def test_a_closed_store_ends_its_watches(path: Path) -> None:
    store = GroupStore(path)
    watches: list[Watch] = [store.watch(), store.watch(since=0)]
    store.close()
    assert [watch.next() for watch in watches] == [None, None]
    with pytest.raises(StoreClosedError):
        store.watch()


def test_the_log_of_changes(store: GroupStore) -> None:
    change(store)
    # What was overwritten or removed since has no value any more.
    assert seen(store.changes(0)) == [(kind, group, key, None, revision) for kind, group, key, _, revision in EXPECTED]
    store.set("g", "a", "new", ttl_ms=5)
    store.set("g", "b", b"2")
    assert seen(store.changes(5)) == [(SET, "g", "a", "new", 6), (SET, "g", "b", b"2", 7)]
    assert store.changes(7) == []
    assert [event.revision for event in store.changes(2, limit=2)] == [3, 4]
    with pytest.raises(InputError, match="limit 0 is out of range"):
        store.changes(0, limit=0)


@given(group=st.text(min_size=1), key=st.text(), expires=st.one_of(st.none(), st.integers(0, 2**62)))
def test_one_change_is_written_as_many_are(group: str, key: str, expires: int | None) -> None:
    assert _log._encode_one(0, group, expires, [key]) == _log._encode([(0, group, expires, [key])])


def test_a_resumed_watch_misses_nothing(store: GroupStore) -> None:
    change(store)
    with store.watch(since=2) as watch:
        assert [event.revision for event in taken(watch)] == [3, 4, 5]
        assert watch.revision == 5
        store.set("g", "new", "v")
        store.set("h", "new", "v")
        assert seen(taken(watch)) == [(SET, "g", "new", "v", 6), (SET, "h", "new", "v", 7)]
        assert (watch.dropped, watch.revision) == (0, 7)
    with store.watch("h", since=5) as watch:
        assert [event.revision for event in taken(watch)] == [7]


def test_a_resumed_watch_says_how_far_it_was_read(store: GroupStore) -> None:
    store.set_many("g", {str(number): "v" for number in range(5)})
    with store.watch(since=0) as watch:
        for expected in (1, 2, 3):
            watch.next(0)
            assert watch.revision == expected


def test_the_log_is_bounded_and_its_gaps_are_told(path: Path, clock: Clock) -> None:
    with GroupStore(path, clock=clock, keep_changes=16) as store:
        slow = store.watch(since=0)
        for number in range(100):
            store.set("g", str(number), "v")
        with pytest.raises(RevisionGapError, match="no changes since revision 3 are at hand") as caught:
            store.changes(3)
        error = caught.value
        assert (error.since, error.newest) == (3, 100)
        assert 80 <= error.oldest <= 84
        assert [event.revision for event in store.changes(error.oldest)] == list(range(error.oldest + 1, 101))
        with pytest.raises(RevisionGapError):
            store.watch(since=error.oldest - 1)
        found = taken(slow)
        assert (found[0].kind, found[0].missed, found[0].revision) == (GAP, error.oldest, error.oldest)
        assert [event.revision for event in found[1:]] == list(range(error.oldest + 1, 101))
        assert slow.dropped == error.oldest
        store.set_many("g", {str(number): "w" for number in range(1000)})
        assert [event.revision for event in store.changes(1084)] == list(range(1085, 1101))
        with pytest.raises(RevisionGapError):
            store.changes(1000)
        assert store.check() == []


def test_a_revision_that_never_was(store: GroupStore) -> None:
    store.set("g", "k", "v")
    with pytest.raises(RevisionGapError, match="those since 0 to 1 are"):
        store.changes(2)
    with pytest.raises(RevisionGapError):
        store.watch(since=-1)


def test_revisions_go_on_after_the_store_was_closed(path: Path) -> None:
    with GroupStore(path) as store:
        store.set_many("g", {"a": "1", "b": "2"})
        store.delete_group("g")
    with GroupStore(path) as store, store.watch(since=1) as watch:
        assert store.set("g", "c", "3") == 4
        assert [(event.kind, event.revision) for event in taken(watch)] == [(SET, 2), (DELETE_GROUP, 3), (SET, 4)]


def test_large_batches_take_several_records(store: GroupStore, path: Path) -> None:
    store.set_many("g", {f"{number:04}": str(number) for number in reversed(range(2_500))})
    events = store.changes(0, limit=10_000)
    assert [(event.revision, event.key, event.value) for event in events] == [
        (number + 1, f"{number:04}", str(number)) for number in range(2_500)
    ], "in the order of the keys"
    assert [event.revision for event in store.changes(990, limit=20)] == list(range(991, 1011))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT last, size FROM changes").fetchall() == [(1000, 1000), (2000, 1000), (2500, 500)]
    connection.close()


def test_changes_of_another_process(store: GroupStore, path: Path) -> None:
    live, log = store.watch(), store.watch(since=0, poll_s=0.01)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for number in range(1, 4):
            print(f"k{number}", file=other.stdin, flush=True)
            assert other.stdout.readline() == "done\n"
            assert store.get("other", f"k{number}") == "v", "reads see it at once"
            event = log.next(10)
            assert event is not None
            assert (event.key, event.revision) == (f"k{number}", number)
        other.stdin.close()
    assert store.set("g", "k", "v") == 4, "the count goes over all processes"
    assert [event.revision for event in taken(live)] == [4], "a watch without a revision hears of its own store only"


def test_callbacks_may_do_what_they_like(store: GroupStore) -> None:
    seen_keys: list[str] = []
    threads: set[int] = set()

    def first(event: Event) -> None:
        threads.add(threading.get_ident())
        seen_keys.append(event.key)
        assert store.get(event.group, event.key) == event.value, "after the commit"
        if event.key == "a":
            store.set("g", "from the callback", "v")
            remove_second()
            removers.append(store.on_change(third))

    def second(event: Event) -> None:
        seen_keys.append(f"second {event.key}")

    def third(event: Event) -> None:
        seen_keys.append(f"third {event.key}")

    removers = [store.on_change(first)]
    remove_second = store.on_change(second)
    store.set("g", "a", "v")
    # The write in the callback was told to both; the call that was under way went on with those it had found.
    assert seen_keys == ["a", "from the callback", "second from the callback", "second a"]
    assert threads == {threading.get_ident()}
    seen_keys.clear()
    store.set("g", "b", "v")
    assert seen_keys == ["b", "third b"]
    for remove in [*removers, *removers]:
        remove()
    seen_keys.clear()
    store.set("g", "c", "v")
    assert seen_keys == []


def test_a_callback_that_fails_harms_nobody(store: GroupStore, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def fails(event: Event) -> None:
        raise LookupError(event.key)

    store.on_change(fails, "g")
    store.on_change(lambda event: heard.append(event.key))
    with caplog.at_level(logging.ERROR, logger="ringcast_groupstore"):
        assert store.set("g", "k", "v") == 1
    assert heard == ["k"]
    assert "event=change_callback.failed revision=1 error=k" in caplog.text
    assert "LookupError: k" in caplog.text, "with the traceback"
    caplog.clear()
    store.set("other", "k", "v")
    assert caplog.text == ""


def test_events_come_in_the_order_of_their_revisions(store: GroupStore) -> None:
    """With eight threads that write at once."""
    with store.watch(capacity=10_000) as watch:

        def write(number: int) -> None:
            for index in range(50):
                store.set("g", f"{number}-{index}", "v")

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [event.revision for event in taken(watch)] == list(range(1, 401))


def test_settings_have_a_range(store: GroupStore) -> None:
    with pytest.raises(InputError, match="capacity 0 is out of range"):
        store.watch(capacity=0)
    with pytest.raises(InputError, match="poll_s 0 is out of range"):
        store.watch(since=0, poll_s=0)


def test_events_come_after_the_commit_only(store: GroupStore) -> None:
    with store.watch() as watch:
        with store.transaction() as tx:
            tx.set("g", "a", "1")
            tx.delete("g", "a")
            tx.set("h", "b", "2")
            assert watch.next(0) is None
            assert store.revision == 0
        assert seen(taken(watch)) == [(SET, "g", "a", "1", 1), (DELETE, "g", "a", None, 2), (SET, "h", "b", "2", 3)]

        def fails() -> None:
            with store.transaction() as tx:
                tx.set("g", "a", "1")
                raise LookupError

        with pytest.raises(LookupError):
            fails()
        assert taken(watch) == []
        assert store.revision == 3


def test_a_watch_that_begins_inside_a_transaction(store: GroupStore) -> None:
    """It hears of the next commit; what it may have of this one is no more than what it asked for."""
    with store.transaction() as tx:
        tx.set("g", "a", "1")
        watch: LiveWatch = store.watch()
        tx.set("g", "b", "1")
    store.set("g", "c", "1")
    assert [event.key for event in taken(watch)] == ["c"]
