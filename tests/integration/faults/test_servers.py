"""NATS that dies, loses its disk, has no room left, or loses its leader, under load."""

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


async def test_a_stranger_takes_all_the_room_of_the_broker(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["broker_full"]) < MOST_S


async def test_a_cluster_loses_the_leader_of_its_events(start: Start) -> None:
    async with start(cluster=True, partitions=16) as run:
        assert await run.fault(KINDS["leader_killed"]) < MOST_S
