"""Tables are put back under a running service, as ``pg_restore --clean`` does it: nobody is started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, PostgresServer, until

STORE, KEY = "s", "k"


async def mark(database: str) -> int:
    db = await asyncpg.connect(database)
    try:
        return int(await db.fetchval("SELECT token FROM maintenance WHERE duty = 'mark'"))
    finally:
        await db.close()


async def holds(worker: Worker, rows: dict[str, str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await worker.wait_until(KEY, lambda: {row.row_id: row.value for row in worker.rows(KEY)} == rows)


async def test_a_dump_that_is_restored_under_a_running_service_begins_new_histories(
    tmp_path: Path, nats_server: NatsServer, postgres_url: str
) -> None:
    """What was written since is gone at the workers too, and later changes reach them: their revisions come again."""
    dump = tmp_path / "dump"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=postgres_url) as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store(STORE, partition_count=1)
            for number in range(3):
                await client.put(STORE, KEY, f"r{number}", "first")
            async with Worker(
                servers=nats_server.url, store=STORE, keys=[KEY], worker_id="w", max_delete_share=1.0
            ) as worker:
                rows = {f"r{number}": "first" for number in range(3)}
                await holds(worker, rows)
                await asyncio.to_thread(
                    PostgresServer.run, "pg_dump", "--format=custom", f"--file={dump}", postgres_url
                )
                for number in range(9):
                    await client.put(STORE, KEY, f"r{number}", "second")
                await holds(worker, {f"r{number}": "second" for number in range(9)})
                marked = await mark(postgres_url)

                async def has_looked() -> bool:
                    return await mark(postgres_url) > marked

                await until(has_looked)
                words = ("--clean", "--if-exists", "--single-transaction", f"--dbname={postgres_url}", str(dump))
                await asyncio.to_thread(PostgresServer.run, "pg_restore", *words)

                await until(lambda: any("event=history.began" in line for line in service.process.log))
                (line,) = [line for line in service.process.log if "event=history.began" in line]
                assert "stores=1 reason=put_back" in line
                await holds(worker, rows)
                await client.put(STORE, KEY, "r0", "third")
                await holds(worker, rows | {"r0": "third"})
