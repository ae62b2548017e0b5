"""A database restored from a backup: docs/deployment.md says what happens then, and this is where it was tried."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer


async def test_workers_take_a_restored_database_for_the_truth(tmp_path: Path) -> None:
    nats_server = NatsServer(tmp_path / "nats")
    database = tmp_path / "db/rows.db"
    database.parent.mkdir()
    with (
        nats_server,
        ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=f"sqlite:{database}") as service,
    ):
        before = {f"row{number}": "before" for number in range(20)}
        await write(service, before)
        service.terminate()
        shutil.copytree(database.parent, tmp_path / "backup")
        service.restart()
        await write(service, {"row1": "lost", "new": "lost", **{f"row{number}": "lost" for number in range(10, 15)}})
        async with worker(nats_server, "a") as first:
            await holds([first], before | {"row1": "lost", "new": "lost"} | {f"row{n}": "lost" for n in range(10, 15)})
            service.terminate()
            shutil.rmtree(database.parent)
            shutil.copytree(tmp_path / "backup", database.parent)
            service.restart()
            await holds([first], before)
            await write(service, {"row2": "after", "row1": "after"})
            after = before | {"row2": "after", "row1": "after"}
            await holds([first], after)
            async with worker(nats_server, "b") as second:
                await holds([first, second], after)
                await write(service, {f"row{number}": "at last" for number in range(20)})
                await holds([first, second], dict.fromkeys(before, "at last"))


def worker(server: NatsServer, worker_id: str) -> Worker:
    return Worker(servers=server.url, store="s", keys=["k"], worker_id=worker_id)


async def write(service: ConfigServiceProcess, rows: dict[str, str]) -> None:
    async with ConfigServiceClient(service.address) as client:
        await client.create_store("s", partition_count=4)
        for row_id, value in rows.items():
            await client.put("s", "k", row_id, value)


async def holds(workers: Sequence[Worker], rows: dict[str, str]) -> None:
    """Waits until the workers together hold these rows, each once."""

    def held() -> bool:
        pairs = [(row.row_id, row.value) for worker in workers for row in worker.rows("k")]
        return len(pairs) == len(rows) and dict(pairs) == rows

    waits = [asyncio.ensure_future(worker.wait_until("k", held)) for worker in workers]
    done, waiting = await asyncio.wait(waits, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    for wait in waiting:
        wait.cancel()
    assert done, {worker.config.worker_id: sorted((r.row_id, r.value) for r in worker.rows("k")) for worker in workers}
