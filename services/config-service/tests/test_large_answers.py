"""Answers of many rows: what is in them, what memory they take, and what they keep waiting."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ringcast_config_service.repository import HistoryFilter, LargeAnswerError, ListFilter, StoreRecord
from ringcast_config_service.repository.answers import KeyAnswer, PartitionAnswer, check_full_size
from ringcast_config_service.repository.sqlite.reader import SqliteReader
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S
from ringcast_wire import (
    InternalError,
    LimitExceededError,
    RevisionGoneError,
    Row,
    decode_fetch_reply,
    encode,
    limits,
)

Bench = Any  # of conftest.py

PARTITION = 5
ROWS = 2_600  # several pages
ALL_IDS = [found for number in range(60_000) if row_partition(found := f"{number:x}", 8) == PARTITION]
IDS = ALL_IDS[:ROWS]


@pytest.fixture
async def filled(any_bench: Bench) -> Bench:
    """A partition of many rows, some of them with metadata, some deleted, in each kind of database."""
    for first in range(0, ROWS, 1_000):
        await any_bench.write(dict.fromkeys(IDS[first : first + 1_000], ""))
    await any_bench.write(dict.fromkeys(IDS[10:20], "é\n\"'\\"), metadata={"a": "ü", "": "b"})
    await any_bench.write(dict.fromkeys(IDS[20:1_300]))
    return any_bench


async def read(bench: Bench, since: int | None = None, as_of: int | None = None, most_bytes: int = sys.maxsize) -> Any:
    history = (await bench.repo.reader.heads("s", "k")).history
    words = "s", "k", PARTITION, since, history, as_of, most_bytes
    (found,) = decode_fetch_reply(await bench.repo.reader.read_partition(*words)).partitions
    return found


async def listed(bench: Bench, *, include_deleted: bool = False) -> dict[str, Row]:
    query = ListFilter(include_deleted=include_deleted)
    return {
        found.row.row_id: found.row async for page in bench.repo.reader.list_rows("s", "k", query) for found in page
    }


def by_id(rows: Sequence[Row]) -> dict[str, Row]:
    found = {row.row_id: row for row in rows}
    assert len(found) == len(rows)
    return found


async def test_many_rows_are_all_there_whole_since_and_as_of(filled: Bench) -> None:
    head = ROWS + 10 + 1_280
    whole = await read(filled)
    assert (whole.whole, whole.revision) == (True, head)
    assert by_id(whole.rows) == await listed(filled)
    assert by_id(whole.rows)[IDS[10]].metadata == {"a": "ü", "": "b"}

    since = await read(filled, since=1_000)
    assert not since.whole
    every = await listed(filled, include_deleted=True)
    assert by_id(since.rows) == {row_id: row for row_id, row in every.items() if row.version > 1_000}
    assert [row.version for row in since.rows] == sorted(row.version for row in since.rows)

    earlier = await read(filled, as_of=ROWS)
    assert (earlier.whole, earlier.revision) == (True, ROWS)
    assert by_id(earlier.rows) == {row_id: Row(row_id, "", number) for number, row_id in enumerate(IDS, 1)}

    (full,) = decode_fetch_reply(await filled.repo.reader.read_full("s", "k")).partitions
    assert by_id(full.rows) == by_id(whole.rows)


async def test_a_row_of_a_later_page_that_is_gone_refuses_the_whole_answer(filled: Bench) -> None:
    await filled.execute(f"DELETE FROM history WHERE revision = {ROWS - 1}", "UPDATE history SET written_at_ms = 0")
    await filled.execute(f"UPDATE rows SET written_at_ms = 0 WHERE row_id = '{IDS[ROWS - 2]}'")
    await filled.write({IDS[ROWS - 2]: "new"})
    assert by_id((await read(filled)).rows)[IDS[ROWS - 2]].value == "new"
    await filled.execute(
        "INSERT INTO maintenance (duty, holder, token, until_ms, done_ms)"
        f" VALUES ('history-horizon', '', 1, 0, {(1 << 53)})"
    )
    with pytest.raises(RevisionGoneError, match="can't be read any more"):
        await read(filled, as_of=ROWS)


@pytest.mark.parametrize("words", [{}, {"since": 100}, {"as_of": ROWS}])
async def test_the_size_of_an_answer_is_known_before_its_rows_are_read(filled: Bench, words: dict[str, int]) -> None:
    found = await read(filled, **words)
    with pytest.raises(LargeAnswerError) as refused:
        await read(filled, **words, most_bytes=1_000)
    assert sum(len(row.row_id) + 6 for row in found.rows) < refused.value.size
    await filled.execute("ANALYZE")  # as databases do at times: then they may give the same rows in another order
    again = await read(filled, **words, most_bytes=refused.value.size)
    assert (again.whole, again.revision) == (found.whole, found.revision)
    assert by_id(again.rows) == by_id(found.rows)
    with pytest.raises(LargeAnswerError):
        await read(filled, **words, most_bytes=refused.value.size - 1)


async def test_a_small_change_of_a_large_partition_is_small(filled: Bench) -> None:
    head = (await read(filled)).revision
    with pytest.raises(LargeAnswerError) as refused:
        await read(filled, since=head - 3, most_bytes=0)
    assert refused.value.size < 200


async def test_an_answer_takes_little_more_memory_than_its_bytes(filled: Bench, request: pytest.FixtureRequest) -> None:
    """As objects the rows would take about 40 times as much as in the answer: those of one page are there at a time.

    All records of the database are there at once where it has no pages to give, half as large.
    """
    times = 20 if request.node.callspec.params["any_bench"] == "serializable_bench" else 2
    for first in range(ROWS, ROWS + 4_000, 1_000):
        await filled.write(dict.fromkeys(ALL_IDS[first : first + 1_000], ""))
    size, peaks = 0, []
    tracemalloc.start()
    try:
        for _ in range(4):  # the first makes what is kept; beside any, the pool may open a connection
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            size = len(await filled.repo.reader.read_partition("s", "k", PARTITION, 0))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert min(peaks) < times * size + 500_000, (peaks, size)


async def test_threads_take_turns_with_pages(sqlite_bench: Bench) -> None:
    """A page is read while no other thread reads one; what has no pages needs no turn."""
    await sqlite_bench.write(dict.fromkeys(IDS[:3], "v"))
    reader = sqlite_bench.repo.reader
    with reader._turn:
        waiting = [asyncio.create_task(read(sqlite_bench)) for _ in range(3)]
        await reader.heads("s", "k")
        await sqlite_bench.write({IDS[0]: "w"})
        assert not any(task.done() for task in waiting)
    for found in await asyncio.gather(*waiting):
        assert len(found.rows) == 3


def test_each_page_is_a_turn_of_its_own_and_all_pause_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SqliteReader(None)  # type: ignore[arg-type]  # it reads from a cursor alone
    db = sqlite3.connect(":memory:")
    statement = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT i, '', i, 0, NULL FROM n"
    turns: list[str] = []

    class Turn:
        def __enter__(self) -> None:
            turns.append("begins")

        def __exit__(self, *_: object) -> None:
            turns.append("ends")

    reader._turn = Turn()  # type: ignore[assignment]
    monkeypatch.setattr("time.sleep", lambda _: turns.append("pauses"))
    answer = PartitionAnswer("", 0, 3_000, whole=True, rows=3_000)
    reader._pages_of(db.execute(statement.replace("SELECT i,", "SELECT CAST(i AS TEXT),")), answer)
    db.close()
    assert turns == ["begins", "pauses", "ends"] * 4 + ["begins", "ends"]  # 64, 256, 1,000, 1,000, 680 rows


async def test_short_reads_in_sqlite_do_not_wait_for_large_answers(sqlite_bench: Bench) -> None:
    """A write looks up its store with such a read, a few seconds after it did so before."""
    repo = sqlite_bench.repo
    ids = [found for n in range(100) if row_partition(found := f"r{n}", 8) == PARTITION][:3]
    for row_id in ids:
        await sqlite_bench.write({row_id: "x" * 1_000_000})
    reader = repo.reader
    with reader._turn:  # no answer gets on
        large = [asyncio.ensure_future(reader.read_partition("s", "k", PARTITION, None)) for _ in range(2)]
        large += [asyncio.ensure_future(reader.read_full("s", "k")) for _ in range(4)]
        async with asyncio.timeout(PATIENCE_S):
            assert (await repo.stores.get_record("s")).name == "s"
            assert len((await reader.heads("s", "k")).heads) == 8
            assert len((await reader.read_rows("s", "k", ids[:1])).partitions[0].rows) == 1
        assert not any(read.done() for read in large)
    for answer in await asyncio.gather(*large):
        assert len(answer) > 3_000_000


@pytest.fixture
async def mixed(any_bench: Bench) -> Bench:
    """A partition of many small rows, and large ones behind them."""
    bench = any_bench
    small = [found for n in range(9_000) if row_partition(found := f"a{n:04}", 8) == PARTITION][:800]
    await bench.write(dict.fromkeys(small, ""))
    large = [found for n in range(200) if row_partition(found := f"b{n:03}", 8) == PARTITION][:7]
    for value in ("y" * 1_000_000, "é" * 500_000, "x" * 1_000_000):
        for row_id in large:
            await bench.write({row_id: value})
    return bench


async def test_a_page_is_bounded_whatever_the_page_before_had(mixed: Bench) -> None:
    """Rows are read for a thousand small ones at once: of large ones not as many."""
    most = 2 * limits.MIB + 1_000 * 32
    reader, found = mixed.repo.reader, []
    async for page in reader.list_rows("s", "k", ListFilter()):
        assert sum(len(row.row.value.encode()) for row in page) < most
        found += [row.row.row_id for row in page]
    assert len(found) == len(set(found)) == 807
    written = []
    async for revisions in reader.history("s", "k", HistoryFilter(previous=True)):
        rows = [row for each in revisions for row in (each.row, each.previous) if row]
        assert sum(len(row.value.encode()) for row in rows) < most + limits.MIB
        written += [each.row.version for each in revisions]
    assert written == list(range(1, 800 + 3 * 7 + 1))
    limited = [page async for page in reader.list_rows("s", "k", ListFilter(limit=803))]
    assert [row.row.row_id for page in limited for row in page] == found[:803]


def test_pages_of_large_rows_have_few() -> None:
    answer = PartitionAnswer("", 0, 9, whole=True, rows=9)
    answer.add([("a", "x" * limits.MIB, 1, False, None)])
    assert answer.page_rows == 1


def test_a_whole_key_has_an_entry_for_each_head() -> None:
    heads = [(partition, partition + 10, 1, 1) for partition in (1, 3, 4, 6, 7)]
    answer = KeyAnswer("h", heads)
    answer.add([(3, "a", "1", 1, False, None), (3, "b", "2", 2, False, None)])
    answer.add([(3, "c", "3", 3, False, None), (6, "d", "4", 4, False, '{"k":"v"}')])
    found = decode_fetch_reply(answer.finish())
    assert found.history == "h"
    assert [(part.partition, part.revision, [row.row_id for row in part.rows]) for part in found.partitions] == [
        (1, 11, []),
        (3, 13, ["a", "b", "c"]),
        (4, 14, []),
        (6, 16, ["d"]),
        (7, 17, []),
    ]
    with pytest.raises(InternalError, match="partition 2 has rows and no head"):
        KeyAnswer("h", heads).add([(2, "a", "1", 1, False, None)])


def test_a_whole_key_of_too_many_small_rows() -> None:
    check_full_size([(0, 1, 8 * limits.MIB, 1_000_000)], "s", "k")
    with pytest.raises(LimitExceededError, match="s/k has 3000000 rows, about 80388608 bytes in a reply"):
        check_full_size([(0, 1, 8 * limits.MIB, 1_000_000), (1, 1, 0, 2_000_000)], "s", "k")


LARGE = {f"big{number}": str(number) * 300_000 for number in range(9)}


async def test_the_size_of_named_rows_is_known_before_they_are_read(any_bench: Bench) -> None:
    for row_id, value in LARGE.items():
        await any_bench.write({row_id: value})
    await any_bench.write({"gone": "x" * 300_000})
    await any_bench.write({"gone": None})
    reader, asked = any_bench.repo.reader, [*LARGE, "gone", "never"]
    with pytest.raises(LargeAnswerError) as refused:
        await reader.read_rows("s", "k", asked, limits.MIB)
    found = await reader.read_rows("s", "k", asked, refused.value.size)
    assert {row.row_id: row.value for entry in found.partitions for row in entry.rows} == {**LARGE, "gone": ""}
    size = len(encode(found))
    assert size <= refused.value.size < size + 1_000
    with pytest.raises(LargeAnswerError):
        await reader.read_rows("s", "k", asked, refused.value.size - 1)
    # Few rows of large partitions are small.
    assert len((await reader.read_rows("s", "k", ["gone", "never"], 1_000)).partitions) == 2


async def test_characters_of_several_bytes_count_as_bytes_in_an_answer_of_named_rows(
    sqlite_bench: Bench, new_store: Callable[..., StoreRecord]
) -> None:
    """Over 64 MiB of them, in less than half as many characters."""
    store = await sqlite_bench.repo.stores.create_store(new_store("wide", 64))
    rows = {f"r{number}": "\N{EURO SIGN}" * 349_000 for number in range(65)}
    for row_id, value in rows.items():
        await sqlite_bench.group([sqlite_bench.request({row_id: value}, store=store)])
    with pytest.raises(LimitExceededError, match=r"the rows asked for have 68\d{6} bytes, a reply may have 67108864"):
        await sqlite_bench.repo.reader.read_rows("wide", "k", list(rows))
