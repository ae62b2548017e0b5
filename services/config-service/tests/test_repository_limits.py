"""The limits of a whole store: exact, whoever writes, and whatever becomes of its rows, keys and partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from ringcast_config_service.repository import (
    Bundle,
    Chain,
    Deletion,
    PlainWrites,
    PolicyChange,
    Repository,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
    make_repository,
)
from ringcast_config_service.repository.postgres import settling
from ringcast_core import row_partitions
from ringcast_wire import LimitExceededError, RingcastError, StorePolicy, UnavailableError

Bench = Any  # of conftest.py
T = TypeVar("T")


@pytest.fixture
def limited(any_bench: Bench) -> Bench:
    return any_bench


@pytest.fixture
async def instances(limited: Bench) -> AsyncIterator[Sequence[Repository]]:
    """Two repositories over the same database."""
    second = make_repository(limited.address)
    await second.open()
    yield (limited.repo, second)
    await second.close()


TRIED_AGAIN = ("is locked by another process", "nothing was written, try again")


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What a call returns; as a client does, it is tried again while another instance has SQLite's file locked, or has
    had a lock of PostgreSQL for longer than the lock time-out, or was in the way of each attempt."""
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if not any(said in str(error) for said in TRIED_AGAIN):
                raise


async def outcome_of(repository: Repository, request: WriteRequest) -> WriteOutcome | Exception:
    """What becomes of a write."""
    (outcome,) = (await patiently(lambda: repository.writer.write([request], 1))).outcomes
    return outcome


async def allow(bench: Bench, *lift: str, **limits: Any) -> None:
    change = PolicyChange(StorePolicy(**limits), frozenset(lift))
    await patiently(lambda: bench.repo.policies.set_policy("s", change))


async def use_of(bench: Bench) -> tuple[int, int]:
    """Rows and bytes of the store by the counts of its heads, and by its rows, which are the same."""
    info = await bench.repo.stores.get_store("s", include_deleted=True)
    live = {stats.name: await bench.live(stats.name) for stats in info.keys if stats.deletion is None}
    counted = {name: (len(rows), sum(map(len, [*rows, *rows.values()]))) for name, rows in live.items()}
    assert counted == {stats.name: (stats.rows, stats.bytes) for stats in info.keys if stats.deletion is None}
    return sum(stats.rows for stats in info.keys), sum(stats.bytes for stats in info.keys)


async def is_refused(bench: Bench, rows: dict[str, str | None], field: str, key: str = "k") -> str:
    with pytest.raises(LimitExceededError) as caught:
        await bench.write(rows, key)
    assert caught.value.field == field
    return str(caught.value)


async def test_the_last_row_that_fits_is_written_and_no_other(limited: Bench) -> None:
    await limited.write({"before": "1"})
    await allow(limited, max_rows=40)
    for number in range(39):
        await limited.write({f"r{number}": "1"})
    said = await is_refused(limited, {"one more": "1"}, "max_rows")
    assert said == "store 's' would have 41 rows, and its policy max_rows allows 40"
    await limited.write({f"r{number}": "another" for number in range(39)})
    await is_refused(limited, {"a": "1"}, "max_rows", "another key")
    await limited.write({"r7": None})
    await limited.write({"a": "1"}, "another key")
    await is_refused(limited, {"r7": "1"}, "max_rows")
    await limited.write({"r8": None, "r7": "1"})
    assert (await use_of(limited))[0] == 40


async def test_bytes_are_those_of_the_rows(limited: Bench) -> None:
    await allow(limited, max_bytes=100)
    await limited.write({"a": "x" * 49, "b": "x" * 49})
    said = await is_refused(limited, {"a": "x" * 50}, "max_bytes")
    assert said == "store 's' would have 101 bytes of live rows, and its policy max_bytes allows 100"
    await limited.write({"a": "x"})
    await limited.write({"c": "x" * 47})
    await is_refused(limited, {"d": ""}, "max_bytes")
    assert await use_of(limited) == (3, 100)


