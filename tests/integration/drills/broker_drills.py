"""Faults of NATS: servers that are away, and room that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterable, Iterator

from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError
from ringcast_testkit import PATIENCE_S
from ringcast_wire import RingcastError, names

from tests.integration.drills.drill import drill
from tests.integration.drills.service_drills import WRITES
from tests.integration.drills.site import GATEWAY, KEY, Shape, Site
from tests.integration.drills.worker_drills import LATE
from tests.integration.faults.arena import off
from tests.integration.faults.server_faults import gave_up

_NO_BROKER = (
    *(*LATE, "RingcastHeartbeatsFail", "RingcastOutboxOld", "RingcastJetStreamUnseen", "RingcastGroupsBucketSilent"),
    *("RingcastStoreNotProvisioned", "RingcastConsumerUpdatesFail", "RingcastKeyFailing", "RingcastAgentStale"),
)
"""What a NATS brings about that takes nothing."""
_NEXT = "late"
_SHARE = 0.93
"""How full something is made of which 90 % are too much."""


@drill(
    "RingcastStoreNotProvisioned",
    "RingcastJetStreamNearlyFull",
    companions=(*LATE, "RingcastStreamSilent"),
    shape=Shape.SMALL,
)
async def no_room_for_a_store(site: Site) -> AsyncGenerator[None, None]:
    """The account gets no more room at JetStream than is reserved already, and a store is created.

    The account gets more room, and the store is deleted.
    """
    reserved = int(
        float((await off(site.prometheus.ask, 'max(config_service_jetstream_reserved_bytes{storage="disk"})'))[0])
    )
    await site.set_limits(max_file=reserved + 4096)
    with contextlib.suppress(RingcastError):  # it is recorded, and that it can't be made is what is wanted
        await site.client.create_store(_NEXT, partition_count=4)
    yield
    await site.set_limits()
    await site.client.delete_store(_NEXT, purge=True)


@drill(
    "RingcastGroupsBucketSilent",
    companions=(*LATE, "RingcastJetStreamNearlyFull", "RingcastStoreNotProvisioned", "RingcastAgentGroupsNotDurable"),
    shape=Shape.SMALL,
)
async def groups_bucket_lost(site: Site) -> AsyncGenerator[None, None]:
    """The broker loses the bucket of groups of a store, and the account has no room for another.

    The account gets more room, and the service makes the bucket again.
    """
    bucket = f"KV_{names.groups_bucket(GATEWAY)}"
    async with site.bus() as bus:
        js = bus.jetstream(timeout=10)
        size = (await js.stream_info(bucket)).config.max_bytes
        assert size
        reserved = await site.number('max(config_service_jetstream_reserved_bytes{storage="disk"})')
        await js.delete_stream(bucket)
        await site.set_limits(max_file=reserved - size + 4096)
        with contextlib.suppress(NotFoundError):
            await js.delete_stream(bucket)  # the service was faster
    yield
    await site.set_limits()


@drill("RingcastAccountConsumersNearLimit", companions=LATE, shape=Shape.SMALL)
async def few_consumers_for_the_account(site: Site) -> AsyncGenerator[None, None]:
    """The account may have half of the consumers that it has.

    It may have any number.
    """
    there = await site.number("max(config_service_jetstream_consumers)")
    await site.set_limits(max_consumers=max(1, there // 2))  # some of them end by themselves
    yield
    await site.set_limits()


def batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    """The items, so many at a time."""
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch


@drill("RingcastConsumersNearLimit", companions=LATE, shape=Shape.SMALL)
async def many_consumers(site: Site) -> AsyncGenerator[None, None]:
    """The stream of events of a store gets 910 consumers, as of workers whose ids change at each start.

    They are deleted.
    """
    stream = names.notify_stream(GATEWAY)
    async with site.bus() as bus:
        js = bus.jetstream(timeout=30)
        for strays in batched((f"stray-{number}" for number in range(910)), 35):
            made = [ConsumerConfig(durable_name=stray, mem_storage=True) for stray in strays]
            await asyncio.gather(*(js.add_consumer(stream, config) for config in made))
        yield
        for strays in batched((f"stray-{number}" for number in range(910)), 35):
            await asyncio.gather(*(js.delete_consumer(stream, stray) for stray in strays))


@drill("RingcastStreamNearlyFull", companions=(*LATE, "RingcastGroupsBucketSilent"), shape=Shape.SMALL)
async def bucket_nearly_full(site: Site) -> AsyncGenerator[None, None]:
    """The bucket of groups of a store gets records until it is 93 % full.

    It is deleted, and the service makes it again.
    """
    bucket = names.groups_bucket(GATEWAY)
    async with site.bus() as bus:
        js = bus.jetstream(timeout=10)
        config = (await js.stream_info(f"KV_{bucket}")).config
        assert config.max_bytes
        assert config.max_msg_size
        seal = bytes(config.max_msg_size // 2)
        subjects = (f"$KV.{bucket}.{names.seal_key(KEY, 'stranger', number)}" for number in itertools.count())
        while (await js.stream_info(f"KV_{bucket}")).state.bytes < _SHARE * config.max_bytes:
            await asyncio.gather(*(js.publish(subject, seal) for subject in itertools.islice(subjects, 4)))
        yield
        await js.delete_stream(f"KV_{bucket}")


@drill(
    "RingcastStreamReplicasBehind",
    companions=(*LATE, *WRITES, "RingcastHeartbeatsFail", "RingcastStreamSilent", "RingcastPublishFailures"),
    shape=Shape.CLUSTER,
)
async def one_server_of_three_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to one server of a NATS cluster of three.

    It is started again.
    """
    server = site.servers["n2"]
    await off(server.kill)
    yield
    await off(server.start)


@drill(
    "RingcastStreamSilent",
    companions=(
        *_NO_BROKER,
        "RingcastPublishFailures",
        "RingcastStreamReplicasBehind",
        "RingcastPartitionsUnloaded",
    ),
    shape=Shape.CLUSTER,
)
async def two_servers_of_three_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to two servers of a NATS cluster of three: no stream has a leader.

    One of them is started again, and then the other.
    """
    lost = [site.servers["n1"], site.servers["n2"]]
    for server in lost:
        await off(server.kill)
    yield
    for server in lost:
        await off(server.start)


@drill("RingcastPublishFailures", companions=(*_NO_BROKER, "RingcastStreamSilent"), shape=Shape.SMALL_DISK)
async def disk_of_the_broker_full(site: Site) -> AsyncGenerator[None, None]:
    """The disk of NATS is filled, until JetStream gives up.

    An operator makes room, and restarts NATS.
    """
    server, disk = site.servers["nats"], site.disk
    assert disk is not None
    async with asyncio.timeout(PATIENCE_S):
        while not gave_up(server):
            await off(disk.fill)
            await asyncio.sleep(0.1)
    yield
    await off(server.kill)
    await off(disk.free)
    await off(server.start)
