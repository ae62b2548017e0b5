"""What the repository makes of a database server that is another one, or was started again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from ringcast_config_service.repository import Repository, RowWrite, WriteOutcome, WriteRequest, make_repository
from ringcast_testkit import PostgresServer
from ringcast_wire import UnavailableError

Bench = Any  # of conftest.py


async def test_a_record_of_another_server_begins_new_histories_once(postgres_bench: Bench) -> None:
    """As a promoted standby has another timeline, and a restored dump is in another system."""
    await postgres_bench.write({"a": "1"})
    before = await histories(postgres_bench.repo)
    db = await asyncpg.connect(postgres_bench.address)
    recorded = await db.fetchval("SELECT identity FROM server_identity")
    assert recorded.endswith("/00000001")
    await db.execute("UPDATE server_identity SET identity = 'another/00000001'")
    found = []
    for _ in range(2):
        repo = make_repository(postgres_bench.address)
        await repo.open()
        found.append(await histories(repo))
        await repo.close()
    assert found[0] == found[1]
    assert not set(found[0]) & set(before)
    assert await db.fetchval("SELECT identity FROM server_identity") == recorded
    await db.close()


async def test_a_record_that_was_put_back_begins_new_histories_once(postgres_bench: Bench) -> None:
    """Every instance refuses what was let in before, and one of them begins the histories."""
    await postgres_bench.write({"a": "1"})
    repos = [postgres_bench.repo, await postgres_bench.another()]
    for _ in range(3):
        assert [await repo.histories.look() for repo in repos] == [0, 0]
    before = await histories(repos[0])
    db = await asyncpg.connect(postgres_bench.address)
    await db.execute("UPDATE maintenance SET token = 2 WHERE duty = 'mark'")
    # The first has seen less than the second.
    assert [await repo.histories.look() for repo in repos] == [1, 0]
    after = await histories(repos[0])
    assert not set(before) & set(after)
    assert [repo.histories.generation for repo in repos] == [1, 1]
    for _ in range(2):
        assert [await repo.histories.look() for repo in repos] == [0, 0]
    assert await histories(repos[1]) == after
    await db.execute("DELETE FROM maintenance WHERE duty = 'mark'")  # a record of before the mark
    assert [await repo.histories.look() for repo in repos] == [1, 0]
    assert [repo.histories.generation for repo in repos] == [2, 2]
    await db.close()
    await repos[1].close()


async def test_an_instance_that_starts_takes_the_mark_as_it_is(postgres_bench: Bench) -> None:
    await postgres_bench.write({"a": "1"})
    for _ in range(5):
        await postgres_bench.repo.histories.look()
    repo = await postgres_bench.another()
    assert await repo.histories.look() == 0
    assert repo.histories.generation == 0
    await repo.close()


async def histories(repo: Repository) -> list[str]:
    return [(await repo.stores.get_record("s")).history_id, (await repo.reader.heads("s", "k")).history]


async def test_a_server_that_was_started_again_has_the_record_compared(new_store: Any) -> None:
    """What was let in before is refused, since nobody has compared its store since."""
    with PostgresServer() as server:
        repo = make_repository(server.create_database())
        await repo.open()
        try:
            record = await repo.stores.create_store(new_store("s"))
            assert repo.histories.generation == 0
            server.kill()
            server.restart()
            while repo.histories.generation == 0:
                with suppress(UnavailableError):
                    await repo.stores.create_store(record)
            assert await repo.stores.create_store(record) == record  # the same history
            assert repo.histories.generation == 1
            late = WriteRequest(record, "k", [RowWrite(0, "a", "1", None, 2)], generation=0)
            with pytest.raises(UnavailableError, match="was started again: nothing was written"):
                await repo.writer.write([late], 0)
            (outcome,) = (await repo.writer.write([replace(late, generation=1)], 0)).outcomes
            assert isinstance(outcome, WriteOutcome)
            assert outcome.versions == [1]
        finally:
            await repo.close()
