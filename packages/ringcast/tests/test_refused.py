"""What NATS does not let a worker do is told, and harms that worker's key or consumer alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import nats
import pytest
from prometheus_client import CollectorRegistry
from ringcast import UnavailableError, Worker
from ringcast.metrics import PrometheusMetrics
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until, until_done
from ringcast_wire import ConditionFailedError, Stage, limits, names
from ringcast_wire.owner_records import decode_table

SERVICE = {"user": "service", "password": "service"}
CREATE = "$JS.API.CONSUMER.CREATE"


def users(*, deaf: bool = True, fed: bool = True, dark: bool = False, robbed: bool = False) -> dict[str, Any]:
    """The users of the server, by what they may not do; ``deaf``: one makes no consumer; ``fed``: one may fetch;
    ``dark``: one reads no leases; ``robbed``: one makes no consumer any more.
    """
    denied = {
        "any": [],
        "few": ["$KV.config_nodes_few.Refused.>"],
        "none": ["$KV.config_nodes_few.>"],
        "deaf": [f"{CREATE}.config_notify_deaf.>"] if deaf else [],
        "moved": [f"{CREATE}.config_notify_moved.>"] if deaf else [],
        "mute": [f"{CREATE}.config_notify_{store}.>" for store in ("mute", "mutes")],
        "robbed": [f"{CREATE}.config_notify_{store}.>" for store in ("robbed", "robbery")] if robbed else [],
        "first": [f"{CREATE}.config_notify_first.{names.consumer_name('ringcast', 'first-w', 1)}"],
        "blind": [f"{CREATE}.KV_config_nodes_blind.>"],
        "still": ["$JS.API.CONSUMER.MSG.NEXT.config_notify_still.>"],
        "dark": [f"$JS.API.DIRECT.GET.KV_{names.LEASES_BUCKET}"] if dark else [],
        "untold": [] if fed else [names.fetch_subject("untold", "list", what) for what in (0, names.FETCH_BATCH)],
        "unfed": [names.fetch_subject("unfed", "list", 0)],
    }
    made = [
        {"user": user, "password": user, "permissions": {"publish": {"allow": [">"], "deny": deny}}}
        for user, deny in denied.items()
    ]
    return {"authorization": {"users": [SERVICE, *made]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), **users()) as made:
        yield made


@pytest.fixture(scope="module")
def service(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    directory = tmp_path_factory.mktemp("service")
    options = ("--nats-user", "service", "--nats-password", "service")
    database = f"sqlite:{directory / 'ringcast.db'}"
    with ConfigServiceProcess(directory, nats_url=server.url, database=database, options=options) as made:
        yield made


@pytest.fixture
async def client(service: ConfigServiceProcess) -> AsyncIterator[ConfigServiceClient]:
    async with ConfigServiceClient(service.address) as made:
        yield made


@pytest.fixture
def worker(server: NatsServer) -> Callable[..., Worker]:
    def make(store: str, name: str, user: str, keys: tuple[str, ...] = ("list",), **settings: Any) -> Worker:
        settings = {"servers": server.url, "user": user, "password": user, **settings}
        return Worker(store=store, keys=keys, worker_id=f"{store}-{name}", **settings)

    return make


async def test_a_key_that_can_not_be_registered_does_not_keep_the_others(
    client: ConfigServiceClient, worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_store("few", partition_count=8)
    with caplog.at_level(logging.WARNING):
        async with worker("few", "w", "few", ("Refused", "list")) as one:
            subject = "$KV.config_nodes_few.Refused.slot.0"
            written = await client.put("few", "list", "a", "1")
            await one.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)
            await until(lambda: one.health().keys[1].ready)
            health = one.health()
            refused, _ = health.keys
            assert subject in refused.failing_because
            assert subject in health.refused_subjects
            assert not refused.ready
            assert not health.ready
            assert one.staleness("Refused") > 0
            assert one.staleness("list") == 0
            (told,) = [record for record in caplog.records if getattr(record, "subject", None) == subject]
            assert told.levelno == logging.WARNING
            assert told.getMessage().startswith("event=nats.subject_refused ")


async def test_a_worker_that_may_register_no_key_says_so(
    client: ConfigServiceClient, worker: Callable[..., Worker]
) -> None:
    await client.create_store("none", partition_count=8)
    one = worker("few", "none", "none")
    with pytest.raises(UnavailableError, match=r"no key can be registered: .*\$KV\.config_nodes_few\.list\.slot\."):
        await one.start()


async def test_the_start_is_bounded_and_says_what_it_waited_for(
    client: ConfigServiceClient, worker: Callable[..., Worker]
) -> None:
    await client.create_store("blind", partition_count=8)
    one = worker("blind", "w", "blind", start_timeout_s=3.0)
    with pytest.raises(UnavailableError, match=r"did not start within 3 s: .*CONSUMER\.CREATE\.KV_config_nodes_blind"):
        await one.start()


async def test_a_partition_that_can_not_be_fetched_is_told(
    client: ConfigServiceClient, worker: Callable[..., Worker]
) -> None:
    await client.create_store("unfed", partition_count=4)
    registry = CollectorRegistry()
    async with worker("unfed", "w", "unfed", metrics=PrometheusMetrics(registry)) as one:
        await until(lambda: one.health().keys[0].loaded == 3)
        health = one.health()
        assert health.keys[0].owned == 4
        assert health.keys[0].unloaded_for_s > 0
        assert one.staleness() > 0
        assert not health.ready
        assert health.refused_subjects == (names.fetch_subject("unfed", "list", 0),)
        labels = {"store": "unfed", "key": "list", "worker_id": "unfed-w"}
        assert registry.get_sample_value("config_partitions_unloaded", labels) == 1
        refused = {"store": "unfed", "worker_id": "unfed-w"}
        assert registry.get_sample_value("config_refused_subjects_total", refused) >= 1  # type: ignore[operator]


async def test_changes_that_can_not_be_fetched_are_told(
    client: ConfigServiceClient, worker: Callable[..., Worker], server: NatsServer
) -> None:
    await client.create_store("untold", partition_count=1, inline_max_bytes=1)
    async with worker("untold", "w", "untold", heads_s=0.2) as one:
        await client.put("untold", "list", "a", "first")
        await until(lambda: one.row_count("list") == 1 and one.health().ready)
        await asyncio.to_thread(server.reload, **users(fed=False))
        written = await client.put("untold", "list", "a", "second")
        await until(lambda: one.health().keys[0].unfetched_for_s > 0)
        (health,) = one.health().keys
        assert not health.ready
        assert not one.health().ready
        assert one.staleness() > 0
        await asyncio.to_thread(server.reload, **users())
        await one.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)
        await until(lambda: one.health().ready and one.staleness() == 0)


async def test_leases_that_can_not_be_read_are_told(
    client: ConfigServiceClient, worker: Callable[..., Worker], server: NatsServer
) -> None:
    await client.create_store("dark", partition_count=8)
    async with worker("dark", "a", "any") as good, worker("dark", "b", "dark") as one:
        await until(lambda: good.health().ready and one.health().ready)
        await asyncio.to_thread(server.reload, **users(dark=True))
        await until(lambda: "leases" in one.health().keys[0].failing_because)
        assert not one.health().ready
        assert one.health().keys[0].loaded == one.health().keys[0].owned > 0
        assert good.health().ready
        await asyncio.to_thread(server.reload, **users())
        await until(lambda: one.health().ready)


async def test_a_worker_that_may_not_pull_hears_late_and_says_so(
    client: ConfigServiceClient, worker: Callable[..., Worker]
) -> None:
    await client.create_store("still", partition_count=4)
    async with worker("still", "w", "still", heads_s=0.2) as one:
        await until(lambda: one.health().refused_consumers)
        assert one.health().refused_consumers == ("ringcast-still-w",)
        await one.wait_ready(timeout_s=PATIENCE_S)
        assert not one.health().ready
        written = await client.put("still", "list", "a", "1")
        await one.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)


async def test_a_worker_that_gets_no_events_leaves_its_partitions_to_others_until_it_does(
    client: ConfigServiceClient, worker: Callable[..., Worker], server: NatsServer
) -> None:
    await client.create_store("deaf", partition_count=8)
    heard: set[str] = set()
    async with worker("deaf", "a", "any", handler=lambda change: heard.add(change.row_id)) as good:
        await good.wait_ready(timeout_s=PATIENCE_S)
        async with worker("deaf", "b", "deaf", update_tries=2) as deaf:
            await until(lambda: deaf.health().keys[0].withdrawn)
            await good.wait_until("list", lambda: len(good.owned("list")) == 8, timeout_s=PATIENCE_S)
            await good.wait_ready(timeout_s=PATIENCE_S)
            rows = {f"r{number}" for number in range(40)}
            for row in rows:
                await client.put("deaf", "list", row, "1")
            await until(lambda: heard >= rows)
            (health,) = deaf.health().keys
            assert f"{CREATE}.config_notify_deaf.ringcast-deaf-b" in health.failing_because
            assert health.owned == 0
            assert not deaf.health().ready
            assert deaf.staleness() > 0
            assert good.health().ready
            await asyncio.to_thread(server.reload, **users(deaf=False))
            await until(lambda: deaf.owned("list") and deaf.health().ready and good.health().ready)
            assert len(deaf.owned("list")) < 8
            assert deaf.owned("list").isdisjoint(good.owned("list"))
            written = await client.put("deaf", "list", "last", "1")
            owner = deaf if written.partition in deaf.owned("list") else good
            await owner.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)


async def rob(server: NatsServer, store: str, worker_id: str) -> None:
    """Deletes the consumer of a worker, which may make no other."""
    await asyncio.to_thread(server.reload, **users(robbed=True))
    async with await nats.connect(server.url, **SERVICE) as bus:
        consumer = names.consumer_name("ringcast", worker_id, 0)
        assert await bus.jetstream().delete_consumer(names.notify_stream(store), consumer)


async def test_a_worker_whose_consumer_is_lost_leaves_its_partitions_to_others_until_it_has_one(
    client: ConfigServiceClient, worker: Callable[..., Worker], server: NatsServer
) -> None:
    """It has loaded them all before: what is missing is what comes from then on."""
    await client.create_store("robbed", partition_count=8)
    async with worker("robbed", "a", "any") as good, worker("robbed", "b", "robbed", update_tries=2) as robbed:
        await until(lambda: good.health().ready and robbed.health().ready and bool(robbed.owned("list")))
        await rob(server, "robbed", "robbed-b")
        await until(lambda: robbed.health().keys[0].withdrawn)
        assert f"{CREATE}.config_notify_robbed.ringcast-robbed-b" in robbed.health().keys[0].failing_because
        assert not robbed.health().ready
        assert robbed.staleness() > 0
        await good.wait_until("list", lambda: len(good.owned("list")) == 8, timeout_s=PATIENCE_S)
        await asyncio.to_thread(server.reload, **users())
        await until(lambda: robbed.owned("list") and robbed.health().ready and good.health().ready)


async def test_a_worker_that_is_alone_and_whose_consumer_is_lost_says_so_and_hears_late(
    client: ConfigServiceClient, worker: Callable[..., Worker], server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_store("robbery", partition_count=8)
    registry = CollectorRegistry()
    settings: dict[str, Any] = {"update_tries": 2, "heads_s": 0.2, "metrics": PrometheusMetrics(registry)}
    async with worker("robbery", "w", "robbed", **settings) as one:
        await until(lambda: one.health().ready)
        await rob(server, "robbery", "robbery-w")
        await until(lambda: one.health().keys[0].failing_because != "")
        (health,) = one.health().keys
        assert (health.owned, health.withdrawn) == (8, False)
        assert not one.health().ready
        assert one.staleness() > 0
        labels = {"store": "robbery", "key": "list", "worker_id": "robbery-w"}
        assert registry.get_sample_value("config_key_failing", labels) == 1
        assert caplog.text.count("event=key.kept_without_events ") == 1
        written = await client.put("robbery", "list", "a", "1")
        await one.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)
        await asyncio.to_thread(server.reload, **users())
        await until(lambda: one.health().ready and one.staleness() == 0)
        assert registry.get_sample_value("config_key_failing", labels) == 0


async def test_a_worker_that_is_alone_keeps_what_it_has(
    client: ConfigServiceClient, worker: Callable[..., Worker]
) -> None:
    await client.create_store("mute", partition_count=8)
    async with worker("mute", "alone", "mute", update_tries=1) as deaf:
        await until(lambda: deaf.health().keys[0].failing_because != "" and deaf.health().keys[0].loaded == 8)
        (health,) = deaf.health().keys
        assert (health.owned, health.withdrawn) == (8, False)
        assert deaf.staleness() > 0
        assert not deaf.health().ready


async def test_not_all_of_the_workers_that_get_no_events_leave_a_key(
    client: ConfigServiceClient, worker: Callable[..., Worker]
) -> None:
    await client.create_store("mutes", partition_count=8)
    settings: dict[str, Any] = {"update_tries": 1, "heads_s": 0.2}
    async with worker("mutes", "b", "any") as good:
        async with worker("mutes", "a", "mute", **settings) as second:
            await until(lambda: second.health().keys[0].withdrawn)
        async with worker("mutes", "c", "mute", **settings) as third:
            await until(lambda: third.health().keys[0].withdrawn)
            await good.stop()
            await until(lambda: third.health().keys[0].loaded == 8)
            async with worker("mutes", "a", "mute", **settings) as fourth:
                both = (third, fourth)
                await until(
                    lambda: (
                        {(w.health().keys[0].loaded, w.health().keys[0].withdrawn) for w in both}
                        == {(8, False), (0, True)}
                    )
                )
                owner = third if third.owned("list") else fourth
                assert owner.health().keys[0].failing_because
                assert not owner.health().ready
                written = await client.put("mutes", "list", "a", "1")
                await owner.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)
                assert owner.row_count("list") == 1


async def test_consumers_are_confirmed_one_at_a_time(
    client: ConfigServiceClient, worker: Callable[..., Worker]
) -> None:
    """What the second of them lacks is no reason to load nothing."""
    await client.create_store("first", partition_count=1_200)
    most = limits.MAX_FILTERS_PER_CONSUMER
    async with worker("first", "other", "any") as other:
        await other.wait_ready(timeout_s=PATIENCE_S)
        async with worker("first", "w", "first", update_tries=100) as one:
            await one.wait_until("list", lambda: one.health().keys[0].loaded == most, timeout_s=PATIENCE_S)
            (health,) = one.health().keys
            assert health.owned > most
            assert not one.health().ready
            assert one.staleness() > 0


async def test_a_worker_that_gets_no_events_is_made_no_owner_until_it_does(
    client: ConfigServiceClient, worker: Callable[..., Worker], server: NatsServer
) -> None:
    """It left its partitions to others before its store migrated."""
    await asyncio.to_thread(server.reload, **users())  # a test before this one has let it make consumers
    await client.create_store("moved", partition_count=8)
    await client.migrate_store("moved", Stage.SHADOW)
    async with worker("moved", "a", "any") as good, worker("moved", "b", "moved", update_tries=2) as deaf:
        await until(lambda: deaf.health().keys[0].withdrawn)
        await good.wait_until("list", lambda: len(good.owned("list")) == 8, timeout_s=PATIENCE_S)
        for stage in (Stage.VALIDATE, Stage.SWITCH, Stage.FINISH):
            await until_done(partial(client.migrate_store, "moved", stage), ConditionFailedError)
        async with await nats.connect(server.url, **SERVICE) as bus:
            bucket = await bus.jetstream().key_value(names.owners_bucket("moved"))
            table = decode_table((await bucket.get(names.table_key("list"))).value or b"", 8)
        assert {entry.owner.worker_id for entry in table.entries if entry.owner} == {"moved-a"}
        await asyncio.to_thread(server.reload, **users(deaf=False))
        await until(lambda: len(deaf.owned("list")) == len(good.owned("list")) == 4)
        await asyncio.to_thread(server.reload, **users())
    await client.delete_store("moved", purge=True)  # it can't go back, and has its name from the users of the server
