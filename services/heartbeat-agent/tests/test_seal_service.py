"""The connection for the seals of groups: refused, and made again once NATS allows it; and how many seals it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import nats
import pytest
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.seal_keeper import SealCounts, SealKeeper
from ringcast_heartbeat_agent.dispatch.seal_pace import SealPace
from ringcast_heartbeat_agent.dispatch.seal_service import SealService
from ringcast_heartbeat_agent.dispatch.seals import Settled
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_testkit.seals import HostLease, SealBucket
from ringcast_wire import NatsLogin, names


class Group:
    """One that holds partition 0."""

    def __init__(self) -> None:
        self.why_not: str | None = None
        self.taken_at: Settled | None = None
        self.changed = asyncio.Event()

    def start(self, partition: int) -> Settled:
        del partition
        return Settled("h", 3)

    def settled(self) -> Mapping[int, Settled]:
        return {}

    def look(self) -> None:
        """Nothing is given up."""

    def acquired(self, partition: int, since: Settled, *, known: bool) -> None:
        del partition, known
        self.taken_at = since
        self.changed.set()

    def resumed(self, partition: int) -> None:
        """Not here."""

    def lost(self, partition: int) -> None:
        """Not here."""

    def unsealed(self, why: str) -> None:
        self.why_not = why
        self.changed.set()

    async def hears(self) -> None:
        """Waits for what comes next."""
        await asyncio.wait_for(self.changed.wait(), PATIENCE_S)
        self.changed.clear()


def allowing(password: str) -> dict[str, object]:
    return {"users": [{"user": "agent", "password": password}, {"user": "service", "password": "service"}]}


async def test_a_group_whose_connection_for_seals_is_refused_says_so_and_goes_on_with_seals_once_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper_module = "ringcast_heartbeat_agent.dispatch.seal_keeper"
    monkeypatch.setattr(f"{keeper_module}._PATIENCE_S", 0.5)
    monkeypatch.setattr(f"{keeper_module}._AGAIN_S", 0.1)
    monkeypatch.setattr("ringcast_heartbeat_agent.dispatch.seal_service._CONNECT_S", 0.3)
    lease, group = HostLease(SealBucket(), "one"), Group()
    with NatsServer(tmp_path, authorization=allowing("another")) as server:
        client = await nats.connect(server.url, user="service", password="service")
        for bucket in (names.groups_bucket("s"), names.LEASES_BUCKET):
            await client.jetstream().create_key_value(bucket=bucket, direct=True)
        async with asyncio.TaskGroup() as tasks:
            config = Config(nats=(server.url,), nats_login=NatsLogin(user="agent", password="agent"))
            service = SealService(config, tasks.create_task)
            running = tasks.create_task(service.run())
            keeper = service.keeper(("s", "list", "g"), group, lease)
            keeper.seals.own([0], 0.0)
            await group.hears()
            assert "can't be read or written: the agent has no connection to NATS for the seals" in str(group.why_not)
            assert "Authorization Violation" in str(group.why_not)
            assert keeper.is_held(0)
            assert service.not_durable == 1
            await asyncio.to_thread(server.change, authorization=allowing("agent"))
            while group.why_not:
                await group.hears()
            assert group.taken_at == Settled("h", 3)
            assert service.not_durable == 0
            # Once for each reason: the first attempt may end before the server has refused it.
            assert 1 <= caplog.text.count("groups.connection_failed") <= 2
            service.stop()
            running.cancel()
        await client.close()


class Busy(Group):
    """Settles something of each of its partitions all the time."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions
        self.revision = 3

    def settled(self) -> Mapping[int, Settled]:
        self.revision += 1
        return dict.fromkeys(range(self.partitions), Settled("h", self.revision))


async def test_a_busy_group_writes_so_many_seals_and_hands_over_at_once() -> None:
    """Its claims are not counted."""
    bucket, most, partitions = SealBucket(), 20, 200
    group, counts = Busy(partitions), SealCounts()
    lease = HostLease(bucket, "one")
    keeper = SealKeeper(("s", "list", "g"), bucket, group, lease, counts, SealPace(most))
    keeper.seals.own(range(partitions), 0.0)
    running = asyncio.create_task(keeper.run(None))
    began = asyncio.get_running_loop().time()

    async def until(seals: int) -> float:
        async with asyncio.timeout(PATIENCE_S):
            while counts.written < seals:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - began

    took_s = await until(partitions + 2 * most)
    assert counts.written <= partitions + most * (1 + took_s) + 1
    assert took_s >= 0.9  # a second's worth at once, then by the second
    before = counts.written
    released = keeper.seals.give_up(range(partitions))
    for partition in released:
        keeper.seals.release(partition, Settled("h", 9))
    keeper.close()
    await asyncio.wait_for(running, PATIENCE_S)
    assert len(released) == partitions
    took_s = asyncio.get_running_loop().time() - began
    assert counts.written >= before + partitions > partitions + most * (1 + took_s)
    assert all(entry.seal is not None and not entry.seal.holder for entry in bucket.entries.values())


def test_all_groups_of_a_host_write_no_more_seals_than_it_may_and_each_gets_some() -> None:
    pace, written = SealPace(1_000), [0, 0, 0]
    for turn in range(50):  # 10 s, and each group would write without end
        for group in range(3):
            written[group] += pace.take(turn * 0.2)
    assert 0.9 * 10_000 <= sum(written) <= 11_000
    assert min(written) > 0.1 * sum(written)


def test_what_a_group_does_not_write_others_may() -> None:
    pace = SealPace(1_000)
    taken = pace.take(1.0)
    pace.give_back(taken)
    assert pace.take(1.0) == taken == 500
