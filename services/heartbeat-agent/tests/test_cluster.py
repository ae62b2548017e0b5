"""Agents say in a metadata store that they are there, and drain: what hosts share goes to others, each row once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ringcast import Worker
from ringcast.dispatch import Delivery
from ringcast_heartbeat_agent.config import Config
from ringcast_meta import LocalCache, open_store
from ringcast_meta.cluster import AgentLoad, Member, MemberKind, member_named, members_of, want_active, want_drain
from ringcast_service import ConfigError
from ringcast_service.cluster import ClusterSettings
from ringcast_testkit import PATIENCE_S, AgentProcess, NatsServer, until
from ringcast_testkit.dispatch import Followed, following, hold, status_until, unsettled, until_sealed

PARTITIONS = 16
ROWS = [f"r{number}" for number in range(24)]
AGENT = MemberKind.AGENT


def agent_of(cache: LocalCache, agent_id: str) -> Member | None:
    return next((each for each in members_of(cache.entries()) if each.id == agent_id), None)


async def reports(cache: LocalCache, agent_id: str, is_so: Callable[[AgentLoad], bool]) -> None:
    """Waits until an agent says so of its load."""

    def said() -> bool:
        member = agent_of(cache, agent_id)
        load = member.record.load if member is not None and member.record is not None else None
        return isinstance(load, AgentLoad) and is_so(load)

    await cache.wait_until(said, PATIENCE_S)


async def in_state(cache: LocalCache, agent_id: str, state: str) -> Member:
    """Waits until an agent says that it is in a state."""

    def there() -> bool:
        member = agent_of(cache, agent_id)
        return member is not None and member.record is not None and member.record.state == state

    await cache.wait_until(there, PATIENCE_S)
    return member_named(members_of(cache.entries()), agent_id)


class Kept:
    """Answers every delivery but those of one row, which it keeps until it is told to answer."""

    def __init__(self, row_id: str) -> None:
        self._row_id = row_id
        self._keeps = True
        self._deliveries: list[Delivery] = []

    def __call__(self, delivery: Delivery) -> None:
        if self._keeps and delivery.row_id == self._row_id:
            self._deliveries.append(delivery)
        else:
            delivery.ack()

    def answer(self) -> None:
        """Answers what it has kept, and from now on all: the agent may deliver the row again."""
        self._keeps = False
        for delivery in self._deliveries:
            delivery.ack()


async def each_once(consumers: tuple[Followed, ...], write: Any, value: str) -> None:
    """Writes all rows, and waits until each was delivered at one of the consumers; none was at two or twice."""
    before = [len(one.deliveries) for one in consumers]
    await write(**dict.fromkeys(ROWS, value))

    def given() -> list[str]:
        new = (delivery for one, n in zip(consumers, before, strict=True) for delivery in one.deliveries[n:])
        return sorted(delivery.row_id for delivery in new if delivery.value == value)

    await until(lambda: len(given()) >= len(ROWS))
    assert given() == sorted(ROWS)


async def test_an_agent_says_that_it_is_there_and_leaves(
    tmp_path: Path, shared_nats: NatsServer, http_get: Callable[..., Any]
) -> None:
    address = f"{shared_nats.url}/members"
    options = ("--cluster-store", address)
    async with open_store(address, create=True) as store, LocalCache(store) as cache:
        with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
            await cache.wait_until(lambda: len(members_of(cache.entries())) == 1, PATIENCE_S)
            (member,) = members_of(cache.entries())
            assert (member.kind, member.record is not None) == (AGENT, True)
            assert member.record is not None
            assert (member.record.pid, member.record.address) == (agent.process.pid, agent.grpc_address)
            assert f"http://{member.record.metrics}/metrics" == agent.metrics_url
            assert member.record.load == AgentLoad(groups=0, consumers=0, lag=0, cpu=member.record.load.cpu)
            # Its id is made up, so the wish for it goes with it.
            await want_drain(store, AGENT, member.id, "its host is to be replaced")
            await in_state(cache, member.id, "drained")
            health = await asyncio.to_thread(http_get, f"{agent.http_url}/v1.0/healthz/outbound")
            assert (health.status, "the agent is drained" in health.body["message"]) == (500, True)
            assert (await asyncio.to_thread(http_get, f"{agent.http_url}/v1.0/healthz")).status == 204
            assert await asyncio.to_thread(agent.terminate) == 0
            await cache.wait_until(lambda: not cache.entries(), PATIENCE_S)


async def test_an_agent_reports_how_busy_it_is(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """With a group of two consumers, one of which leaves, and changes that nobody has answered."""
    address = f"{shared_nats.url}/loads"
    options = ("--cluster-store", address, "--id", "busy")
    async with open_store(address, create=True) as store, LocalCache(store) as cache:
        with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
            await reports(cache, "busy", lambda load: (load.groups, load.consumers, load.lag) == (0, 0, 0))
            async with following(agent, store_name, answer=hold, changes_only=True):
                async with following(agent, store_name, "two", answer=hold, changes_only=True):
                    await reports(cache, "busy", lambda load: (load.groups, load.consumers) == (1, 2))
                await reports(cache, "busy", lambda load: (load.groups, load.consumers, load.lag) == (1, 1, 0))
                await write(**dict.fromkeys(ROWS, "1"))
                await reports(cache, "busy", lambda load: load.lag == len(ROWS) and load.cpu > 0)


async def test_a_draining_agent_gives_its_groups_and_workers_up_and_takes_them_again(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, write: Any, store_name: str, http_get: Callable[..., Any]
) -> None:
    """No row is lost, and none is delivered twice, at whichever host."""
    address, socket = f"{shared_nats.url}/config_cluster", tmp_path / "leases.sock"
    common = ("--cluster-store", address, "--drain-timeout", str(PATIENCE_S))
    one_of = ("--id", "drained", "--lease-socket", str(socket), "--app-url", "http://127.0.0.1:1")
    kept = Kept("r1")
    await asyncio.to_thread(writer.put, store_name, "apart", "a", "1")
    async with open_store(address, create=True) as store, LocalCache(store) as cache:
        with (
            AgentProcess(tmp_path / "one", nats_url=shared_nats.url, options=(*common, *one_of)) as first,
            AgentProcess(tmp_path / "two", nats_url=shared_nats.url, options=(*common, "--id", "stays")) as second,
        ):
            worker = Worker(servers=shared_nats.url, store=store_name, keys=["apart"], worker_id="w", agent=str(socket))
            async with (
                following(first, store_name, answer=kept, changes_only=True) as one,
                following(second, store_name, "two", changes_only=True) as two,
                worker,
            ):
                await worker.wait_ready(timeout_s=PATIENCE_S)
                # An agent that a busy machine leaves waiting may have lost its lease for a moment.
                await until(lambda: worker.health().by_agent)
                await reports(cache, "drained", lambda load: load.workers == 1)
                for agent in (first, second):
                    await status_until(agent, store_name, lambda group: 0 < group["partitions_held"] < PARTITIONS)
                await status_until(first, store_name, lambda group: not group["partitions_awaited"])
                await status_until(second, store_name, lambda group: not group["partitions_awaited"])
                await each_once((one, two), write, "1")
                assert one.deliveries
                assert two.deliveries

                await want_drain(store, AGENT, "drained")
                await in_state(cache, "drained", "draining")
                refused = await asyncio.to_thread(
                    http_get,
                    f"{first.http_url}/v1.0/configuration/{store_name}/subscribe?key=list",
                    dapr_api_token=first.token,
                )
                assert (refused.status, "the agent is to drain" in refused.body["message"]) == (500, True)
                health = await asyncio.to_thread(http_get, f"{first.http_url}/v1.0/healthz/outbound")
                assert "the agent is draining" in health.body["message"]
                kept.answer()  # until then the host is not drained, if the row is at this one
                drained = (await in_state(cache, "drained", "drained")).record
                assert drained is not None
                assert isinstance(drained.load, AgentLoad)
                assert (drained.load.groups, drained.load.consumers, drained.load.workers) == (0, 0, 0)
                await status_until(second, store_name, lambda group: group["partitions_held"] == PARTITIONS)
                assert worker.health().lease_held
                assert not worker.health().by_agent
                assert [row.value for row in worker.rows("apart")] == ["1"]
                count = len(one.deliveries)
                await each_once((one, two), write, "2")
                assert len(one.deliveries) == count

                # Its id is its own, so that it drains after a restart, too.
                assert await asyncio.to_thread(first.terminate) == 0
                await cache.wait_until(lambda: agent_of(cache, "drained") is None, PATIENCE_S)
                await asyncio.to_thread(first.start)
                await in_state(cache, "drained", "drained")
                await want_active(store, AGENT, "drained")
                await in_state(cache, "drained", "active")
                await status_until(first, store_name, lambda group: 0 < group["partitions_held"] < PARTITIONS)
                for agent in (first, second):
                    await status_until(agent, store_name, lambda group: not group["partitions_awaited"])
                await until(lambda: worker.health().by_agent)
                await each_once((one, two), write, "3")


async def test_a_drain_ends_although_a_delivery_is_never_answered(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """The host waits for the answer for the bound, and no longer. Then another host has the row, with all others."""
    address = f"{shared_nats.url}/stuck"
    common = ("--cluster-store", address, "--drain-timeout", "1")
    unanswered: list[Delivery] = []

    def answer(delivery: Delivery) -> None:
        unanswered.append(delivery) if delivery.row_id == "r1" else delivery.ack()

    async with open_store(address, create=True) as store, LocalCache(store) as cache:
        with (
            AgentProcess(tmp_path / "one", nats_url=shared_nats.url, options=(*common, "--id", "stuck")) as first,
            AgentProcess(tmp_path / "two", nats_url=shared_nats.url, options=(*common, "--id", "takes")) as second,
        ):
            async with following(first, store_name, answer=answer, changes_only=True) as one:
                await write(**dict.fromkeys(ROWS, "1"))
                await one.values(dict.fromkeys(ROWS, "1"))
                await until_sealed(shared_nats.url, store_name, unsettled(1, PARTITIONS))
                early: list[Any] = []

                def takes(delivery: Delivery) -> None:
                    if delivery.row_id == "r1":
                        early.extend(group for group in first.status()["groups"] if group["in_flight"])
                    delivery.ack()

                async with following(second, store_name, "two", answer=takes, changes_only=True) as two:
                    await status_until(second, store_name, lambda group: group["partitions_held"] > 0)
                    await want_drain(store, AGENT, "stuck")
                    await in_state(cache, "stuck", "draining")
                    count = len(one.deliveries)
                    changed: dict[str, str | None] = {**dict.fromkeys(ROWS, "2"), "r9": None}
                    await write(**changed)
                    await in_state(cache, "stuck", "drained")
                    await two.values(changed)
                    await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
                    assert (len(unanswered), len(one.deliveries)) == (1, count), "a draining host delivers nothing new"
                    unanswered[0].ack()  # too late: it says nothing of what the other host has settled
                    await write(r1="3")
                    await two.values({"r1": "3"})
                    told = two.delivered()
                    assert told.count(("r9", None)) == 1, "a deletion meanwhile is told"
                    assert len([each for each in told if each[1] == "2"]) == len(ROWS) - 1
                    assert not early, "the row was in flight on both hosts"


def test_a_store_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="cluster_store: address 'redis://here/x' is not a metadata store"):
        Config(cluster=ClusterSettings(store="redis://here/x"))
