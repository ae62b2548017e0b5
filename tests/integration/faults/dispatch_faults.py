"""Agents and consumers of key-shared dispatch that die under load."""

from __future__ import annotations

import random

from ringcast_testkit import AgentProcess

from tests.integration.faults.arena import Arena, off
from tests.integration.faults.dispatch_arena import ConsumerProcess, DispatchArena
from tests.integration.faults.fault import hold, kind


@kind("agent", "dispatch")
async def agent_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL with messages in flight, and a new life that has to wait for its predecessor's lease."""
    agent = _agent(arena)
    await off(agent.kill)
    await hold(arena, chance, 0, 3)
    await off(agent.start)


@kind("agent", "dispatch")
async def agent_replaced(arena: Arena, chance: random.Random) -> None:
    """An orderly end, with a drain, and a new start, as a deployment does it."""
    agent = _agent(arena)
    await off(agent.terminate)
    await off(agent.start)


@kind("consumers", "dispatch")
async def consumer_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL; others get what it had once it is evicted, and it comes back sooner or later than that."""
    consumer = _consumer(arena, chance)
    await off(consumer.kill)
    await hold(arena, chance, 0, 12)
    await off(consumer.start)


def _agent(arena: Arena) -> AgentProcess:
    assert isinstance(arena, DispatchArena)
    assert arena.agent is not None
    return arena.agent


def _consumer(arena: Arena, chance: random.Random) -> ConsumerProcess:
    assert isinstance(arena, DispatchArena)
    return arena.consumers[chance.choice(sorted(arena.consumers))]
