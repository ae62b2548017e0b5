"""NATS and PostgreSQL that die, hang, run out of disk, lose it, or refuse."""

from __future__ import annotations

import asyncio
import random

import asyncpg
from nats.js import JetStreamContext
from ringcast_testkit import NatsServer
from ringcast_wire import names

from tests.integration.faults.arena import STORE, Arena, off
from tests.integration.faults.fault import PAST_A_LEASE_S, hold, kind, on_jetstream

# ---- NATS


@kind("nats")
async def nats_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to every server, and a restart on the same data."""
    await asyncio.gather(*(off(server.kill) for server in arena.servers.values()))
    await hold(arena, chance, 0, 4)
    await asyncio.gather(*(off(server.start) for server in arena.servers.values()))


@kind("nats", "server")
async def nats_away_past_a_lease(arena: Arena, chance: random.Random) -> None:
    """SIGKILL, and no server until every lease has ended."""
    server = _server(arena)
    await off(server.kill)
    await asyncio.sleep(chance.uniform(*PAST_A_LEASE_S))
    await off(server.start)


@kind("nats", "server")
async def nats_lost_its_disk(arena: Arena, chance: random.Random) -> None:
    """SIGKILL, and a restart with an empty disk: streams, consumers, leases, members and settings are all gone."""
    server = _server(arena)
    await off(server.kill)
    await off(arena.wipe)
    await off(server.start)


@kind("nats", "server")
async def nats_paused(arena: Arena, chance: random.Random) -> None:
    """SIGSTOP: connections stay open, and nothing answers."""
    server = _server(arena)
    await off(server.pause)
    await hold(arena, chance, 2, 14)
    await off(server.resume)


@kind("nats", "server")
async def disk_full(arena: Arena, chance: random.Random) -> None:
    """Every write of the broker fails with ENOSPC; JetStream gives up, and an operator makes room and restarts it."""
    assert arena.disk is not None
    server = _server(arena)
    async with asyncio.timeout(60):
        while not _gave_up(server):
            await off(arena.disk.fill)
            await asyncio.sleep(0.1)
    await hold(arena, chance, 0, 5)
    await off(server.kill)
    await off(arena.disk.free)
    await off(server.start)


@kind("nats", "cluster")
async def leader_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to the server that leads the stream of events; it comes back after the others have elected another."""
    await _lead_killed(arena, chance, names.notify_stream(STORE))


@kind("nats", "cluster")
async def lease_leader_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to the server that leads the bucket of leases."""
    await _lead_killed(arena, chance, f"KV_{names.LEASES_BUCKET}")


@kind("nats", "cluster")
async def member_paused(arena: Arena, chance: random.Random) -> None:
    """SIGSTOP to one server of three, the leader or another."""
    server = arena.servers[chance.choice(sorted(arena.servers))]
    await off(server.pause)
    await hold(arena, chance, 3, 12)
    await off(server.resume)


def _server(arena: Arena) -> NatsServer:
    (server,) = arena.servers.values()
    return server


def _gave_up(server: NatsServer) -> bool:
    return any("DISABLED" in line or "no space left" in line for line in list(server.process.log))


async def _lead_killed(arena: Arena, chance: random.Random, stream: str) -> None:
    leader: str | None = None

    async def ask(js: JetStreamContext) -> None:
        nonlocal leader
        info = await js.stream_info(stream)
        leader = info.cluster.leader if info.cluster else None

    await on_jetstream(arena, ask)
    if leader is None:
        return
    await off(arena.servers[leader].kill)
    await hold(arena, chance, 1, 8)
    await off(arena.servers[leader].start)


# ---- the database


@kind("database")
async def database_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to the server and all its processes; it recovers from its log."""
    assert arena.postgres is not None
    await off(arena.postgres.kill)
    await hold(arena, chance, 0, 4)
    await off(arena.postgres.restart)


@kind("database")
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


@kind("database")
async def database_conflicts(arena: Arena, chance: random.Random) -> None:
    """Somebody else changes the same heads, so that the writes of the service can't be serialised with theirs."""
    own = await asyncpg.connect(arena.database)
    try:
        for _ in range(chance.randint(20, 60)):
            try:
                async with own.transaction(isolation="serializable"):
                    await own.execute(
                        "UPDATE partitions SET floor = floor WHERE partition % 3 = $1", chance.randrange(3)
                    )
                    await asyncio.sleep(chance.uniform(0, 0.02))
            except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
                continue
            await asyncio.sleep(chance.uniform(0, 0.1))
    finally:
        await own.close()