async def test_a_limit_below_what_is_there_only_stops_growth(limited: Bench) -> None:
    await limited.write({f"r{number}": "value" for number in range(20)})
    await allow(limited, max_rows=10)
    await is_refused(limited, {"new": "1"}, "max_rows")
    await limited.write({"r1": "changed", "r2": None})
    await is_refused(limited, {"r2": "1"}, "max_rows")
    grows, shrinks = await limited.group([limited.request({"new": "1"}), limited.request({"r3": None})])
    assert isinstance(grows, LimitExceededError)
    assert isinstance(shrinks, WriteOutcome)
    await limited.write({f"r{number}": None for number in range(12)})
    await limited.write({"new": "1"})
    assert (await use_of(limited))[0] == 9
    await limited.write({"r0": "1"})
    await is_refused(limited, {"r1": "1"}, "max_rows")
    await allow(limited, "max_rows")
    await limited.write({f"r{number}": "value" for number in range(100)})


async def test_what_a_partition_gives_up_is_for_all(limited: Bench) -> None:
    """Caps that were given in advance do not keep rows of other partitions out."""
    await allow(limited, max_rows=1_000)
    await limited.write({f"r{number}": "1" for number in range(400)})
    await limited.write({f"r{number}": None for number in range(400)})
    for start in range(0, 1_000, 50):
        await limited.write({f"n{number}": "1" for number in range(start, start + 50)}, f"k{start % 3}")
    await is_refused(limited, {"one more": "1"}, "max_rows")
    assert (await use_of(limited))[0] == 1_000


async def test_plain_columns_count_as_well(limited: Bench) -> None:
    """The fast way for new rows, of PostgreSQL."""
    await limited.write({"first": "1"})
    await allow(limited, max_rows=700, max_bytes=1_000_000)

    def batch(start: int, count: int) -> WriteRequest:
        ids = [f"r{number}" for number in range(start, start + count)]
        size = limited.store.partition_count
        rows = PlainWrites(row_partitions(ids, size), ids, ["v"] * count, [len(row) + 1 for row in ids])
        return WriteRequest(limited.store, "k", rows)

    for start in (0, 300):
        (outcome,) = await limited.group([batch(start, 300)])
        assert isinstance(outcome, WriteOutcome)
    first, second, third = await limited.group([batch(600, 99), batch(800, 1), batch(0, 300)])
    assert isinstance(first, WriteOutcome)
    assert isinstance(third, WriteOutcome)
    assert isinstance(second, LimitExceededError)
    assert (await use_of(limited))[0] == 700


async def test_a_refused_request_leaves_room_to_the_others(limited: Bench) -> None:
    await allow(limited, max_rows=5)
    await limited.write({"a": "1", "b": "1", "c": "1"})
    chain, bundle = Chain(), Bundle()
    requests = [
        limited.request({"d": "1", "e": "1", "f": "1"}),
        limited.request({"d": "1"}),
        replace(limited.request({"x": "1"}, "k2"), bundle=bundle),
        replace(limited.request({"y": "1"}, "k3"), bundle=bundle),
        replace(limited.request({"a": None}), chain=chain),
        replace(limited.request({"e": "1", "f": "1"}), chain=chain),
        replace(limited.request({"g": "1"}), chain=chain),
    ]
    outcomes = await limited.group(requests)
    done = [isinstance(outcome, WriteOutcome) for outcome in outcomes]
    assert done == [False, True, False, False, True, True, False]
    assert (await use_of(limited))[0] == 5
    assert [stats.name for stats in (await limited.repo.stores.get_store("s")).keys] == ["k"]


async def test_keys_that_are_deleted_count_until_they_are_purged(limited: Bench) -> None:
    await allow(limited, max_rows=10)
    await limited.write({f"r{number}": "1" for number in range(6)})
    await limited.write({f"r{number}": "1" for number in range(4)}, "gone")
    await limited.repo.deletions.delete_key("s", "gone", Deletion(1, 1 << 50))
    await is_refused(limited, {"one more": "1"}, "max_rows")
    await limited.repo.deletions.restore_key("s", "gone", 2)
    assert (await use_of(limited))[0] == 10
    await limited.repo.deletions.delete_key("s", "gone", Deletion(1, 0))
    while await limited.repo.deletions.purge_rows("s", "gone"):
        pass
    await limited.repo.deletions.drop_key("s", "gone")
    await limited.write({f"n{number}": "1" for number in range(4)})
    await is_refused(limited, {"one more": "1"}, "max_rows")
    await limited.repo.histories.new_history("s")
    await limited.pass_time(100_000)
    await limited.write({"n0": None})
    await limited.pass_time(100_000)
    await limited.repo.maintenance.compact(await limited.lead(), 10, 10)
    await limited.write({"n1": "2", "m": "1"})
    await is_refused(limited, {"one more": "1"}, "max_rows")


