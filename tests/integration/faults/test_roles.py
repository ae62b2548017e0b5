"""Roles and policies while services and databases fail: nobody is let in who must not be, limits stay exact, and the
load of a writer loses nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from ringcast_testkit import attempt

from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS


async def test_a_run_that_is_over_before_the_store_is_full_goes_on_until_it_is(start: Start) -> None:
    """Without a fault the load would not have met the limits, which the judge takes for a finding."""
    async with start(policies=True, keys=("routes",), workers=1, services=1, partitions=8) as run:
        assert not run.load.ledger.limited
    assert run.load.ledger.limited


@attempt(
    "a reader, a principal without a role, and one with an unknown token",
    "write, after services, NATS and workers were killed under the load of a writer",
    "refused by each service; no write is lost, no row is stale, and the store has exactly as many rows as it may",
)
@pytest.mark.parametrize("sqlite", [False, True])
async def test_roles_and_limits_hold_and_the_load_of_a_writer_loses_nothing(start: Start, sqlite: bool) -> None:
    words: dict[str, Any] = {"sqlite": True, "services": 1} if sqlite else {}
    async with start(roles=True, policies=True, callout=True, partitions=8, **words) as run:
        for name in ("service_killed", "nats_killed", "worker_killed"):
            await run.fault(KINDS[name])
