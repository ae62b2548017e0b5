"""Writes that leave alone what is already as it should be, over SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ringcast_wire import Row

Bench = Any  # of conftest.py


async def again(bench: Bench, *writes: tuple[dict[str, str | None], dict[str, str] | None]) -> list[Any]:
    """One group of requests that skip what is unchanged; what each did."""
    requests = [replace(bench.request(rows, metadata=metadata), skip_unchanged=True) for rows, metadata in writes]
    return [(done.written, done.deleted, done.unchanged, done.versions) for done in await bench.group(requests)]


async def state(bench: Bench, *row_ids: str) -> dict[str, Row]:
    entries = (await bench.repo.reader.read_rows("s", "k", row_ids)).partitions
    return {row.row_id: row for entry in entries for row in entry.rows}


async def test_the_same_rows_again_change_nothing(bench: Bench) -> None:
    rows: dict[str, str | None] = {f"r{number}": f"v{number}" for number in range(50)}
    (first,) = await again(bench, (rows, {"by": "me", "why": "é"}))
    assert first[:3] == (50, 0, 0)
    heads, events = await bench.repo.reader.heads("s", "k"), await bench.events()
    (second,) = await again(bench, (rows, {"why": "é", "by": "me"}))
    assert second == (0, 0, 50, [0] * 50)
    assert await bench.repo.reader.heads("s", "k") == heads
    assert await bench.events() == events
    await bench.check_gap_free()


async def test_only_what_differs_is_written(bench: Bench) -> None:
    await bench.write({"a": "1", "b": "1", "gone": "1"})
    await bench.write({"gone": None})
    before = await state(bench, "a", "b")
    ((written, deleted, unchanged, versions),) = await again(
        bench, ({"a": "1", "b": "2", "new": "1", "gone": "1", "none": None}, None)
    )
    assert (written, deleted, unchanged) == (3, 0, 2)
    assert [version > 0 for version in versions] == [False, True, True, True, False]
    after = await state(bench, "a", "b", "gone")
    assert after["a"] == before["a"]
    assert (after["b"].value, after["gone"].value, after["gone"].deleted) == ("2", "1", False)
    await bench.check_gap_free()


async def test_metadata_alone_is_a_difference(bench: Bench) -> None:
    await bench.write({"a": "1"})
    assert [done[:3] for done in await again(bench, ({"a": "1"}, {"by": "me"}))] == [(1, 0, 0)]
    assert [done[:3] for done in await again(bench, ({"a": "1"}, {"by": "you"}))] == [(1, 0, 0)]
    assert [done[:3] for done in await again(bench, ({"a": "1"}, None))] == [(1, 0, 0)]
    assert (await state(bench, "a"))["a"].metadata is None


async def test_requests_of_one_group_see_each_other(bench: Bench) -> None:
    await bench.write({"a": "0"})
    done = await again(bench, *(({"a": value}, None) for value in ("1", "1", None, "1", "1", "0")))
    assert [outcome[:3] for outcome in done] == [
        (1, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 0),
        (0, 0, 1),
        (1, 0, 0),
    ]
    await bench.check_gap_free()


async def test_a_request_beside_it_writes_all_the_same(bench: Bench) -> None:
    """Whether to skip is a matter of each request, not of the group that it happens to be committed with."""
    await bench.write({"a": "1", "b": "1"})
    plain = bench.request({"a": "1"})
    skipping = replace(bench.request({"b": "1"}), skip_unchanged=True)
    outcomes = await bench.group([plain, skipping])
    assert [(done.written, done.unchanged) for done in outcomes] == [(1, 0), (0, 1)]
    await bench.check_gap_free()