async def test_a_purged_store_leaves_no_limits_behind(limited: Bench, new_store: Callable[..., StoreRecord]) -> None:
    await allow(limited, max_rows=1, max_keys=1)
    await limited.write({"a": "1"})
    await limited.repo.deletions.delete_store("s", Deletion(1, 0))
    while await limited.repo.deletions.purge_rows("s", None):
        pass
    await limited.repo.deletions.drop_store("s")
    again = await limited.repo.stores.create_store(new_store("s", partition_count=limited.store.partition_count))
    assert again.policy == StorePolicy()
    for key in ("k", "k2"):
        (outcome,) = await limited.group([limited.request({"a": "1", "b": "1"}, key, again)])
        assert isinstance(outcome, WriteOutcome)


async def test_max_keys(limited: Bench) -> None:
    await limited.write({"a": "1"})
    await allow(limited, max_keys=2)
    await limited.write({"a": "1"}, "k2")
    said = await is_refused(limited, {"a": "1"}, "max_keys", "k3")
    assert said == "store 's' has 2 config keys, and its policy max_keys allows 2: 'k3' can't be added"
    await limited.repo.deletions.delete_key("s", "k2", Deletion(1, 1 << 50))
    await limited.write({"a": "1"}, "k3")
    with pytest.raises(LimitExceededError, match="max_keys allows 2"):
        await limited.repo.deletions.restore_key("s", "k2", 2)


async def test_a_policy_that_is_not_named_stays(limited: Bench) -> None:
    await allow(limited, max_rows=5, max_keys=3)
    await allow(limited, "max_keys", max_bytes=70, max_row_bytes=9)
    record = await limited.repo.stores.get_record("s")
    assert record.policy == StorePolicy(max_rows=5, max_bytes=70, max_row_bytes=9)
    assert [store.policy for store in await limited.repo.stores.store_records()] == [record.policy]


@pytest.mark.parametrize("seed", range(3))
async def test_two_instances_fill_a_store_to_the_last_row(
    limited: Bench, instances: Sequence[Repository], seed: int
) -> None:
    """Six writers insert and delete at random, and count what they were told: the rows never pass the limit, a refusal
    was right at some moment of its call, and in the end exactly as many rows fit as there is room for."""
    draw = random.Random(seed)
    most = draw.choice([30, 300])
    await limited.write({"first": "1"})
    await allow(limited, max_rows=most)
    counts: list[int] = []

    async def look() -> None:
        while True:
            info = await instances[1].stores.get_store("s", include_deleted=True)
            counts.append(sum(stats.rows for stats in info.keys))
            await asyncio.sleep(0)

    async def work(number: int) -> None:
        mine: list[str] = []
        own = random.Random(seed * 100 + number)
        for turn in range(25):
            if own.random() < 0.3 and mine:
                rows: dict[str, str | None] = dict.fromkeys(own.sample(mine, min(len(mine), own.randint(1, 20))))
            else:
                rows = {f"w{number}.{turn}.{row}": "1" for row in range(own.choice([1, 2, 40]))}
            key = f"k{own.randrange(3)}" if turn % 5 == 0 else "k"
            request = limited.request(rows, key)
            if all(value is None for value in rows.values()):
                request = limited.request(rows, "k")
            outcome = await outcome_of(instances[number % 2], request)
            if isinstance(outcome, RingcastError):
                assert isinstance(outcome, LimitExceededError), outcome
            elif request.key == "k":
                mine = [row for row in mine if row not in rows] + [row for row, value in rows.items() if value]

    looking = asyncio.create_task(look())
    await asyncio.gather(*(work(number) for number in range(6)))
    looking.cancel()
    assert max(counts) <= most, f"seed {seed}"
    room = most - (await use_of(limited))[0]
    results = await asyncio.gather(
        *(outcome_of(instances[n % 2], limited.request({f"last{n}": "1"}, f"k{n % 3}")) for n in range(room + 7))
    )
    written = sum(isinstance(found, WriteOutcome) for found in results)
    assert (written, (await use_of(limited))[0]) == (room, most), f"seed {seed}"


