"""Agents and consumers of key-shared dispatch that die under load."""

from __future__ import annotations

import random

from nats.js import JetStreamContext
from ringcast_testkit import AgentProcess
from ringcast_wire import names

from tests.integration.faults.arena import STORE, Arena, off
from tests.integration.faults.dispatch_arena import ConsumerProcess, DispatchArena
from tests.integration.faults.fault import hold, kind, on_jetstream

_BUCKET = names.groups_bucket(STORE)


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


@kind("agent", "dispatch")
async def agent_killed_thrice(arena: Arena, chance: random.Random) -> None:
    """SIGKILL, and again to each life as soon as it serves, whatever it has of the group by then."""
    agent = _agent(arena)
    for _ in range(3):
        await off(agent.kill)
        await off(agent.start)
        await hold(arena, chance, 0, 2)


@kind("agent", "dispatch")
async def agent_copied(arena: Arena, chance: random.Random) -> None:
    """A second agent with the same id runs beside the first, as of a host that was copied, with a consumer that it has
    no group for; then it is killed."""
    assert isinstance(arena, DispatchArena)
    copy = arena.another_agent()
    await off(copy.start)
    consumer = arena.consumer_of(copy, "copied")
    await off(consumer.start)
    try:
        await hold(arena, chance, 2, 6)
    finally:
        await off(consumer.kill)
        await off(copy.kill)


@kind("seals", "dispatch")
async def seals_put_back(arena: Arena, chance: random.Random) -> None:
    """The seals of the group say again what they said some time ago, as after a restore."""
    found: dict[str, bytes] = {}

    async def read(js: JetStreamContext) -> None:
        kv = await js.key_value(_BUCKET)
        for key in await kv.keys():
            found[key] = (await kv.get(key)).value or b""

    async def put(js: JetStreamContext) -> None:
        kv = await js.key_value(_BUCKET)
        for key, value in found.items():
            await kv.put(key, value)

    await on_jetstream(arena, read)
    await hold(arena, chance, 1, 4)
    await on_jetstream(arena, put)


@kind("seals", "dispatch")
async def seals_removed(arena: Arena, chance: random.Random) -> None:
    """The seals of the group are gone, one half of them after the other."""
    keys: list[str] = []

    async def remove(js: JetStreamContext) -> None:
        kv = await js.key_value(_BUCKET)
        found = await kv.keys()
        keys[:] = keys or chance.sample(found, len(found) // 2)
        for key in keys:
            await kv.delete(key)

    for _ in range(2):
        await on_jetstream(arena, remove)
        keys.clear()
        await hold(arena, chance, 0, 2)


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
