"""PostgreSQL that dies, hangs, refuses, or is locked by others, and the network between it and a service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import asyncpg
from ringcast_testkit import PATIENCE_S, TcpProxy

from tests.integration.faults.arena import Arena, off
from tests.integration.faults.fault import hold, kind

_UPDATED = tuple(f"u-{number}" for number in range(3_000))
"""Rows of the large bulk writes."""
_MORE_TURNS = 1_000
"""How often a stranger who has met nobody goes on: on a busy machine the service writes little."""


@kind("database", database="postgres")
async def database_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to the server and all its processes; it recovers from its log."""
    assert arena.postgres is not None
    await off(arena.postgres.kill)
    await hold(arena, chance, 0, 4)
    await off(arena.postgres.restart)


@kind("database", database="postgres")
async def database_connections_cut(arena: Arena, chance: random.Random) -> None:
    """Every connection to the database is broken, again and again, in the middle of whatever it does."""
    own = await asyncpg.connect(arena.database)
    try:
        for _ in range(chance.randint(3, 12)):
            await own.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await asyncio.sleep(chance.uniform(0, 0.4))
    finally:
        await own.close()


@kind("database", database="postgres")
async def database_conflicts(arena: Arena, chance: random.Random) -> None:
    """Somebody else changes the same heads in serializable transactions, which wait for the service and it for them."""
    own = await asyncpg.connect(arena.database)
    try:
        turns = chance.randint(20, 60)
        while turns > 0 or (not arena.met["conflicts"] and turns > -_MORE_TURNS):
            turns -= 1
            try:
                async with own.transaction(isolation="serializable"):
                    await own.execute(
                        "UPDATE partitions SET floor = floor WHERE partition % 3 = $1", chance.randrange(3)
                    )
                    await asyncio.sleep(chance.uniform(0, 0.02))
            except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
                arena.met["conflicts"] += 1
                continue
            await asyncio.sleep(chance.uniform(0, 0.1))
    finally:
        await own.close()


@kind("database", database="postgres")
async def database_read_only(arena: Arena, chance: random.Random) -> None:
    """Every write is refused, as by a primary that was demoted or a managed database that is full."""
    assert arena.postgres is not None
    await off(arena.postgres.ask, "ALTER SYSTEM SET default_transaction_read_only = on")
    await off(arena.postgres.ask, "SELECT pg_reload_conf()")
    await hold(arena, chance, 3, 12)
    await off(arena.postgres.ask, "ALTER SYSTEM RESET default_transaction_read_only")
    await off(arena.postgres.ask, "SELECT pg_reload_conf()")


@kind("database", database="postgres")
async def heads_locked(arena: Arena, chance: random.Random) -> None:
    """A stranger's transaction has the heads of two partitions of each key; all others take writes meanwhile."""
    load = arena.load
    assert load is not None
    first = chance.randrange(arena.shape.partitions)
    locked = [first, (first + 1) % arena.shape.partitions]
    others = [(key, row_id) for key, partition, row_id in arena.probe_rows() if partition not in locked]
    own = await asyncpg.connect(arena.database)
    try:
        async with own.transaction():
            await own.execute("SELECT head FROM partitions WHERE partition = ANY($1) FOR UPDATE", locked)
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                for key, row_id in others:
                    tasks.create_task(load.put(key, row_id, chance))
            await hold(arena, chance, 3, 12)
    finally:
        await own.close()


@kind("database", database="postgres")
async def bulk_beside_single_writes(arena: Arena, chance: random.Random) -> None:
    """One service updates thousands of rows, twice, while another takes single writes to the same partitions."""
    assert arena.load is not None
    load, names = arena.load, sorted(arena.services)
    bulk, single = names[0], names[-1]
    key = chance.choice(arena.shape.keys)
    rounds = asyncio.create_task(_update(arena, key, bulk))
    while not rounds.done():
        await load.put(key, f"s-{chance.randrange(12)}", chance, single)
        await asyncio.sleep(0.01)
    await rounds


async def _update(arena: Arena, key: str, service: str) -> None:
    assert arena.load is not None
    for _ in range(2):
        await arena.load.update(key, _UPDATED, service)


# ---- the network between one service and the database


async def _weather(arena: Arena, chance: random.Random, change: Callable[[TcpProxy], None], low_s: float) -> None:
    link = arena.database_links[chance.choice(sorted(arena.database_links))]
    await off(change, link)
    await hold(arena, chance, low_s, 3 * low_s)
    await off(link.resume)


@kind("database", database="postgres")
async def database_link_cut(arena: Arena, chance: random.Random) -> None:
    """One service loses its connections to the database, and gets no new ones for a while."""
    await _weather(arena, chance, TcpProxy.cut, 2)


@kind("database", database="postgres")
async def database_link_silent(arena: Arena, chance: random.Random) -> None:
    """Nothing gets through between one service and the database, and no connection breaks."""
    await _weather(arena, chance, TcpProxy.silence, 5)


@kind("database", database="postgres")
async def database_link_trickles(arena: Arena, chance: random.Random) -> None:
    """Some thousand bytes a second get through between one service and the database."""
    rate = chance.uniform(2_000, 20_000)
    await _weather(arena, chance, lambda link: link.trickle(rate), 4)