async def test_a_limit_that_is_set_beside_writers(limited: Bench, instances: Sequence[Repository]) -> None:
    """From the moment at which it is set nothing grows over it, in new keys and partitions neither."""
    for turn in range(3):
        most = 50 * (turn + 1)
        await allow(limited, "max_rows")

        async def work(number: int, turn: int = turn) -> None:
            for row in range(40):
                rows = {f"{turn}.{number}.{row}": "1"}
                request = limited.request(rows, f"k{row % 4}" if number % 2 else f"n{turn}.{row % 7}")
                await outcome_of(instances[number % 2], request)

        writers = asyncio.gather(*(work(number) for number in range(4)))
        await asyncio.sleep(0)
        await allow(limited, max_rows=most)
        at_first = (await instances[1].stores.get_store("s", include_deleted=True)).keys
        await writers
        assert (await use_of(limited))[0] <= max(most, sum(stats.rows for stats in at_first))


async def test_counts_that_are_wrong_are_set_right(limited: Bench) -> None:
    """Whatever was done, they are right; where somebody changed the tables they are found and set right."""
    repo = limited.repo
    await limited.write({f"r{number}": "1" for number in range(100)})
    await limited.write({f"r{number}": "1" for number in range(9)}, "deleted")
    await limited.write({f"r{number}": None for number in range(50)})
    await limited.pass_time(1_000_000)
    lead = await limited.lead()
    await repo.maintenance.compact(lead, 10, 10)
    await repo.histories.new_history("s")
    await repo.deletions.delete_key("s", "deleted", Deletion(1, 1 << 50))
    await allow(limited, max_rows=100)
    assert [found async for found in repo.maintenance.check_counts(lead)] == []
    of_key = "key_id = (SELECT key_id FROM config_keys WHERE name = 'k')"
    await limited.execute(
        f"UPDATE partitions SET live_rows = live_rows + 30 WHERE partition = 0 AND {of_key}",
        f"UPDATE partitions SET live_bytes = live_bytes - 1 WHERE partition = 1 AND {of_key}",
    )
    await limited.execute("UPDATE maintenance SET done_ms = 0 WHERE duty = 'counts'")
    wrong = [found async for found in repo.maintenance.check_counts(lead, every_ms=60_000)]
    assert [tuple(found) for found in wrong] == [("s", "k", 0), ("s", "k", 1)]
    assert (await repo.stores.get_store("s")).keys[0].rows == 50
    second = make_repository(limited.address)
    await second.open()
    lead = await limited.lead(second)
    assert [found async for found in second.maintenance.check_counts(lead)] == []
    await limited.execute(f"UPDATE partitions SET live_rows = 0 WHERE partition = 0 AND {of_key}")
    assert [found async for found in second.maintenance.check_counts(lead, every_ms=60_000)] == []  # not long ago
    assert [found.partition async for found in second.maintenance.check_counts(lead)] == [0]
    await second.close()
    for number in range(41):
        await limited.write({f"n{number}": "1"})
    await is_refused(limited, {"one more": "1"}, "max_rows")


async def test_an_older_database_gets_policies(bench: Bench) -> None:
    await bench.write({"a": "1", "b": "1"})
    await bench.repo.close()
    await bench.make_older(5)
    bench.repo = make_repository(bench.address)
    await bench.repo.open()
    await bench.write({"c": "1"})
    await allow(bench, max_rows=4)
    await bench.write({"d": "1"})
    await is_refused(bench, {"e": "1"}, "max_rows")


async def test_writes_within_their_caps_look_at_nothing_else(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no row that every write locks: the budget is looked at once for many rows."""
    looks: list[str] = []
    look = settling._look

    async def counted(db: Any, wanted: Any) -> Any:
        looks.append(wanted.store)
        return await look(db, wanted)

    monkeypatch.setattr(settling, "_look", counted)
    await allow(postgres_bench, max_rows=100_000, max_bytes=1 << 40)
    for number in range(10 * postgres_bench.store.partition_count):
        await postgres_bench.write({f"r{number}": "1"})
    assert 1 <= len(looks) <= postgres_bench.store.partition_count
    await postgres_bench.write({f"r{number}": "2" for number in range(300)})
    assert len(looks) <= postgres_bench.store.partition_count
