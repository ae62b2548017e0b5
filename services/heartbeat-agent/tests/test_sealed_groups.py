"""Groups whose positions hosts tell each other: agents that are killed, join, stop, are paused, and a lost bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from ringcast.dispatch import Delivery
from ringcast.groups import read_groups, reset_group
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_testkit.dispatch import following, hold, status_until, unsettled, until_sealed
from ringcast_wire import InUseError, names

PARTITIONS = 16
ROWS = [f"r{number}" for number in range(24)]


async def shared_out(first: AgentProcess, second: AgentProcess, store: str) -> None:
    """Waits until both hosts know which partitions have gone from the first to the second."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            given = await status_until(second, store, lambda group: group["partitions_awaited"] > 0)
            kept = await status_until(first, store, lambda group: group["partitions_held"] < PARTITIONS)
            if kept["partitions_held"] + given["partitions_held"] + given["partitions_awaited"] == PARTITIONS:
                return


def answers_but(*row_ids: str) -> Callable[[Delivery], None]:
    """Answers every delivery but those of some rows."""

    def answer(delivery: Delivery) -> None:
        if delivery.row_id not in row_ids:
            delivery.ack()

    return answer


async def test_the_successor_of_a_killed_agent_repeats_what_was_not_answered(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """And tells what was deleted and changed meanwhile. Its consumer has what it was given before."""
    await write(**dict.fromkeys(ROWS, "1"))
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--id", "killed", "--linger", "60")) as agent:
        async with following(agent, store_name, answer=answers_but("r1", "r2")) as one:
            await one.values(dict.fromkeys(ROWS, "1"))
            await until_sealed(shared_nats.url, store_name, unsettled(2, PARTITIONS))
            before = len(one.deliveries)
            await asyncio.to_thread(agent.kill)
            await write(r7=None, r8="2", r2="2")
            await asyncio.to_thread(agent.start)
            expected = [("r1", "1"), ("r2", "2"), ("r7", None), ("r8", "2")]
            await one.until(lambda deliveries: len(deliveries) >= before + len(expected))
            await until_sealed(shared_nats.url, store_name, unsettled(2, PARTITIONS))
            assert one.delivered(before) == expected
            assert (await status_until(agent, store_name, lambda group: not group["partitions_awaited"]))["durable"]


async def test_a_fresh_consumer_of_the_successor_begins_with_the_rows(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    await write(a="1", b="1")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--id", "fresh")) as agent:
        async with following(agent, store_name) as one:
            await one.values({"a": "1", "b": "1"})
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            await asyncio.to_thread(agent.kill)
        await write(a=None)
        await asyncio.to_thread(agent.start)
        async with following(agent, store_name, "another") as one:
            await one.values({"a": None, "b": "1"})
            assert len(one.deliveries) == 2


async def test_no_row_is_in_flight_on_two_hosts(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """A host that joins gets its partitions once the other has answered what it had of them."""
    await write(**dict.fromkeys(ROWS, "1"))
    with (
        AgentProcess(tmp_path / "c", nats_url=shared_nats.url, options=("--id", "hostc")) as first,
        AgentProcess(tmp_path / "d", nats_url=shared_nats.url, options=("--id", "hostd")) as second,
    ):
        async with following(first, store_name, answer=hold) as one:
            await one.values(dict.fromkeys(ROWS, "1"))
            async with following(second, store_name, "two", changes_only=True) as two:
                await shared_out(first, second, store_name)
                await write(**dict.fromkeys(ROWS, "2"))
                assert not two.deliveries
                for delivery in one.deliveries:
                    delivery.ack()
                await status_until(second, store_name, lambda group: not group["partitions_awaited"])
                async with asyncio.timeout(PATIENCE_S):
                    while {**one.newest, **two.newest} != dict.fromkeys(ROWS, "2"):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                # Each of them once more, at one of both hosts.
                assert len(one.deliveries) + len(two.deliveries) == 2 * len(ROWS)
                assert two.deliveries


async def test_a_host_that_stops_hands_over_what_it_has_not_answered(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    options = ("--drain-timeout", "0.2")
    with (
        AgentProcess(tmp_path / "e", nats_url=shared_nats.url, options=("--id", "hoste", *options)) as first,
        AgentProcess(tmp_path / "f", nats_url=shared_nats.url, options=("--id", "hostf")) as second,
    ):
        async with following(first, store_name, answer=answers_but("r1"), changes_only=True) as one:
            await write(**dict.fromkeys(ROWS, "1"))
            await one.values(dict.fromkeys(ROWS, "1"))
            await until_sealed(shared_nats.url, store_name, unsettled(1, PARTITIONS))
            await asyncio.to_thread(first.terminate)
            await write(r2=None)
            async with following(second, store_name, "two", changes_only=True) as two:
                await two.values({"r1": "1", "r2": None})
                assert len(two.deliveries) == 2


async def test_an_agent_that_was_paused_for_longer_than_its_lease_has_lost_its_partitions(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """What its consumers answer then counts for nothing: others have the rows."""
    kept: list[Delivery] = []
    with (
        AgentProcess(tmp_path / "g", nats_url=shared_nats.url, options=("--id", "hostg")) as first,
        AgentProcess(tmp_path / "h", nats_url=shared_nats.url, options=("--id", "hosth")) as second,
    ):
        async with following(first, store_name, answer=kept.append, changes_only=True) as one:
            await write(a="1", b="1")
            await one.values({"a": "1", "b": "1"})
            await until_sealed(shared_nats.url, store_name, unsettled(2, PARTITIONS))
            await asyncio.to_thread(first.pause)
            try:
                async with following(second, store_name, "two", answer=hold, changes_only=True) as two:
                    await two.values({"a": "1", "b": "1"})  # the lease of the other has ended
                    for delivery in kept:
                        delivery.ack()
                    await asyncio.to_thread(first.resume)
                    await asyncio.to_thread(
                        first.process.wait_until, lambda: "event=group.partition_lost" in first.process.describe("")
                    )
                    seals = (await read_groups(shared_nats.url, store_name))[0].partitions
                    assert unsettled(2, PARTITIONS)(seals)  # the late answers have settled nothing
                    for delivery in two.deliveries:
                        delivery.ack()
                    await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            finally:
                await asyncio.to_thread(first.resume)


async def test_a_bucket_that_is_deleted_is_filled_again(
    tmp_path: Path, nats_server: NatsServer, writer_to: Callable[[ConfigServiceProcess], Any], store_name: str
) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    options = ("--provision-interval", "1s")
    with (
        ConfigServiceProcess(
            tmp_path / "service", nats_url=nats_server.url, database=database, options=options
        ) as service,
        AgentProcess(tmp_path / "agent", nats_url=nats_server.url, options=("--id", "lost")) as agent,
    ):
        writer = writer_to(service)
        await asyncio.to_thread(writer.create, store_name)
        async with following(agent, store_name, changes_only=True) as one:
            await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
            await one.values({"a": "1"})
            await until_sealed(nats_server.url, store_name, unsettled(0, PARTITIONS))
            client = await nats.connect(nats_server.url)
            await client.jetstream().delete_stream(f"KV_{names.groups_bucket(store_name)}")
            await client.close()
            await asyncio.to_thread(writer.put, store_name, "list", "a", "2")
            await one.values({"a": "2"})
            await until_sealed(nats_server.url, store_name, unsettled(0, PARTITIONS))
            assert len(one.deliveries) == 2


async def test_without_the_bucket_a_group_works_as_before_and_the_agent_says_so(
    tmp_path: Path, writer_to: Callable[[ConfigServiceProcess], Any], store_name: str
) -> None:
    """Here NATS refuses it to the agent; an older service has none."""
    bucket = f"KV_{names.groups_bucket(store_name)}"
    denied = [f"$JS.API.DIRECT.GET.{bucket}", f"$JS.API.DIRECT.GET.{bucket}.>", f"$KV.{bucket.removeprefix('KV_')}.>"]
    permissions = {"publish": {"allow": [">"], "deny": denied}}
    users = {
        "users": [
            {"user": "service", "password": "service"},
            {"user": "agent", "password": "agent", "permissions": permissions},
        ]
    }
    login = ("--nats-user", "service", "--nats-password", "service")
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with (
        NatsServer(tmp_path / "nats", authorization=users) as server,
        ConfigServiceProcess(tmp_path / "service", nats_url=server.url, database=database, options=login) as service,
        AgentProcess(
            tmp_path / "agent", nats_url=server.url, options=("--nats-user", "agent", "--nats-password", "agent")
        ) as agent,
    ):
        writer = writer_to(service)
        await asyncio.to_thread(writer.create, store_name)
        await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
        async with following(agent, store_name) as one, following(agent, store_name, group="h") as two:
            for each in (one, two):
                await each.values({"a": "1"})
            await asyncio.to_thread(writer.put, store_name, "list", "a", "2")
            for each in (one, two):
                await each.values({"a": "2"})
            group = await status_until(agent, store_name, lambda group: not group["durable"])
            assert f"NATS refuses $JS.API.DIRECT.GET.{bucket}" in group["not_durable_because"]
        assert agent.process.describe("").count("event=groups.not_durable") == 1


async def test_a_full_bucket_stops_no_group(
    tmp_path: Path, nats_server: NatsServer, config_service: ConfigServiceProcess, writer_to: Any, store_name: str
) -> None:
    writer = writer_to(config_service)
    await asyncio.to_thread(writer.create, store_name)
    client = await nats.connect(nats_server.url)
    bucket = names.groups_bucket(store_name)
    config = (await client.jetstream().stream_info(f"KV_{bucket}")).config
    await client.jetstream().update_stream(config.evolve(max_bytes=64))
    with AgentProcess(tmp_path, nats_url=nats_server.url, options=("--id", "full")) as agent:
        async with following(agent, store_name, changes_only=True) as one:
            await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
            await one.values({"a": "1"})
            group = await status_until(agent, store_name, lambda group: not group["durable"])
            assert "the bucket of groups takes no seal: " in group["not_durable_because"]
            await client.jetstream().update_stream(config)
            await until_sealed(nats_server.url, store_name, unsettled(0, PARTITIONS))
            await asyncio.to_thread(writer.put, store_name, "list", "a", "2")
            await one.values({"a": "2"})
            assert len(one.deliveries) == 2
    await client.close()


async def test_seals_are_written_again_once_nats_is_back(
    tmp_path: Path, nats_server: NatsServer, config_service: ConfigServiceProcess, writer_to: Any, store_name: str
) -> None:
    writer = writer_to(config_service)
    await asyncio.to_thread(writer.create, store_name)
    unanswered: list[Delivery] = []
    with AgentProcess(tmp_path, nats_url=nats_server.url, options=("--id", "away")) as agent:
        async with following(agent, store_name, answer=unanswered.append, changes_only=True) as one:
            await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
            await one.values({"a": "1"})
            await until_sealed(nats_server.url, store_name, unsettled(1, PARTITIONS))
            await asyncio.to_thread(nats_server.kill)
            unanswered[0].ack()
            await asyncio.to_thread(nats_server.start)
            await until_sealed(nats_server.url, store_name, unsettled(0, PARTITIONS))
            assert len(one.deliveries) == 1


async def test_a_group_that_is_reset_begins_with_every_row(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    await write(a="1", b="1")
    url = shared_nats.url
    with AgentProcess(tmp_path, nats_url=url, options=("--id", "reset", "--linger", "0.2")) as agent:
        async with following(agent, store_name, changes_only=True) as one:
            await until_sealed(url, store_name, unsettled(0, PARTITIONS))
            with pytest.raises(InUseError, match=f"group g of {store_name}/list is delivered by process"):
                await reset_group(url, store_name, "list", "g")
            assert await reset_group(url, store_name, "list", "g", force=True) == PARTITIONS
            await one.values({"a": "1", "b": "1"})  # the agent has seen that its seals are others
            await write(c="1")
            await one.values({"c": "1"})
        await asyncio.to_thread(agent.process.wait_until, lambda: not agent.status()["groups"])
        await until_sealed(url, store_name, lambda seals: all(each.lease is None for each in seals))
        await reset_group(url, store_name, "list", "g")
        async with following(agent, store_name, changes_only=True) as one:
            await one.values({"a": "1", "b": "1", "c": "1"})
