"""A credential that is refused for a while, and what the application does to its own worker, under load."""

from __future__ import annotations

import pytest

from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS

MOST_S = 40.0


async def test_a_password_is_rotated_and_rights_are_taken_away_for_a_while(start: Start) -> None:
    async with start() as run:
        for kind in ("password_rotated", "consumer_refused", "registration_refused"):
            assert await run.fault(KINDS[kind]) < MOST_S


async def test_a_token_is_rotated(start: Start) -> None:
    async with start(sqlite=True, services=1, token=True) as run:
        assert await run.fault(KINDS["token_rotated"]) < MOST_S


@pytest.mark.parametrize("kind", ["calls_cancelled", "worker_forked"])
async def test_what_the_application_does_to_its_worker(start: Start, kind: str) -> None:
    async with start(slow_workers=("worker1",)) as run:
        assert await run.fault(KINDS[kind]) < MOST_S
