"""What every system of record must do, run over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from ringcast_config_service.repository import (
    Chain,
    HistoryFilter,
    ListFilter,
    Repository,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
    make_repository,
)
from ringcast_testkit import PATIENCE_S
from ringcast_testkit.rows import partition_of, same_partition
from ringcast_wire import (
    AlreadyExistsError,
    InvalidInputError,
    LimitExceededError,
    RingcastError,
    StoreSettings,
    Strategy,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    decode_fetch_reply,
    limits,
)

Bench = Any  # of conftest.py


async def read(bench: Bench, partition: int, since: int | None = None) -> Any:
    history = (await bench.repo.reader.heads("s", "k")).history
    (found,) = decode_fetch_reply(
        await bench.repo.reader.read_partition("s", "k", partition, since, history)
    ).partitions
    return found


# --- Stores -----------------------------------------------------------------------------------------------------------


async def test_creating_a_store_again(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    first = (await bench.repo.stores.get_store("s")).record
    assert await bench.repo.stores.create_store(new_store()) == first
    with pytest.raises(AlreadyExistsError, match=r"'s' exists with partition_count 8: .* with partition_count 9"):
        await bench.repo.stores.create_store(new_store(partition_count=9))
    with pytest.raises(AlreadyExistsError, match="inline_max_bytes 256"):
        await bench.repo.stores.create_store(new_store(inline_max_bytes=0))
    assert (await bench.repo.stores.get_store("s")).record == first
    with pytest.raises(UnknownStoreError, match="'none'"):
        await bench.repo.stores.get_store("none")


async def test_the_times_of_exclusive_ownership_are_kept(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    times = StoreSettings(partition_count=8, strategy=Strategy.STICKY, lease_ttl_ms=4_000, call_bound_ms=200)
    wanted = replace(new_store("owned"), settings=times)
    await bench.repo.stores.create_store(wanted)
    assert await bench.repo.stores.create_store(replace(wanted, created_at_ms=1)) == wanted
    other = replace(wanted, settings=msgspec.structs.replace(times, lease_ttl_ms=4_001))
    with pytest.raises(AlreadyExistsError, match=r"exists with lease_ttl_ms 4000: .* with lease_ttl_ms 4001"):
        await bench.repo.stores.create_store(other)
    assert (await bench.repo.stores.get_store("owned")).record.settings == times
    assert (await bench.repo.stores.get_record("owned")).settings == times
    assert {each.record.name: each.record.settings.lease_ttl_ms for each in await bench.repo.stores.list_stores()} == {
        "owned": 4_000,
        "s": None,
    }


async def test_racing_creators_agree(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    wanted = [new_store("race", partition_count=count) for count in (4, 5, 4, 5, 4, 5)]
    results = await asyncio.gather(
        *(bench.repo.stores.create_store(record) for record in wanted), return_exceptions=True
    )
    created = {result.partition_count for result in results if isinstance(result, StoreRecord)}
    assert len(created) == 1
    assert sum(isinstance(result, AlreadyExistsError) for result in results) == 3


async def test_stores_without_their_keys(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    await bench.repo.stores.create_store(new_store("a"))
    await bench.write({"x": "1"})
    assert await bench.repo.stores.store_records() == [info.record for info in await bench.repo.stores.list_stores()]
    assert [record.name for record in await bench.repo.stores.store_records()] == ["a", "s"]


async def test_store_limit(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    for number in range(limits.MAX_STORES - 1):
        await bench.repo.stores.create_store(new_store(f"x{number}"))
    with pytest.raises(LimitExceededError, match="there are 50 stores, the limit is 50"):
        await bench.repo.stores.create_store(new_store("one-more"))
    assert len(await bench.repo.stores.list_stores()) == limits.MAX_STORES


async def test_two_instances_create_the_tables_at_once(database: str) -> None:
    repos: list[Repository] = [make_repository(database) for _ in range(6)]
    await asyncio.gather(*(repo.open() for repo in repos))
    assert [await repo.stores.list_stores() for repo in repos] == [[]] * 6
    for repo in repos:
        await repo.close()


# --- Revisions --------------------------------------------------------------------------------------------------------


async def test_a_write_of_n_rows_takes_n_revisions(bench: Bench) -> None:
    first, second, third = same_partition(3)
    assert (await bench.write({first: "a", second: "b"})).versions == [1, 2]
    assert (await bench.write({third: "c", first: "A"})).versions == [3, 4]
    found = await read(bench, 3)
    assert (found.revision, found.whole) == (4, True)
    assert {row.row_id: (row.value, row.version) for row in found.rows} == {
        first: ("A", 4),
        second: ("b", 2),
        third: ("c", 3),
    }
    assert (await bench.repo.reader.heads("s", "k")).heads == [0, 0, 0, 4, 0, 0, 0, 0]
    await bench.check_gap_free()


async def test_deleting(bench: Bench) -> None:
    row, other = same_partition(2)
    await bench.write({row: "a"})
    assert await bench.write({row: None, other: None}) == WriteOutcome(0, 1, 1, [2, 0])
    assert await bench.write({row: None}) == WriteOutcome(0, 0, 1, [0])
    whole, since = await read(bench, 3), await read(bench, 3, 1)
    assert (whole.revision, whole.rows) == (2, [])
    assert (since.whole, [(found.row_id, found.version, found.deleted, found.value) for found in since.rows]) == (
        False,
        [(row, 2, True, "")],
    )
    assert await bench.write({row: "again"}) == WriteOutcome(1, 0, 0, [3])
    assert [found.value for found in (await read(bench, 3)).rows] == ["again"]
    await bench.check_gap_free()


async def test_since_says_what_changed(bench: Bench) -> None:
    a, b, c = same_partition(3)
    await bench.write({a: "1", b: "1"})
    await bench.write({c: "1"})
    await bench.write({a: "2"})
    found = await read(bench, 3, 2)
    assert (found.revision, found.whole, [(row.row_id, row.version) for row in found.rows]) == (
        4,
        False,
        [(c, 3), (a, 4)],
    )
    assert (await read(bench, 3, 4)).rows == []
    ahead = await read(bench, 3, 5)  # a worker that knows more than a restored database
    assert (ahead.whole, ahead.revision, len(ahead.rows)) == (True, 4, 3)
    assert (await read(bench, 0)).revision == 0
    assert (await read(bench, 0, 0)).whole is False


async def test_a_group_is_decided_in_order(bench: Bench) -> None:
    (row,) = same_partition(1)
    outcomes = await bench.group(
        [bench.request({row: "1"}), bench.request({row: None}), bench.request({row: None}), bench.request({row: "2"})]
    )
    assert [outcome.versions for outcome in outcomes] == [[1], [2], [0], [3]]
    ((subject, event),) = await bench.events()
    assert subject == "config.notify.s.k.3"
    assert (event.prev, event.rev, [(c.row_id, c.version, c.value) for c in event.changes]) == (0, 3, [(row, 3, "2")])
    assert [found.version for found in (await read(bench, 3)).rows] == [3]


async def test_a_refused_request_of_a_group_leaves_the_others_alone(
    bench: Bench, new_store: Callable[..., StoreRecord]
) -> None:
    chain = Chain()
    unknown = WriteRequest(new_store("gone"), "k", bench.request({"a": "1"}).rows, chain)
    after = WriteRequest(bench.store, "k", bench.request({"b": "1"}).rows, chain)
    outcomes = await bench.group([bench.request({"a": "1"}), unknown, after, bench.request({"c": None}, key="nokey")])
    assert isinstance(outcomes[0], WriteOutcome)
    assert [type(outcome) for outcome in outcomes[1:]] == [UnknownStoreError, UnavailableError, UnknownKeyError]
    assert await bench.live() == {"a": "1"}
    assert [key.name for key in (await bench.repo.stores.get_store("s")).keys] == ["k"]


async def test_metadata_and_awkward_text(bench: Bench) -> None:
    row = "smörgås\u2028🐟' OR 1=1 --"
    await bench.write({row: 'välue\n\t"\\'}, metadata={"tenant": "é", "": "empty name"})
    (found,) = (await bench.repo.reader.read_rows("s", "k", [row])).partitions[0].rows
    assert (found.value, found.metadata) == ('välue\n\t"\\', {"tenant": "é", "": "empty name"})
    await bench.write({row: "plain"})
    (found,) = (await bench.repo.reader.read_rows("s", "k", [row])).partitions[0].rows
    assert found.metadata is None


# --- Reads ------------------------------------------------------------------------------------------------------------


async def test_reading_named_rows(bench: Bench) -> None:
    rows = {f"r{number}": str(number) for number in range(40)}
    await bench.write(rows)
    await bench.write({"r1": None})
    found = (await bench.repo.reader.read_rows("s", "k", ["r0", "r1", "absent", "r0"])).partitions
    assert [entry.partition for entry in found] == sorted({partition_of(row) for row in ("r0", "r1", "absent")})
    assert {row.row_id: row.deleted for entry in found for row in entry.rows} == {"r0": False, "r1": True}
    heads = (await bench.repo.reader.heads("s", "k")).heads
    assert all(entry.revision == heads[entry.partition] and not entry.whole for entry in found)


async def test_reading_a_whole_key(bench: Bench) -> None:
    rows: dict[str, str | None] = {f"r{number}": str(number) for number in range(40)}
    await bench.write(rows)
    await bench.write({"r1": None})
    found = decode_fetch_reply(await bench.repo.reader.read_full("s", "k")).partitions
    live = {row.row_id: row.value for entry in found for row in entry.rows}
    assert live == {row_id: value for row_id, value in rows.items() if row_id != "r1"}
    heads = (await bench.repo.reader.heads("s", "k")).heads
    assert [(entry.partition, entry.revision) for entry in found] == [(p, head) for p, head in enumerate(heads) if head]
    assert all(entry.whole for entry in found)


async def test_unknown_names(bench: Bench) -> None:
    await bench.write({"a": "1"})
    repo = bench.repo
    for store, key, error in (("none", "k", UnknownStoreError), ("s", "none", UnknownKeyError)):
        with pytest.raises(error):
            await repo.reader.read_partition(store, key, 0, None)
        with pytest.raises(error):
            await repo.reader.read_rows(store, key, ["a"])
        with pytest.raises(error):
            await repo.reader.read_full(store, key)
        with pytest.raises(error):
            await repo.reader.heads(store, key)
        with pytest.raises(error):
            await anext(repo.reader.list_rows(store, key, ListFilter()))
        with pytest.raises(error):
            await anext(repo.reader.history(store, key, HistoryFilter()))
    with pytest.raises(InvalidInputError, match="partitions 0 to 7"):
        await repo.reader.read_partition("s", "k", 8, None)
    with pytest.raises(InvalidInputError, match="partitions 0 to 7"):
        await anext(repo.reader.list_rows("s", "k", ListFilter(partition=8)))


async def test_listing_in_pages(bench: Bench) -> None:
    rows: dict[str, str | None] = {f"r{number:04}": str(number) for number in range(700)}
    await bench.write(rows)
    await bench.write({f"r{number:04}": None for number in range(0, 700, 7)})
    pages = [page async for page in bench.repo.reader.list_rows("s", "k", ListFilter())]
    assert len(pages) > 2
    flat = [found for page in pages for found in page]
    assert [(found.partition, found.row.row_id) for found in flat] == sorted(
        (partition_of(row), row) for row in rows if int(row[1:]) % 7
    )
    everything = [
        found
        async for page in bench.repo.reader.list_rows("s", "k", ListFilter(include_deleted=True))
        for found in page
    ]
    assert sum(found.row.deleted for found in everything) == 100
    for limit in (1, 63, 64, 65, 600, 601):
        listed = [f async for page in bench.repo.reader.list_rows("s", "k", ListFilter(limit=limit)) for f in page]
        assert len(listed) == min(limit, 600)
    (three,) = {
        f.partition async for page in bench.repo.reader.list_rows("s", "k", ListFilter(partition=3)) for f in page
    }
    assert three == 3


async def test_a_listing_is_one_snapshot_and_pages_stay_small(bench: Bench) -> None:
    await bench.write({f"r{number:03}": "x" * 60_000 for number in range(100)})
    async with aclosing(bench.repo.reader.list_rows("s", "k", ListFilter())) as pages:
        found = await anext(pages)
        await bench.write({f"r{number:03}": None for number in range(100)})
        async for page in pages:
            assert len(page) <= 20  # 1 MiB holds 17 of them
            found.extend(page)
    assert len(found) == 100
    assert await bench.live() == {}


async def test_an_abandoned_listing_frees_its_place(bench: Bench) -> None:
    await bench.write({f"r{number:03}": "x" for number in range(100)})
    for _ in range(20):  # more than there are places
        async with aclosing(bench.repo.reader.list_rows("s", "k", ListFilter())) as pages:
            await anext(pages)


async def test_history(bench: Bench) -> None:
    a, b = same_partition(2)
    await bench.write({a: "1", b: "1"}, metadata={"by": "x"})
    await bench.write({a: "2"})
    await bench.write({a: None})

    async def listed(**words: Any) -> list[tuple[str, int, bool, str]]:
        pages = bench.repo.reader.history("s", "k", HistoryFilter(**words))
        return [(r.row.row_id, r.row.version, r.row.deleted, r.row.value) async for page in pages for r in page]

    whole = [(a, 1, False, "1"), (b, 2, False, "1"), (a, 3, False, "2"), (a, 4, True, "")]
    assert await listed() == whole
    assert await listed(row_id=a, partition=3) == [entry for entry in whole if entry[0] == a]
    assert await listed(since=2) == whole[2:]
    assert await listed(limit=1) == whole[:1]
    assert await listed(partition=2) == []
    pages = bench.repo.reader.history("s", "k", HistoryFilter(previous=True))
    before = [(r.prev, r.previous and (r.previous.value, r.previous.metadata)) async for page in pages for r in page]
    assert before == [(0, None), (0, None), (1, ("1", {"by": "x"})), (3, ("2", None))]
    plain = [(r.prev, r.previous) async for page in bench.repo.reader.history("s", "k", HistoryFilter()) for r in page]
    assert plain == [(0, None), (0, None), (1, None), (3, None)]
    times = [r.written_at_ms async for page in bench.repo.reader.history("s", "k", HistoryFilter()) for r in page]
    assert times[0] == times[1]
    assert times == sorted(times)
    assert abs(times[0] - time.time() * 1000) < PATIENCE_S * 1000


# --- Events -----------------------------------------------------------------------------------------------------------


async def test_partition_limit_refuses_the_whole_request(bench: Bench) -> None:
    ids = same_partition(10)
    large = "x" * (limits.MAX_ROW_BYTES - 10)
    for row_id in ids[:7]:
        await bench.write({row_id: large})
    with pytest.raises(LimitExceededError, match=r"partition 3 of s/k would have 94\d+ bytes .* the limit is 8388608"):
        await bench.write({"elsewhere": "v", ids[7]: large, ids[8]: large})
    assert len(await bench.live()) == 7
    await bench.write({ids[0]: "small", ids[7]: large})  # frees and takes in one request
    await bench.check_gap_free()
    (stats,) = (await bench.repo.stores.get_store("s")).keys
    size = sum(map(len, ids[:8])) + 7 * len(large) + len("small")
    assert (stats.rows, stats.bytes) == (8, size)


async def test_key_limit(bench: Bench) -> None:
    for number in range(limits.MAX_KEYS_PER_STORE - 1):
        await bench.write({"a": "1"}, key=f"k{number}")
    outcomes = await bench.group([bench.request({"a": "1"}, key=key) for key in ("last", "over", "last", "k0")])
    assert [isinstance(outcome, RingcastError) for outcome in outcomes] == [False, True, False, False]
    with pytest.raises(LimitExceededError, match="has 100 config keys, the limit is 100: 'over'"):
        await bench.write({"a": "1"}, key="over")
    assert len((await bench.repo.stores.get_store("s")).keys) == limits.MAX_KEYS_PER_STORE


async def test_a_refused_first_write_creates_no_key(bench: Bench) -> None:
    large = "x" * (limits.MAX_ROW_BYTES - 10)
    with pytest.raises(LimitExceededError):
        await bench.write(dict.fromkeys(same_partition(9), large), key="fresh")
    assert (await bench.repo.stores.get_store("s")).keys == ()
    assert await bench.events() == []


async def test_sizes_follow_every_change(bench: Bench) -> None:
    """Live rows and bytes against a model, over random writes."""
    random_ = random.Random(7)
    model: dict[str, str] = {}
    for _ in range(60):
        rows: dict[str, str | None] = {
            f"r{random_.randrange(12)}": random_.choice([None, "v" * random_.randrange(30)]) for _ in range(4)
        }
        if not model and all(value is None for value in rows.values()):
            continue
        await bench.write(rows)
        for row_id, value in rows.items():
            model.pop(row_id, None)
            if value is not None:
                model[row_id] = value
    assert await bench.live() == model
    (stats,) = (await bench.repo.stores.get_store("s")).keys
    assert (stats.rows, stats.bytes) == (len(model), sum(len(r) + len(v) for r, v in model.items()))
    await bench.check_gap_free()


# --- Races ------------------------------------------------------------------------------------------------------------


async def test_racing_writers_of_two_instances(bench: Bench) -> None:
    """Revisions stay gap-free, each is given once, and every acknowledged write is there."""
    other = make_repository(bench.address)
    await other.open()
    acknowledged: dict[str, int] = {}

    async def writer(number: int, repo: Repository) -> None:
        for turn in range(12):
            rows = bench.request({f"w{number}-{turn}": "v", "hot": f"{number}.{turn}"})
            (outcome,) = (await repo.writer.write([rows], 1)).outcomes
            assert isinstance(outcome, WriteOutcome), outcome
            acknowledged[f"w{number}-{turn}"] = outcome.versions[0]

    try:
        await asyncio.gather(*(writer(number, (bench.repo, other)[number % 2]) for number in range(4)))
    finally:
        await other.close()
    live = await bench.live()
    assert set(live) == {*acknowledged, "hot"}
    assert len((await bench.repo.reader.heads("s", "k")).heads) == 8
    assert sum((await bench.repo.reader.heads("s", "k")).heads) == 2 * 4 * 12
    await bench.check_gap_free()
    rows = [f.row async for page in bench.repo.reader.list_rows("s", "k", ListFilter()) for f in page]
    assert {row.row_id: row.version for row in rows if row.row_id != "hot"} == acknowledged


async def test_readers_never_see_half_a_write(bench: Bench) -> None:
    """Each write gives two rows of one partition the same value: no reader may see them differ."""
    a, b = same_partition(2)
    await bench.write({a: "0", b: "0"})
    done = asyncio.Event()

    async def write() -> None:
        for number in range(1, 40):
            await bench.write({a: str(number), b: str(number)})
        done.set()

    async def watch() -> int:
        looks, last = 0, 0
        while not done.is_set():
            found = await read(bench, 3)
            values = {row.value for row in found.rows}
            assert len(values) == 1
            assert found.revision == 2 * (int(values.pop()) + 1)
            assert found.revision >= last
            looks, last = looks + 1, found.revision
        return looks

    _, *looks = await asyncio.gather(write(), watch(), watch())
    assert all(looks)
