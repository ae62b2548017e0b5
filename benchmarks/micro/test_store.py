"""The embedded store beside diskcache and bare sqlite3, in the same run, on files of their own in one directory.

All three write with `synchronous = NORMAL` and a write-ahead log, which is what diskcache does by default. The store
has a change log and revisions to keep besides; the bare table has only the rows, in the same shape: a floor, no rival.
The best of many short alternating rounds counts for each. With timing disabled each verb runs once.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diskcache
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_groupstore import GroupStore

ROWS = 10_000
"""In each of the three, before anything is measured."""
BATCH = 1_000
"""Keys that are written or purged together."""
ROUND = 200
"""Keys that a round reads or writes one by one: it is to fit between the work of others, most of the time."""
ROUNDS = 60
VALUE = "v" * 100
PUT = """
    INSERT INTO entries VALUES (?, ?, ?, ?)
    ON CONFLICT (group_name, entry_key) DO UPDATE
    SET entry_value = excluded.entry_value, expires_at = excluded.expires_at
    """


class Bare:
    """The same rows with nothing but sqlite3."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = NORMAL")
        self.connection.execute(
            "CREATE TABLE entries (group_name TEXT NOT NULL, entry_key TEXT NOT NULL, entry_value, expires_at INTEGER, "
            "PRIMARY KEY (group_name, entry_key)) WITHOUT ROWID"
        )
        self.connection.execute("CREATE INDEX by_expiry ON entries (expires_at) WHERE expires_at IS NOT NULL")

    def set_many(self, group: str, values: dict[str, str], expires_at: int | None = None) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(PUT, [(group, key, value, expires_at) for key, value in values.items()])
        self.connection.execute("COMMIT")


