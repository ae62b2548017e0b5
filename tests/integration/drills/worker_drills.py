"""Faults of workers: their processes, and their applications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from ringcast_testkit import until
from ringcast_wire import names

from tests.integration.drills.application import HOLD, STALL
from tests.integration.drills.drill import drill
from tests.integration.drills.site import GATEWAY, KEY, SPARE, Shape, Site
from tests.integration.faults.arena import off

LATE = (
    "RingcastDeliveryBudgetBurnsFast",
    "RingcastDeliveryBudgetBurns",
    "RingcastLag",
    "RingcastChangesLate",
    "RingcastWorkerStale",
)
"""What late changes bring about, whatever makes them late."""
GONE = ("RingcastPartitionsWithoutOwner", "RingcastWorkerDown", "RingcastWorkerLost", *LATE)
"""What workers bring about that are killed."""


@drill(
    "RingcastBacklog",
    "RingcastLag",
    "RingcastDeliveryBudgetBurnsFast",
    "RingcastDeliveryBudgetBurns",
    companions=("RingcastChangesLate", "RingcastWorkerStale", "RingcastRedeliveries", "RingcastHandlerStalled"),
    shape=Shape.SMALL,
)
async def handler_is_slow(site: Site) -> AsyncGenerator[None, None]:
    """Changes come faster than handlers that take two seconds for each.

    No more of them come.
    """
    rows = [f"slow-{number}" for number in range(400)]
    places = iter(range(10**9))

    async def write() -> None:
        batch = [rows[next(places) % len(rows)] for _ in range(40)]
        await asyncio.gather(*(site.put(GATEWAY, f"late:{2 + next(places) / 1e9:.9f}", row_id) for row_id in batch))

    async with site.repeating(write, 0.05):
        yield
    await asyncio.gather(*(site.put(GATEWAY, "good", row_id) for row_id in rows))


@drill(
    "RingcastWorkerDown",
    "RingcastWorkerLost",
    "RingcastPartitionsWithoutOwner",
    companions=LATE,
    shape=Shape.SMALL,
)
async def worker_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to one worker of three.

    It is started again.
    """
    worker = site.workers["gateway-0"]
    await off(worker.kill)
    yield
    await site.started(worker)


@drill("RingcastNoWorkers", companions=GONE, shape=Shape.SMALL)
async def all_workers_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to all three workers of a key.

    They are started again.
    """
    workers = site.of_store(GATEWAY)
    for worker in workers:
        await off(worker.kill)
    yield
    await asyncio.gather(*(site.started(worker) for worker in workers))


@drill("RingcastChangesDropped", shape=Shape.SMALL)
async def handler_raises(site: Site) -> AsyncGenerator[None, None]:
    """The handler raises for one row, each time that it is called.

    The row gets a value that the handler takes.
    """
    row_id = await site.put(GATEWAY, "fail")
    yield
    await site.put(GATEWAY, "good", row_id)


@drill("RingcastRowsBlocked")
async def handler_raises_and_blocks(site: Site) -> AsyncGenerator[None, None]:
    """The handler raises for one row of a worker whose poison policy is to block it.

    The row gets a value that the handler takes.
    """
    row_id = await site.put(SPARE, "fail")
    yield
    await site.put(SPARE, "good", row_id)


@drill(
    "RingcastHandlerStalled",
    "RingcastChangesLate",
    "RingcastWorkerStale",
    companions=(
        "RingcastDeliveryBudgetBurnsFast",
        "RingcastDeliveryBudgetBurns",
        "RingcastLag",
        "RingcastRedeliveries",
    ),
    shape=Shape.SMALL,
)
async def handler_hangs(site: Site) -> AsyncGenerator[None, None]:
    """The handler does not return from one row, and more changes of the row come meanwhile.

    It returns.
    """
    async with site.file(HOLD):
        row_id = await site.put(GATEWAY, "hold")
        await site.put(GATEWAY, "behind it", row_id)
        yield


@drill(
    "RingcastCallbackStalled",
    companions=(*LATE, "RingcastPartitionsUnloaded", "RingcastPartitionsWithoutOwner"),
    shape=Shape.SMALL,
)
async def callback_hangs(site: Site) -> AsyncGenerator[None, None]:
    """A worker leaves in order, and on_assigned of the others does not return.

    It returns, and the worker comes back.
    """
    worker = site.workers["gateway-2"]
    async with site.file(STALL):
        await site.ended(worker)
        yield
    await site.started(worker)


@drill("RingcastFiltersNearLimit", companions=LATE)
async def few_workers_for_much(site: Site) -> AsyncGenerator[None, None]:
    """One of three workers of 930 partitions leaves in order.

    It comes back.
    """
    worker = site.workers["spare-2"]
    await site.ended(worker)
    yield
    await site.started(worker)


@drill(
    "RingcastServiceDown",
    "RingcastNoService",
    "RingcastPartitionsUnloaded",
    "RingcastFetchesFail",
    companions=(*GONE, "RingcastBootstrapSlow", "RingcastOutboxOld"),
    shape=Shape.SMALL,
)
async def services_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to all config services, and a worker leaves, so that the others gain partitions that they can't load.

    The services are started again, and the worker comes back.
    """
    services = list(site.services.values())
    for service in services:
        await off(service.kill)
    worker = site.workers["gateway-1"]
    await site.ended(worker)
    yield
    await asyncio.gather(*(off(service.start) for service in services))
    await site.started(worker)


