"""A partition as it was at an earlier revision, over SQLite and PostgreSQL: right, or refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ringcast_testkit.rows import same_partition
from ringcast_wire import InvalidInputError, RevisionGoneError, decode_fetch_reply

Bench = Any  # of conftest.py

DAY_MS = 86_400_000
PARTITION = 3


async def heads(bench: Bench) -> list[int]:
    return list((await bench.repo.reader.heads("s", "k")).heads)


async def read(bench: Bench, partition: int, as_of: int | None, since: int | None = None) -> Any:
    history = (await bench.repo.reader.heads("s", "k")).history
    (found,) = decode_fetch_reply(
        await bench.repo.reader.read_partition("s", "k", partition, since, history, as_of)
    ).partitions
    return found


async def rows_at(bench: Bench, as_of: int, since: int | None = None) -> dict[str, tuple[str | None, int]]:
    """Value (``None`` in a tombstone) and version by id."""
    found = await read(bench, PARTITION, as_of, since)
    assert found.revision == as_of
    rows = {row.row_id: (None if row.deleted else row.value, row.version) for row in found.rows}
    assert len(rows) == len(found.rows), "a row came twice"
    return rows


async def test_every_revision(bench: Bench) -> None:
    a, b, c = same_partition(3)
    await bench.write({a: "a1", b: "b2"}, metadata={"by": "me"})
    await bench.write({a: "a3", c: "c4"})
    await bench.write({a: "a5"})
    await bench.write({b: None})  # 6
    await bench.write({a: None, b: "b8"})  # 7 and 8
    at = {revision: await rows_at(bench, revision) for revision in range(9)}
    assert at == {
        0: {},
        1: {a: ("a1", 1)},
        2: {a: ("a1", 1), b: ("b2", 2)},
        3: {a: ("a3", 3), b: ("b2", 2)},
        4: {a: ("a3", 3), b: ("b2", 2), c: ("c4", 4)},
        5: {a: ("a5", 5), b: ("b2", 2), c: ("c4", 4)},
        6: {a: ("a5", 5), c: ("c4", 4)},
        7: {c: ("c4", 4)},
        8: {b: ("b8", 8), c: ("c4", 4)},
    }
    assert {row.row_id: row.metadata for row in (await read(bench, PARTITION, 4)).rows}[b] == {"by": "me"}


async def test_what_changed_between_two_revisions(bench: Bench) -> None:
    """With the tombstones of the later one."""
    a, b, c = same_partition(3)
    await bench.write({a: "1", b: "2"})
    await bench.write({c: "3"})
    await bench.write({a: None})  # 4
    await bench.write({a: "5", c: "6"})
    assert await rows_at(bench, 4, since=2) == {c: ("3", 3), a: (None, 4)}
    assert await rows_at(bench, 4, since=0) == {b: ("2", 2), c: ("3", 3), a: (None, 4)}
    assert await rows_at(bench, 4, since=4) == {}
    assert (await read(bench, PARTITION, 4, since=2)).whole is False
    assert (await read(bench, PARTITION, 4)).whole is True


async def test_what_can_not_be_read(bench: Bench) -> None:
    a, b = same_partition(2)
    await bench.write({a: "1", b: "2"})
    with pytest.raises(InvalidInputError, match=r"revision 3 of partition 3 of s/k is still to come: .* revision 2"):
        await read(bench, PARTITION, 3)
    before = (await bench.repo.reader.heads("s", "k")).history
    await bench.repo.histories.new_history("s")
    for as_of in (1, 2):
        with pytest.raises(RevisionGoneError, match=f"revision {as_of} of partition 3 of s/k is of another history"):
            await bench.repo.reader.read_partition("s", "k", PARTITION, None, before, as_of)


async def test_a_value_that_was_compacted_is_not_left_out(bench: Bench) -> None:
    a, b = same_partition(2)
    await bench.write({a: "1", b: "2"})
    await bench.write({a: "3"})
    await bench.pass_time(8 * DAY_MS)
    await bench.write({b: "4"})
    assert (await bench.repo.maintenance.compact(await bench.lead(), DAY_MS, 7 * DAY_MS)).revisions == 1
    assert await rows_at(bench, 3) == {a: ("3", 3), b: ("2", 2)}
    for as_of in (1, 2):
        with pytest.raises(RevisionGoneError, match=f"revision {as_of} of partition 3 of s/k can't be read any more"):
            await read(bench, PARTITION, as_of)


async def test_a_deletion_that_was_compacted_is_no_row(bench: Bench) -> None:
    """Its row came back while the service still had its tombstone, but no longer the revision."""
    a, b = same_partition(2)
    await bench.write({a: "1", b: "2"})
    await bench.write({a: None})
    await bench.pass_time(8 * DAY_MS)
    assert (await bench.repo.maintenance.compact(await bench.lead(), 30 * DAY_MS, 7 * DAY_MS)).tombstones == 0
    await bench.write({a: "4"})
    assert await rows_at(bench, 3) == {b: ("2", 2)}


async def test_the_revisions_at_a_moment(bench: Bench) -> None:
    a, b = same_partition(2)
    for rows in ({a: "1", b: "2"}, {a: "3"}, {b: None}):
        await bench.write(rows)
        await bench.pass_time(DAY_MS)
    now_ms = await bench.repo.clock_ms()
    found = [(await bench.repo.reader.heads("s", "k", now_ms - days * DAY_MS - DAY_MS // 2)).heads for days in range(4)]
    assert [heads[PARTITION] for heads in found] == [4, 3, 2, 0]
    assert (await bench.repo.reader.heads("s", "k", now_ms)).heads == await heads(bench)
    assert (
        await bench.repo.maintenance.compact(await bench.lead(), 30 * DAY_MS, 2 * DAY_MS - DAY_MS // 2)
    ).revisions == 1
    assert (await bench.repo.reader.heads("s", "k", now_ms - DAY_MS - DAY_MS // 4)).heads[PARTITION] == 3
    with pytest.raises(RevisionGoneError, match=r"what s/k had at .* UTC can't be read any more: its history goes"):
        await bench.repo.reader.heads("s", "k", now_ms - 2 * DAY_MS)


@pytest.mark.parametrize("tombstones_ms", [DAY_MS // 2, 30 * DAY_MS])
async def test_random_writes_over_weeks_against_a_model(bench: Bench, tombstones_ms: int) -> None:
    """Every day of the last week can be read as it was; a day before it is read as it was, or refused."""
    seed = 7
    draw = random.Random(seed)
    days: list[tuple[list[int], dict[str, str]]] = []
    now: dict[str, str] = {}
    ids = same_partition(20)
    refused = 0
    for day in range(20):
        rows = {draw.choice(ids): draw.choice([None, f"{day}"]) for _ in range(draw.randrange(1, 8))}
        await bench.write(rows)
        now = {row: value for row, value in {**now, **rows}.items() if value is not None}
        days.append((await heads(bench), now))
        await bench.pass_time(DAY_MS)
        await bench.repo.maintenance.compact(await bench.lead(), tombstones_ms, 7 * DAY_MS - DAY_MS // 2)
        for number, (vector, wanted) in enumerate(days):
            evening_ms = await bench.repo.clock_ms() - (day - number) * DAY_MS - DAY_MS // 2
            try:
                assert (await bench.repo.reader.heads("s", "k", evening_ms)).heads == vector
                rows_then = (await read(bench, PARTITION, vector[PARTITION])).rows
            except RevisionGoneError:
                assert number < day - 5, f"seed {seed}, day {number} is gone on day {day}"
                refused += 1
            else:
                found = {row.row_id: row.value for row in rows_then}
                assert found == wanted, f"seed {seed}, day {number} as read on day {day}"
    assert refused > 10
