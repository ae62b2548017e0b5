"""A record that goes back, under load: every worker comes to what is left of it, and what is written then stays."""

from __future__ import annotations

import pytest

from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS

MOST_S = 60.0


@pytest.mark.parametrize("kind", ["failover_to_a_lagging_replica", "failover_that_is_told"])
async def test_a_replica_that_lags_takes_over(start: Start, kind: str) -> None:
    async with start(own_postgres=True) as run:
        assert await run.fault(KINDS[kind]) < MOST_S
    assert run.outcome.taken_back, "the replica lacked nothing"


async def test_a_file_is_replaced_by_an_older_copy_and_lost(start: Start) -> None:
    async with start(sqlite=True, services=1) as run:
        assert await run.fault(KINDS["file_replaced_by_an_older_copy"]) < MOST_S
        assert run.load.ledger.taken_back, "the copy lacked nothing"
        assert await run.fault(KINDS["file_lost"]) < MOST_S
