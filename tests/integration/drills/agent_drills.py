"""Faults of the heartbeat agent, and of the groups that it serves."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from tests.integration.drills.drill import drill
from tests.integration.drills.site import Shape, Site
from tests.integration.drills.worker_drills import LATE
from tests.integration.faults.arena import off


@drill("RingcastAgentDown", companions=LATE, shape=Shape.SMALL)
async def agent_killed(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to the agent.

    It is started again.
    """
    await off(site.agent.kill)
    yield
    await off(site.agent.start)
