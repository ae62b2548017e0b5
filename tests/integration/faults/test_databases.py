"""PostgreSQL that dies, conflicts, is locked or read-only, and a bad network in front of it, under load."""

from __future__ import annotations

from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS

MOST_S = 40.0


async def test_the_database_is_killed_and_read_only(start: Start) -> None:
    async with start(own_postgres=True) as run:
        assert await run.fault(KINDS["database_killed"]) < MOST_S
        assert await run.fault(KINDS["database_read_only"]) < MOST_S
        assert "INTERNAL" not in run.load.ledger.unanswered, (
            "a database that takes no writes is a defect of the service"
        )


async def test_writes_that_wait_for_each_other_all_succeed(start: Start) -> None:
    """Two instances, and a stranger, write to the same partitions and the same rows: they wait, and nothing fails."""
    async with start() as run:
        assert await run.fault(KINDS["bulk_beside_single_writes"]) < MOST_S
        assert await run.fault(KINDS["database_conflicts"]) < MOST_S
        assert run.arena.met["conflicts"], "the stranger met nobody"
        assert not run.load.ledger.unanswered, "a write failed for a conflict"


async def test_heads_are_locked_and_connections_cut(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["heads_locked"]) < MOST_S
        assert await run.fault(KINDS["database_connections_cut"]) < MOST_S


async def test_a_network_to_the_database_that_is_silent_or_a_trickle(start: Start) -> None:
    async with start() as run:
        for kind in ("database_link_silent", "database_link_trickles"):
            assert await run.fault(KINDS[kind]) < MOST_S
