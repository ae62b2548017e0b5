"""What only a file can suffer: a process killed in the middle of a write, a file that is none, two processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from ringcast_config_service.repository import make_repository
from ringcast_service import ConfigError
from ringcast_testkit import PATIENCE_S, ManagedProcess

Bench = Any  # of conftest.py

# Dies by SIGKILL inside the transaction, at the statement that its second argument names.
KILLED = """
import asyncio, os, signal, sys
from ringcast_config_service.repository import RowWrite, WriteRequest
from ringcast_config_service.repository.sqlite.repository import SqliteRepository
from ringcast_core import row_partition
from ringcast_sqlite import Database

async def main(path, where):
    repo = SqliteRepository(Database(path))
    await repo.open()
    store = (await repo.stores.get_store("s")).record
    def trace(statement):
        if statement.strip().startswith(where):
            os.kill(os.getpid(), signal.SIGKILL)
    repo._database._writer.set_trace_callback(trace)
    rows = [RowWrite(row_partition(r, 8), r, "2", None, 3) for r in ("a", "b", "fresh")]
    await repo.writer.write([WriteRequest(store, "k", rows)], 1)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "statement", ["INSERT INTO partitions", "INSERT INTO rows", "INSERT INTO history", "INSERT INTO outbox", "COMMIT"]
)
async def test_a_process_killed_in_the_middle_of_a_write(sqlite_bench: Bench, tmp_path: Path, statement: str) -> None:
    await sqlite_bench.write({"a": "1", "b": "1"})
    path = sqlite_bench.address.removeprefix("sqlite:")
    child = ManagedProcess("writer", [sys.executable, "-c", KILLED, path, statement])
    assert await asyncio.to_thread(child.wait, PATIENCE_S) == -9, child.describe("was not killed")
    assert await sqlite_bench.live() == {"a": "1", "b": "1"}
    assert (await sqlite_bench.write({"a": "2"})).versions == [2]
    await sqlite_bench.check_gap_free()


async def test_a_second_process_on_the_same_file(sqlite_bench: Bench) -> None:
    other = make_repository(sqlite_bench.address)
    await other.open()
    await sqlite_bench.write({"a": "1"})
    assert (await other.reader.heads("s", "k")) == await sqlite_bench.repo.reader.heads("s", "k")
    await other.close()


async def test_files_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 500)
    with pytest.raises(ConfigError, match="is not an SQLite database"):
        await make_repository(f"sqlite:{tmp_path / 'text'}").open()
    with pytest.raises(ConfigError, match="its directory does not exist"):
        await make_repository(f"sqlite:{tmp_path / 'none' / 'x.db'}").open()
    with pytest.raises(ConfigError, match="of no known kind"):
        make_repository("sqlite:")
