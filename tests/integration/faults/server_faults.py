"""NATS that dies, hangs, runs out of room, or loses its disk."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import nats.js.errors
from nats.js import JetStreamContext
from ringcast_testkit import NatsServer
from ringcast_wire import names

from tests.integration.faults.arena import STORE, Arena, off
from tests.integration.faults.fault import PAST_A_LEASE_S, hold, kind, on_jetstream

_STRANGER: Final = "STRANGER"
_BLOCK: Final = 256 * 1024
_NO_ROOM: Final = (10023, 10047)
"""The server's codes for a store that is full: the whole of it, or the part of it for files."""


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


@kind("nats", "server", strategy="peer")
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
        while not gave_up(server):
            await off(arena.disk.fill)
            await asyncio.sleep(0.1)
    await hold(arena, chance, 0, 5)
    await off(server.kill)
    await off(arena.disk.free)
    await off(server.start)


@kind("nats", "server")
async def broker_full(arena: Arena, chance: random.Random) -> None:
    """A stranger's stream takes all that the broker may store, for longer than a lease; then it is deleted."""
    await on_jetstream(arena, _take_all_room)
    await asyncio.sleep(chance.uniform(*PAST_A_LEASE_S))
    await on_jetstream(arena, lambda js: js.delete_stream(_STRANGER))


async def _take_all_room(js: JetStreamContext) -> None:
    await js.add_stream(name=_STRANGER, subjects=[_STRANGER])
    while True:
        try:
            await js.publish(_STRANGER, bytes(_BLOCK))
        except nats.js.errors.APIError as error:
            if error.err_code not in _NO_ROOM:
                raise
            return


@kind("nats", "cluster")
async def leader_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to the server that leads the stream of events; it comes back after the others have elected another."""
    await _lead_killed(arena, chance, names.notify_stream(STORE))


@kind("nats", "cluster", strategy="peer")
async def lease_leader_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to the server that leads the bucket of leases."""
    await _lead_killed(arena, chance, f"KV_{names.LEASES_BUCKET}")


@kind("nats", "cluster", strategy="sticky")
async def owners_leader_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to the server that leads the bucket of owners."""
    await _lead_killed(arena, chance, f"KV_{names.owners_bucket(STORE)}")


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


def gave_up(server: NatsServer) -> bool:
    """Whether a server has said that its disk is full, since it was started."""
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
