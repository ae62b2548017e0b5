"""Faults of the heartbeat agent, and of the groups that it serves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from ringcast.dispatch import Delivery
from ringcast_testkit.dispatch import Followed, following, hold
from ringcast_wire import names

from tests.integration.drills.drill import drill
from tests.integration.drills.site import AGENT, GATEWAY, Shape, Site
from tests.integration.drills.worker_drills import GONE, LATE
from tests.integration.faults.arena import off


@asynccontextmanager
async def _consumer(
    site: Site, *, answer: Callable[[Delivery], object] = Delivery.ack, poison_policy: str = "drop"
) -> AsyncIterator[Followed]:
    """A consumer of a group of the first store, which has had every row."""
    async with following(site.agent, GATEWAY, answer=answer, poison_policy=poison_policy, group="drill") as followed:
        await followed.until(lambda deliveries: bool(deliveries))
        yield followed


@drill("RingcastAgentDown", companions=LATE, shape=Shape.SMALL)
async def agent_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to the agent.

    It is started again.
    """
    await off(site.agent.kill)
    yield
    await off(site.agent.start)


@drill(
    "RingcastAgentDisconnected",
    "RingcastAgentStale",
    companions=(*GONE, "RingcastAgentGroupsNotDurable", "RingcastHeartbeatsFail"),
    shape=Shape.SMALL,
)
async def agent_cut_off(site: Site) -> AsyncGenerator[None, None]:
    """The agent, which has a group with a consumer, loses its network to NATS.

    It is well again, and the consumer leaves.
    """
    async with _consumer(site):
        for link in site.links[AGENT]:
            await off(link.cut)
        yield
        for link in site.links[AGENT]:
            await off(link.resume)


@drill("RingcastAgentWorkersLost", companions=GONE, shape=Shape.SMALL)
async def worker_of_an_agent_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to a worker whose lease the agent keeps.

    It does not come back.
    """
    worker = site.worker("hosted-0", GATEWAY, agent=site.socket)
    try:
        await site.started(worker)
        site.forgotten(worker)
    finally:
        await off(worker.kill)
    yield


@drill("RingcastAgentGroupsNotDurable", companions=LATE, shape=Shape.SMALL)
async def seals_refused(site: Site) -> AsyncGenerator[None, None]:
    """NATS does not let the agent write how far its groups have come.

    It lets it again, and the consumer leaves.
    """
    async with _consumer(site), site.denied({AGENT: (f"$KV.{names.groups_bucket(GATEWAY)}.>",)}):
        yield


@drill("RingcastAgentGroupBehind", companions=LATE, shape=Shape.SMALL)
async def consumer_does_not_answer(site: Site) -> AsyncGenerator[None, None]:
    """The only consumer of a group with a window of ten messages answers none of its deliveries.

    It leaves.
    """
    async with _consumer(site, answer=hold):
        for number in range(40):
            await site.put(GATEWAY, "for the group", f"group-{number}")
        yield


@drill("RingcastAgentRowsBlocked", companions=(*LATE, "RingcastAgentGroupBehind"), shape=Shape.SMALL)
async def consumer_rejects(site: Site) -> AsyncGenerator[None, None]:
    """The consumer of a group that blocks its poison rejects every delivery of a row.

    It leaves, and the group ends with it.
    """

    def answer(delivery: Delivery) -> None:
        if delivery.value == "poison":
            delivery.reject("it can't take this row")
        else:
            delivery.ack()

    async with _consumer(site, answer=answer, poison_policy="block"):
        row_id = await site.put(GATEWAY, "poison")
        yield
        await site.put(GATEWAY, "good", row_id)
