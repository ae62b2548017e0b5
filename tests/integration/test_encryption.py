"""No byte of an encrypted value in the database, in NATS or in a cache on the disk; and the same search without it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from ringcast import Change, Worker
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, PostgresServer, until
from ringcast_wire.key_ring import KeyRing, KeyRingDocument, make_key, write_key_ring


class Site:
    """NATS, a config service on PostgreSQL, and a directory for the cache of a worker."""

    def __init__(self, directory: Path, postgres: PostgresServer) -> None:
        self.directory = directory
        self.postgres = postgres
        self.database = postgres.create_database()
        self.nats = NatsServer(directory / "nats")
        self.nats.start()
        self.service = ConfigServiceProcess(directory, nats_url=self.nats.url, database=self.database)
        self.service.start()

    def stop(self) -> None:
        """Ends both, so that all they have is on the disk."""
        self.service.terminate()
        self.nats.terminate()

    def kill(self) -> None:
        self.service.kill()
        self.nats.kill()


@pytest.fixture
def site(tmp_path: Path, shared_postgres: PostgresServer) -> Iterator[Site]:
    made = Site(tmp_path, shared_postgres)
    try:
        yield made
    finally:
        made.kill()


async def _tables_with(database: str, text: str) -> set[str]:
    """The tables of a database in which a text stands in any column, also as bytes."""
    connection = await asyncpg.connect(database)
    found = set()
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert len(tables) > 5
        for (table,) in tables:
            rows = await connection.fetch(f'SELECT t::text FROM "{table}" t')
            if any(text in row[0] or text.encode().hex() in row[0] for row in rows):
                found.add(table)
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    return found


def _files_with(directory: Path, text: str) -> set[Path]:
    """The files below a directory that have the bytes of a text."""
    found = set()
    for path in directory.rglob("*"):
        if path.is_file() and text.encode() in path.read_bytes():
            found.add(path)
    return found


@pytest.mark.parametrize("encrypted", [True, False])
async def test_clear_text_is_nowhere_unless_nothing_is_encrypted(site: Site, encrypted: bool) -> None:
    text = f"clear-{secrets.token_hex(8)}"
    document = KeyRingDocument(active="k1", keys={"k1": make_key()}, encrypt=["vault/*"] if encrypted else [])
    ring = str(site.directory / "ring.json")
    write_key_ring(ring, document, replace=False)
    heard: dict[str, str | None] = {}

    def handler(change: Change) -> None:
        heard[change.row_id] = change.value
        if change.row_id == "poison":
            raise RuntimeError("refused")

    async with ConfigServiceClient(site.service.address, key_ring=KeyRing(document)) as client:
        await client.create_store("vault", partition_count=4, inline_max_bytes=4096)
        await client.put("vault", "secrets", "before", text)
        settings = {"cache_dir": site.directory / "cache", "key_ring": ring, "handler_tries": 1}
        async with Worker(
            store="vault",
            keys="secrets",
            servers=site.nats.url,
            worker_id="w",
            handler=handler,
            poison_policy="dead-letter",  # type: ignore[arg-type]  # text of a setting
            **settings,  # type: ignore[arg-type]
        ) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            await client.put("vault", "secrets", "inline", text)
            await client.put("vault", "secrets", "poison", text)
            rows = [RowWrite(f"row{number}", f"{text}-{number}") for number in range(600)]
            rows += [RowWrite("inline", text), RowWrite("poison", text)]
            assert (await client.sync("vault", "secrets", rows, max_delete_share=1.0)).written
            await until(lambda: len(heard) >= 603)
            assert heard["row7"] == f"{text}-7", "the application has it"
            await until(lambda: worker.stats().dead_letters >= 1)
        history = [revision.row.value async for revision in client.history("vault", "secrets")]
        assert len([value for value in history if text in value]) == 603, "and so have those who read with the key"
        (letter,) = [found async for found in client.dead_letters("vault", with_values=True)]
        assert letter.value == text
        site.nats.pause()  # so what is written waits in the outbox
        try:
            await client.put("vault", "secrets", "waits", text)
            waiting = await _tables_with(site.database, text)
        finally:
            site.nats.resume()
    tables = await _tables_with(site.database, text)
    await asyncio.to_thread(site.stop)
    streams = await asyncio.to_thread(_files_with, site.directory / "nats", text)
    caches = await asyncio.to_thread(_files_with, site.directory / "cache", text)
    files = await asyncio.to_thread(_files_with, site.postgres.directory, text)
    if encrypted:
        assert (waiting, tables, streams, caches, files) == (set(), set(), set(), set(), set())
    else:
        assert "outbox" in waiting
        assert len(tables) >= 2, "rows and history at least"
        assert any("config_notify_vault" in str(path) or "vault" in str(path) for path in streams)
        assert streams
        assert caches
        assert files
