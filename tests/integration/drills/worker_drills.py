"""Faults of workers: their processes, and their applications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

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
    companions=("RingcastPartitionsWithoutOwner", *LATE),
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
