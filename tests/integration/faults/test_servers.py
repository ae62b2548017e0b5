"""NATS and PostgreSQL that die, lose their disk, have none left, or lose their leader, under load."""

from __future__ import annotations

import pytest
from ringcast_testkit import SmallDisk

from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS

MOST_S = 40.0


async def test_nats_is_killed_and_loses_its_disk(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["nats_killed"]) < MOST_S
        assert await run.fault(KINDS["nats_lost_its_disk"]) < MOST_S


async def test_a_full_disk_of_the_broker(start: Start) -> None:
    if not SmallDisk.supported():
        pytest.skip("no right to make a mount namespace here")
    async with start(small_disk=True) as run:
        assert await run.fault(KINDS["disk_full"]) < MOST_S


async def test_a_cluster_loses_the_leader_of_its_events(start: Start) -> None:
    async with start(cluster=True, partitions=16) as run:
        assert await run.fault(KINDS["leader_killed"]) < MOST_S


async def test_the_database_is_killed(start: Start) -> None:
    async with start(own_postgres=True) as run:
        assert await run.fault(KINDS["database_killed"]) < MOST_S


async def test_connections_to_the_database_are_cut_and_writes_conflict(start: Start) -> None:
    async with start(service_options=("--log-level", "debug")) as run:
        assert await run.fault(KINDS["database_connections_cut"]) < MOST_S
        assert await run.fault(KINDS["database_conflicts"]) < MOST_S
        said = [line for service in run.arena.services.values() for line in list(service.process.log)]
        assert any("sqlstate=40001" in line for line in said), "the conflicts were none"
