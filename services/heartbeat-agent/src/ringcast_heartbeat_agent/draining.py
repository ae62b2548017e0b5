"""What an agent does to drain, and what it says of itself in the cluster."""

from __future__ import annotations

import asyncio

from ringcast_meta.cluster import AgentLoad

from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dispatch.groups import Dispatch
from ringcast_heartbeat_agent.dispatch.key_follower import KeyFollower
from ringcast_heartbeat_agent.dispatch.seal_service import SealService
from ringcast_heartbeat_agent.followers import Followers
from ringcast_heartbeat_agent.leases.host import HostLeases

_WHY = "the agent is to drain"


class DrainableAgent:
    """:class:`~ringcast_meta.cluster.Drainable`, over the parts of an agent.

    It gives up what hosts share: groups, partitions, and the leases of workers. Reads and subscriptions without a group
    go on, since no other host serves the applications of this one; but none is begun.
    """

    def __init__(
        self,
        handlers: Handlers,
        dispatch: Dispatch,
        seals: SealService,
        followers: Followers,
        leases: HostLeases | None,
    ) -> None:
        self._handlers = handlers
        self._dispatch = dispatch
        self._seals = seals
        self._followers = followers
        self._leases = leases

    async def begin_drain(self) -> None:
        """No subscription, consumer or worker is taken in."""
        self._handlers.refuse(_WHY)
        self._dispatch.refuse(_WHY)
        if self._leases is not None:
            self._leases.drain()

    async def finish_drain(self) -> None:
        """Groups end and are given up, then the partitions; meanwhile workers go over to leases of their own."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._give_groups_up())
            if self._leases is not None:
                tasks.create_task(self._leases.drained())

    async def end_drain(self) -> None:
        """All of it is taken up again. Consumers and workers come back by themselves."""
        if self._leases is not None:
            self._leases.resume()
        self._dispatch.refuse("")
        self._handlers.refuse("")

    async def _give_groups_up(self) -> None:
        """A partition goes to another host once its seal says that this one delivers it no more."""
        await self._dispatch.give_up(_WHY)
        await self._seals.given_up()
        await self._followers.leave_all(KeyFollower)


class Load:
    """How busy an agent is, for :class:`~ringcast_meta.cluster.MemberReport`."""

    def __init__(self, handlers: Handlers, dispatch: Dispatch, leases: HostLeases | None) -> None:
        self._handlers = handlers
        self._dispatch = dispatch
        self._leases = leases

    def __call__(self, _past_s: float, cpu: float) -> AgentLoad:
        figures = [group.figures() for group in self._dispatch.groups()]
        return AgentLoad(
            groups=len(figures),
            consumers=sum(each.consumers for each in figures),
            lag=sum(each.lag for each in figures),
            cpu=cpu,
            subscriptions=len(self._handlers.subscriptions),
            workers=0 if self._leases is None else len(self._leases.registry),
        )
