"""Author and reason of each revision: over both databases, by every way in which rows are stored, and as a client sees
them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.repository import (
    NOBODY,
    Authorship,
    HistoryFilter,
    PlainWrites,
    WriteRequest,
    make_repository,
)
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, RingcastError
from ringcast_wire.grpc import STATUS, pb

Bench = Any  # of conftest.py
Service = Any  # of conftest.py

DEPLOY = Authorship("deploy", "a new release")
DESK = Authorship(r"certificate:desk\.example", r"\N is no null, and \t no tab")
TOO_LONG = "reason .* has 513 bytes: at most 512 are allowed"


async def authors(bench: Bench, key: str = "k") -> dict[tuple[str, int], Authorship]:
    """By row id and version."""
    return {
        (found.row.row_id, found.row.version): found.by
        async for page in bench.repo.reader.history(bench.store.name, key, HistoryFilter())
        for found in page
    }


def plain(bench: Bench, row_ids: list[str], by: Authorship) -> WriteRequest:
    """Rows with nothing but a value."""
    partitions = row_partitions(row_ids, bench.store.partition_count)
    return WriteRequest(
        bench.store, "k", PlainWrites(partitions, row_ids, ["v"] * len(row_ids), [3] * len(row_ids)), by=by
    )


async def test_requests_of_one_group_keep_their_authors(bench: Bench) -> None:
    first = replace(bench.request({"a": "1", "b": "1"}), by=DEPLOY)
    await bench.group([first])
    group = [
        replace(bench.request({"a": "2"}), by=DESK),
        bench.request({"b": "2"}),
        replace(bench.request({"a": None, "c": "3"}), by=DEPLOY),
    ]
    assert not [outcome for outcome in await bench.group(group) if isinstance(outcome, RingcastError)]
    by_row: dict[str, list[Authorship]] = {}
    for (row_id, _), by in sorted((await authors(bench)).items()):
        by_row.setdefault(row_id, []).append(by)
    assert by_row == {"a": [DEPLOY, DESK, DEPLOY], "b": [DEPLOY, NOBODY], "c": [DEPLOY]}


async def test_many_rows_at_once_have_an_author(bench: Bench) -> None:
    """PostgreSQL copies them: new ones, then new and old ones, of several authors."""
    await bench.write({"z": "1"})  # the key is there
    ids = [f"row-{number}" for number in range(600)]
    await bench.group([plain(bench, ids[:300], DEPLOY), plain(bench, ids[300:400], DESK)])
    assert set((await authors(bench)).values()) == {NOBODY, DEPLOY, DESK}
    found = await authors(bench)
    assert sum(by == DEPLOY for by in found.values()) == 300
    assert sum(by == DESK for by in found.values()) == 100
    await bench.group([plain(bench, ids[:200], DESK), plain(bench, ids[400:], NOBODY), plain(bench, ids[:50], DEPLOY)])
    found = await authors(bench)
    assert len(found) == 1 + 400 + 450
    assert sum(by == DESK for by in found.values()) == 300
    assert sum(by == DEPLOY for by in found.values()) == 350
    assert sum(by == NOBODY for by in found.values()) == 201
    await bench.check_gap_free()


async def test_a_row_that_stays_as_it_is_keeps_its_author(bench: Bench) -> None:
    await bench.group([replace(bench.request({"a": "1"}), by=DEPLOY)])
    await bench.group([replace(bench.request({"a": "1"}), by=DESK, skip_unchanged=True)])
    assert await authors(bench) == {("a", 1): DEPLOY}


async def test_an_older_database_is_upgraded(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await bench.repo.close()
    await bench.make_older(1)
    instances = [make_repository(bench.address) for _ in range(3)]
    await asyncio.gather(*(instance.open() for instance in instances))
    bench.repo = instances[0]
    await bench.group([replace(bench.request({"b": "1"}), by=DEPLOY)])
    assert {row_id: by for (row_id, _), by in (await authors(bench)).items()} == {"a": NOBODY, "b": DEPLOY}
    for instance in instances[1:]:
        await instance.close()
    again = make_repository(bench.address)
    await again.open()  # nothing is left to upgrade
    await again.close()


async def test_tables_of_an_older_build_that_broke_off_are_upgraded(postgres_bench: Bench) -> None:
    await postgres_bench.repo.close()
    await postgres_bench.execute("ALTER TABLE history DROP COLUMN author", "DELETE FROM schema_version")
    await postgres_bench.repo.open()
    await postgres_bench.group([replace(postgres_bench.request({"b": "1"}), by=DEPLOY)])
    assert list((await authors(postgres_bench)).values()) == [DEPLOY]


async def revisions(service: Service, store: str, key: str = "k") -> dict[str, tuple[str, str]]:
    request = pb.HistoryRequest(store=store, key=key)
    return {
        found.row.row_id: (found.author, found.reason)
        async for page in service.stub.History(request)
        for found in page.revisions
    }


async def test_a_client_sees_author_and_reason_of_each_kind_of_write(service: Service) -> None:
    await service.create("s")
    await service.stub.Put(pb.PutRequest(store="s", key="k", row_id="put", value="v", reason="by put"))
    await service.stub.Put(pb.PutRequest(store="s", key="k", row_id="deleted", value="v"))
    await service.stub.Delete(pb.DeleteRequest(store="s", key="k", row_id="deleted", reason="by delete"))
    row = pb.RowWrite(row_id="commit", value="v")
    commit = pb.CommitRequest(store="s", writes=[pb.KeyedWrite(key="k", row=row)], reason="by commit")
    await service.stub.Commit(commit)
    change = pb.RowChange(number=1, row_id="change", value="v", reason="by change")
    changes = [found async for found in service.stub.Change(iter([pb.Changes(store="s", key="k", changes=[change])]))]
    assert not changes[0].results[0].error
    await service.write("s", [pb.RowWrite(row_id="bulk", value="v")], reason="by bulk")
    await service.put("s", "silent")
    me = (await service.stub.WhoAmI(pb.WhoAmIRequest())).principal
    assert me == "host:127.0.0.1"
    names = ("put", "commit", "change", "bulk")
    assert await revisions(service, "s") == {
        **{name: (me, f"by {name}") for name in names},
        "deleted": (me, "by delete"),
        "silent": (me, ""),
    }


@pytest.mark.parametrize(
    ("reason", "sentence"), [("x" * 513, TOO_LONG), ("two\nlines", "reason .* has a character that is not printable")]
)
async def test_a_reason_has_a_limit(service: Service, reason: str, sentence: str) -> None:
    await service.create("s")
    row = pb.RowWrite(row_id="a", value="v")
    calls = (
        service.stub.Put(pb.PutRequest(store="s", key="k", row_id="a", value="v", reason=reason)),
        service.stub.Delete(pb.DeleteRequest(store="s", key="k", row_id="a", reason=reason)),
        service.stub.Commit(pb.CommitRequest(store="s", writes=[pb.KeyedWrite(key="k", row=row)], reason=reason)),
    )
    for call in calls:
        assert await call.code() is STATUS[InvalidInputError.code]
        assert re.search(sentence, await call.details())
    change = pb.RowChange(number=1, row_id="a", value="v", reason=reason)
    changes = [found async for found in service.stub.Change(iter([pb.Changes(store="s", key="k", changes=[change])]))]
    assert (changes[0].results[0].error, changes[0].results[0].field) == ("INVALID_INPUT", "reason")
    stream = service.stub.Write(iter([pb.WriteBatch(store="s", key="k", rows=[row], reason=reason)]))
    assert await stream.code() is STATUS[InvalidInputError.code]
    await service.stub.Put(pb.PutRequest(store="s", key="k", row_id="b", value="v", reason="x" * 512))
    assert set(await revisions(service, "s")) == {"b"}
