"""What is forgotten, deleted or repeated on the bus, and the network of one process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import nats.errors
import nats.js.errors
from ringcast_testkit import TcpProxy
from ringcast_wire import names

from tests.integration.faults.arena import STORE, Arena, off
from tests.integration.faults.fault import PAST_A_LEASE_S, a_worker, hold, kind, on_jetstream, taken_over


@kind("bus")
async def consumer_deleted(arena: Arena, chance: random.Random) -> None:
    """The server forgets the durable consumer of a worker."""
    await on_jetstream(arena, lambda js: js.delete_consumer(names.notify_stream(STORE), _consumer(arena, chance)))


@kind("bus")
async def stream_purged(arena: Arena, chance: random.Random) -> None:
    """Every event is gone from the stream, heard or not."""
    await on_jetstream(arena, lambda js: js.purge_stream(names.notify_stream(STORE)))


@kind("bus")
async def stream_deleted(arena: Arena, chance: random.Random) -> None:
    """The whole stream is gone, with every consumer on it; the service makes it anew."""
    await on_jetstream(arena, lambda js: js.delete_stream(names.notify_stream(STORE)))


@kind("bus", strategy="peer")
async def lease_deleted(arena: Arena, chance: random.Random) -> None:
    """The lease of a live worker disappears."""
    worker = a_worker(arena, chance)
    await on_jetstream(arena, lambda js: js.publish(f"$KV.{names.LEASES_BUCKET}.{worker.worker_id}", headers=_DELETED))


@kind("bus")
async def events_repeated(arena: Arena, chance: random.Random) -> None:
    """Old events come again, in another order, and not as copies that the server would know."""

    async def repeat(js: nats.js.JetStreamContext) -> None:
        stream = names.notify_stream(STORE)
        state = (await js.stream_info(stream)).state
        sequences = [chance.randint(state.first_seq, max(state.first_seq, state.last_seq)) for _ in range(200)]
        for sequence in sequences:
            try:
                message = await js.get_msg(stream, sequence)
            except nats.js.errors.NotFoundError:
                continue
            assert message.subject is not None
            await js.publish(message.subject, message.data or b"")

    await on_jetstream(arena, repeat)


_DELETED = {"KV-Operation": "DEL"}


def _consumer(arena: Arena, chance: random.Random) -> str:
    return names.consumer_name("ringcast", a_worker(arena, chance).worker_id, 0)


# ---- the network of one process


def _link(arena: Arena, chance: random.Random) -> list[TcpProxy]:
    return arena.links[chance.choice(sorted(arena.links))]


async def _weather(
    arena: Arena, chance: random.Random, change: Callable[[TcpProxy], None], low_s: float, high_s: float
) -> None:
    links = _link(arena, chance)
    for link in links:
        await off(change, link)
    await hold(arena, chance, low_s, high_s)
    for link in links:
        await off(link.resume)


@kind("links")
async def link_cut(arena: Arena, chance: random.Random) -> None:
    """One process loses its connections to NATS, and gets no new ones for a while."""
    await _weather(arena, chance, TcpProxy.cut, 0, 6)


@kind("links")
async def worker_cut_off(arena: Arena, chance: random.Random) -> None:
    """A worker has no connection until the others own what it owned; it goes on serving what it has."""
    worker = a_worker(arena, chance)
    for link in arena.links[worker.worker_id]:
        await off(link.cut)
    await taken_over(arena, worker.worker_id)
    await hold(arena, chance, 0, 3)
    for link in arena.links[worker.worker_id]:
        await off(link.resume)


@kind("links")
async def service_cut_off(arena: Arena, chance: random.Random) -> None:
    """A service takes writes and can publish none of them; another one, or the same later, does it."""
    for link in arena.links[chance.choice(sorted(arena.services))]:
        await off(link.cut)
    await asyncio.sleep(chance.uniform(*PAST_A_LEASE_S))
    for name in arena.services:
        for link in arena.links[name]:
            await off(link.resume)


@kind("links")
async def service_link_silent(arena: Arena, chance: random.Random) -> None:
    """Between one service and NATS nothing gets through for longer than a lease, and no connection breaks."""
    links = arena.links[chance.choice(sorted(arena.services))]
    for link in links:
        await off(link.silence)
    await asyncio.sleep(chance.uniform(*PAST_A_LEASE_S))
    for link in links:
        await off(link.resume)


@kind("links")
async def link_silent(arena: Arena, chance: random.Random) -> None:
    """Nothing gets through in either direction, and no connection breaks."""
    await _weather(arena, chance, TcpProxy.silence, 4, 16)


@kind("links")
async def link_slow(arena: Arena, chance: random.Random) -> None:
    """Everything takes a good part of a second longer."""
    delay_s = chance.uniform(0.1, 0.7)
    await _weather(arena, chance, lambda link: link.delay(delay_s), 4, 10)


@kind("links")
async def link_trickles(arena: Arena, chance: random.Random) -> None:
    """Some thousand bytes a second get through."""
    rate = chance.uniform(2_000, 30_000)
    await _weather(arena, chance, lambda link: link.trickle(rate), 4, 10)
