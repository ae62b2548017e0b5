"""PostgreSQL that dies, conflicts, is locked or read-only, and a bad network in front of it, under load."""

from __future__ import annotations

from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS

MOST_S = 40.0


async def test_the_database_is_killed_and_read_only(start: Start) -> None:
    async with start(own_postgres=True) as run:
        assert await run.fault(KINDS["database_killed"]) < MOST_S
        assert await run.fault(KINDS["database_read_only"]) < MOST_S


async def test_connections_to_the_database_are_cut_and_writes_conflict(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["database_conflicts"]) < MOST_S
        assert run.arena.met["conflicts"], "the conflicts were none"
        assert not run.load.ledger.unanswered, "a write failed for a conflict"
        assert await run.fault(KINDS["database_connections_cut"]) < MOST_S


async def test_a_bulk_write_beside_single_writes_through_the_other_instance(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["bulk_beside_single_writes"]) < MOST_S


async def test_heads_that_a_stranger_has_locked(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["heads_locked"]) < MOST_S


async def test_a_network_to_the_database_that_is_cut_silent_or_a_trickle(start: Start) -> None:
    async with start() as run:
        for kind in ("database_link_cut", "database_link_silent", "database_link_trickles"):
            assert await run.fault(KINDS[kind]) < MOST_S