class Three:
    """The store and its peers, each with the same rows in group ``g``."""

    def __init__(self, directory: Path, rows: int) -> None:
        self.rows = rows
        keys = [f"user{number}@example{number % 97}.com" for number in range(rows)]
        self.keys = keys[:: max(1, rows // ROUND)]
        self.values = dict.fromkeys(keys[:: max(1, rows // BATCH)], VALUE)
        self.groups = (f"group{number}" for number in itertools.count())
        self.ahead_ms = 0
        """By how much the clock of the store is ahead."""
        self.store = GroupStore(
            directory / "store.db",
            durable=False,
            purge_interval_s=None,
            clock=lambda: time.time_ns() // 1_000_000 + self.ahead_ms,
        )
        # Without eviction, which would purge while it writes.
        self.cache = diskcache.Cache(str(directory / "cache"), eviction_policy="none", cull_limit=0)
        self.bare = Bare(directory / "bare.db")
        self.store.set_many("g", dict.fromkeys(keys, VALUE))
        self.bare.set_many("g", dict.fromkeys(keys, VALUE))
        self.cache_many(dict.fromkeys(keys, VALUE))

    def cache_many(self, values: dict[str, str], prefix: str = "", expire: float | None = None) -> None:
        """diskcache's way to write a batch."""
        with self.cache.transact():
            for key, value in values.items():
                self.cache.set(prefix + key, value, expire=expire)

    def close(self) -> None:
        self.store.close()
        self.cache.close()
        self.bare.connection.close()


@pytest.fixture
def three(tmp_path: Path, benchmark: BenchmarkFixture) -> Iterator[Three]:
    three = Three(tmp_path, ROWS if benchmark.enabled else 100)
    yield three
    three.close()


Call = Callable[[], object]


def beside(
    benchmark: Any, items: int, what: str, calls: tuple[Call, Call, Call], prepare: tuple[Call, ...] = ()
) -> None:
    """Times the store, diskcache and sqlite3 in turn; ``prepare`` is what each needs before, untimed."""
    names = ("store", "diskcache", "sqlite3")
    best = dict.fromkeys(names, float("inf"))

    def round_of(index: int) -> None:
        if prepare:
            prepare[index]()
        start = time.perf_counter()
        calls[index]()
        best[names[index]] = min(best[names[index]], time.perf_counter() - start)

    rounds = ROUNDS if benchmark.enabled else 1
    for _ in range(rounds):
        for index in range(3):
            round_of(index)
    benchmark.group = "store"
    benchmark.pedantic(calls[0], setup=(lambda: prepare[0]()) if prepare else None, rounds=rounds)
    microseconds = {name: seconds / items * 1e6 for name, seconds in best.items()}
    benchmark.extra_info.update(
        us_each=round(microseconds["store"], 2),
        diskcache_us_each=round(microseconds["diskcache"], 2),
        sqlite3_us_each=round(microseconds["sqlite3"], 2),
        diskcache_over_ours=round(best["diskcache"] / best["store"], 2),
        ours_over_sqlite3=round(best["store"] / best["sqlite3"], 2),
    )
    if benchmark.enabled:
        print(f"\n{what}: {benchmark.extra_info}")


def test_get(benchmark: BenchmarkFixture, three: Three) -> None:
    get = "SELECT entry_value, expires_at FROM entries WHERE group_name = ? AND entry_key = ?"
    beside(
        benchmark,
        len(three.keys),
        "get",
        (
            lambda: [three.store.get("g", key) for key in three.keys],
            lambda: [three.cache.get(key) for key in three.keys],
            lambda: [three.bare.connection.execute(get, ("g", key)).fetchone() for key in three.keys],
        ),
    )
    assert three.store.get("g", three.keys[-1]) == three.cache.get(three.keys[-1]) == VALUE


def test_set(benchmark: BenchmarkFixture, three: Three) -> None:
    """One transaction each; the keys are there already, the values are new: SQLite skips pages that stay the same."""
    values = (f"{number:0100}" for number in itertools.count())

    def ours() -> None:
        value = next(values)
        for key in three.keys:
            three.store.set("g", key, value)

    def cache() -> None:
        value = next(values)
        for key in three.keys:
            three.cache.set(key, value)

    def bare() -> None:
        value = next(values)
        for key in three.keys:
            three.bare.connection.execute(PUT, ("g", key, value, None))

    beside(benchmark, len(three.keys), "set", (ours, cache, bare))
    assert three.store.revision >= three.rows + len(three.keys)


def test_batch_set(benchmark: BenchmarkFixture, three: Three) -> None:
    """New keys, in one transaction."""
    beside(
        benchmark,
        len(three.values),
        "batch set",
        (
            lambda: three.store.set_many(next(three.groups), three.values),
            lambda: three.cache_many(three.values, next(three.groups)),
            lambda: three.bare.set_many(next(three.groups), three.values),
        ),
    )
    assert three.store.count_all("group") % len(three.values) == 0


def test_iterate(benchmark: BenchmarkFixture, three: Three) -> None:
    """Keys with their values, in the order of the keys."""
    every = "SELECT entry_key, entry_value FROM entries WHERE group_name = ? ORDER BY entry_key"
    beside(
        benchmark,
        three.rows,
        "iterate",
        (
            lambda: sum(1 for _ in three.store.items("g")),
            lambda: sum(1 for _ in ((key, three.cache[key]) for key in three.cache.iterkeys())),
            lambda: sum(1 for _ in three.bare.connection.execute(every, ("g",))),
        ),
    )
    assert sum(1 for _ in three.store.items("g")) == sum(1 for _ in three.cache) == three.rows


def test_iterate_keys(benchmark: BenchmarkFixture, three: Three) -> None:
    """Keys alone, in order."""
    every = "SELECT entry_key FROM entries WHERE group_name = ? ORDER BY entry_key"
    beside(
        benchmark,
        three.rows,
        "iterate keys",
        (
            lambda: sum(1 for _ in three.store.keys("g")),
            lambda: sum(1 for _ in three.cache.iterkeys()),
            lambda: sum(1 for _ in three.bare.connection.execute(every, ("g",))),
        ),
    )


def test_purge(benchmark: BenchmarkFixture, three: Three) -> None:
    """Of as many keys as there are besides, all expired."""
    later = time.time() + 3600
    drop = "DELETE FROM entries WHERE expires_at <= ?"
    purged: list[int] = []

    def prepare() -> None:
        three.ahead_ms = 0
        three.store.set_many("expired", three.values, ttl_ms=1_000)
        three.ahead_ms = 1_000

    def prepare_cache() -> None:
        three.cache_many(three.values, "expired", 1)

    beside(
        benchmark,
        len(three.values),
        "purge",
        (
            lambda: purged.append(three.store.purge_expired()),
            lambda: purged.append(three.cache.expire(now=later)),
            lambda: purged.append(three.bare.connection.execute(drop, (1,)).rowcount),
        ),
        (prepare, prepare_cache, lambda: three.bare.set_many("expired", three.values, 1)),
    )
    assert set(purged) == {len(three.values)}
    assert three.store.count_all() == len(three.cache) == three.rows
