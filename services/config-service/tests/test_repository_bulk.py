"""Writes of many rows at once, which PostgreSQL gets another way than few; over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from ringcast_config_service.repository import HistoryFilter, make_repository
from ringcast_wire import RingcastError, decode_fetch_reply

Bench = Any  # of conftest.py

TEXTS = ("", "plain", "é\U0001f600", "tab\tnewline\nquote'\"\\N", "\\.", "{}", "NULL", "x" * 5_000)


async def test_many_rows_of_every_kind_against_a_model(bench: Bench) -> None:
    """New rows, changed ones, deleted ones and such that come back, some thousand a write, and few in between."""
    seed = 20261120
    draw = random.Random(seed)
    model: dict[str, str] = {}
    for count in (1_500, 2_000, 30, 2_000, 700):
        metadata = draw.choice([None, {"by": "me", "why": "é"}])
        rows: dict[str, str | None] = {
            f"{draw.choice(TEXTS)[:20]}-{draw.randrange(3_000)}": draw.choice([None, *TEXTS]) for _ in range(count)
        }
        outcome = await bench.write(rows, metadata=metadata)
        gone = [row_id for row_id, value in rows.items() if value is None]
        assert outcome.deleted == sum(row_id in model for row_id in gone), f"seed {seed}"
        assert outcome.unchanged == len(gone) - outcome.deleted, f"seed {seed}"
        for row_id, value in rows.items():
            if value is None:
                model.pop(row_id, None)
            else:
                model[row_id] = value
        assert await bench.live() == model, f"seed {seed}"
    await bench.check_gap_free()
    latest: dict[str, Any] = {}
    async for page in bench.repo.reader.history("s", "k", HistoryFilter()):
        latest.update((revision.row.row_id, revision.row) for revision in page)
    found = decode_fetch_reply(await bench.repo.reader.read_full("s", "k")).partitions
    assert {row.row_id: row for entry in found for row in entry.rows} == {
        row_id: row for row_id, row in latest.items() if not row.deleted
    }


async def test_several_requests_that_write_the_same_new_rows(bench: Bench) -> None:
    """In one group: of each row the last state is stored, and all of its history."""
    many = [{f"r{number}": f"{value}" for number in range(500)} for value in range(3)]
    outcomes = await bench.group([bench.request(rows) for rows in many])
    assert [outcome.written for outcome in outcomes] == [500, 500, 500]
    assert await bench.live() == many[-1]
    await bench.check_gap_free()


async def test_instances_that_race_for_new_partitions(postgres_bench: Bench) -> None:
    """Each takes a partition for never written, and copies; one of them has to begin again."""
    bench = postgres_bench
    await bench.write({"first": "1"})  # so that the key is there
    others = [make_repository(bench.address) for _ in range(4)]
    try:
        await asyncio.gather(*(other.open() for other in others))
        rows = [{f"r{number}": f"{index}" for number in range(index * 100, index * 100 + 400)} for index in range(4)]
        results = await asyncio.gather(
            *(other.writer.write([bench.request(some)], 5) for other, some in zip(others, rows, strict=True))
        )
        assert not [
            outcome for written in results for outcome in written.outcomes if isinstance(outcome, RingcastError)
        ]
    finally:
        await asyncio.gather(*(other.close() for other in others))
    live = await bench.live()
    assert live.keys() == {"first"}.union(*rows)
    assert all(
        live[f"r{number}"] in {some[f"r{number}"] for some in rows if f"r{number}" in some} for number in range(700)
    )
    await bench.check_gap_free()