@drill("RingcastUnreadableEvents", shape=Shape.SMALL)
async def event_of_a_stranger(site: Site) -> AsyncGenerator[None, None]:
    """Something that is no event is published on a subject of the store.

    It was only one.
    """
    async with site.bus() as bus:
        await bus.jetstream().publish(names.notify_subject(GATEWAY, KEY, 0), b"no event")
    yield


@drill("RingcastHeartbeatsFail", companions=GONE, shape=Shape.SMALL)
async def worker_cut_off(site: Site) -> AsyncGenerator[None, None]:
    """The network between one worker and NATS is silent.

    It is well again.
    """
    links = site.links["gateway-0"]
    for link in links:
        await off(link.silence)
    yield
    for link in links:
        await off(link.resume)


@drill(
    "RingcastConsumerUpdatesFail",
    "RingcastKeyFailing",
    "RingcastSubjectsRefused",
    companions=(*LATE, "RingcastPartitionsUnloaded", "RingcastRebalances", "RingcastWorkerLost"),
    shape=Shape.SMALL,
)
async def consumers_refused(site: Site) -> AsyncGenerator[None, None]:
    """NATS lets no worker of a key make or change consumers any more, theirs are deleted, and one worker leaves.

    It lets them again, and the worker comes back.
    """
    stream = names.notify_stream(GATEWAY)
    workers = site.of_store(GATEWAY)
    subject = f"$JS.API.CONSUMER.CREATE.{stream}.>"
    async with site.denied({worker.worker_id: (subject,) for worker in workers}):
        async with site.bus() as bus:
            for worker in workers:
                await bus.jetstream().delete_consumer(stream, names.consumer_name("ringcast", worker.worker_id, 0))
        await site.ended(workers[-1])
        yield
    await site.started(workers[-1])


@drill(
    "RingcastLoginRefused",
    companions=(
        *GONE,
        "RingcastHeartbeatsFail",
        "RingcastAgentDisconnected",
        "RingcastAgentStale",
        "RingcastServiceDisconnected",
        "RingcastJetStreamUnseen",
    ),
)
async def logins_refused(site: Site) -> AsyncGenerator[None, None]:
    """NATS gets other passwords for a worker, a config service and the agent than they have.

    It gets the first ones again.
    """
    changed = ("gateway-1", "service-1", "agent-0")
    first = {name: site.logins.passwords[name] for name in changed}
    site.logins.passwords |= {name: f"{name}-rotated" for name in changed}
    await site.reload_logins()
    await until(lambda: _all_refused(site))
    yield
    site.logins.passwords |= first
    await site.reload_logins()


@drill("RingcastRedeliveries", companions=(*LATE, "RingcastBacklog", "RingcastSubjectsRefused"), shape=Shape.SMALL)
async def acknowledgements_refused(site: Site) -> AsyncGenerator[None, None]:
    """NATS does not let a worker acknowledge its events any more.

    It lets it again.
    """
    async with site.denied({"gateway-0": ("$JS.ACK.>",)}):
        yield


async def _all_refused(site: Site) -> bool:
    refused = await off(site.prometheus.ask, 'count({__name__=~".*_login_refused"} == 1)')
    return bool(refused == ["3"])


@drill("RingcastRebalances", companions=GONE, shape=Shape.SMALL)
async def workers_keep_dying(site: Site) -> AsyncGenerator[None, None]:
    """Six workers join three others, and four of them are killed one after another, each once its lease has ended.

    The other two leave in order.
    """
    joiners = [site.worker(f"joiner-{number}", GATEWAY) for number in range(6)]
    async with AsyncExitStack() as stack:
        for worker in joiners:
            stack.callback(worker.kill)
            await site.started(worker)
        for worker in joiners[:4]:
            site.forgotten(worker)
            await off(worker.kill)
            await asyncio.sleep(1)  # so that the others see each of them end by itself
        yield
        for worker in joiners[4:]:
            await site.ended(worker)
