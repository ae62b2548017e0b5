"""Rows come in the order of their bytes, whatever the database's own collation."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from ringcast_config_service.repository import (
    HistoryFilter,
    ListFilter,
    RowWrite,
    StoreRecord,
    WriteRequest,
    make_repository,
)
from ringcast_testkit import PostgresServer
from ringcast_wire import StoreSettings

Bench = Any  # of conftest.py

SOME = ["a", "B", "b", "A", "_", "-a", "a-b", "aB", "ab", "Z", "é", "e", "z", "ä", "10", "9", "\U0001f600", "\uffe0"]
IDS = [f"{text}{number}" for number in range(12) for text in SOME]
LOCALE = "en_US.UTF-8"


@pytest.fixture
def english_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database whose own order of text is that of a dictionary."""
    with tempfile.TemporaryDirectory(prefix="rc-locale-") as directory:
        place = Path(directory)
        place.chmod(0o755)  # the server has a user of its own where we are root
        command = ["localedef", "--no-archive", "-i", "en_US", "-f", "UTF-8", str(place / LOCALE)]
        if not shutil.which("localedef") or subprocess.run(command, capture_output=True, check=False).returncode > 1:
            pytest.skip("this system has no source of the locale en_US: on Debian it is in the package locales")
        monkeypatch.setenv("LOCPATH", directory)
        with PostgresServer() as server:
            server.server.psql(f"CREATE DATABASE english TEMPLATE template0 LOCALE '{LOCALE}' ENCODING 'UTF8';")
            yield str(server.server.get_uri(database="english"))


async def check_order(repo: Any) -> None:
    """Pages of all sizes, in one order."""
    store = await repo.stores.create_store(StoreRecord("s", StoreSettings(partition_count=1), 0, 1))
    for name in ("B", "a", "C"):
        await repo.stores.create_store(StoreRecord(name, StoreSettings(partition_count=1), 0, 1))
    rows = [RowWrite(0, row_id, "x" * 20_000, None, 20_010) for row_id in IDS]
    for key in ("k", "Z", "y"):
        (outcome,) = (await repo.writer.write([WriteRequest(store, key, rows)], 1)).outcomes
        assert outcome.written == len(IDS)
    pages = [page async for page in repo.reader.list_rows("s", "k", ListFilter())]
    assert len(pages) > 2
    assert [found.row.row_id for page in pages for found in page] == sorted(IDS)
    assert [info.record.name for info in await repo.stores.list_stores()] == ["B", "C", "a", "s"]
    assert [stats.name for stats in (await repo.stores.get_store("s")).keys] == ["Z", "k", "y"]
    revisions = [found async for page in repo.reader.history("s", "k", HistoryFilter(row_id="é0")) for found in page]
    assert [revision.row.row_id for revision in revisions] == ["é0"]


async def test_the_order_of_rows(database: str) -> None:
    repo = make_repository(database)
    await repo.open()
    try:
        await check_order(repo)
    finally:
        await repo.close()


async def test_the_order_of_rows_in_a_database_with_another_order(english_url: str) -> None:
    connection = await asyncpg.connect(english_url)
    order = [record[0] for record in await connection.fetch("SELECT unnest($1::TEXT[]) AS id ORDER BY id", IDS)]
    await connection.close()
    assert order != sorted(IDS), "the database has the order of bytes: this test would show nothing"
    repo = make_repository(english_url)
    await repo.open()
    try:
        await check_order(repo)
    finally:
        await repo.close()


async def test_every_text_key_has_the_order_of_bytes(postgres_bench: Bench) -> None:
    connection = await asyncpg.connect(postgres_bench.address)
    found = await connection.fetch("""
        SELECT c.relname, a.attname, l.collname
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
        JOIN pg_attribute a ON a.attrelid = i.indexrelid
        JOIN pg_collation l ON l.oid = a.attcollation
        WHERE c.relnamespace = 'public'::regnamespace
    """)
    await connection.close()
    assert {(table, column) for table, column, _ in found} >= {("stores", "name"), ("rows", "row_id")}
    assert {collation for _, _, collation in found} == {"C"}
