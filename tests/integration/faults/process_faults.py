"""Workers and config services that die, hang, come and go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random

import nats.js.errors
from ringcast_testkit import ConfigServiceProcess, WorkerProcess
from ringcast_wire import names

from tests.integration.faults.arena import Arena, off
from tests.integration.faults.fault import After, a_worker, hold, kind, on_jetstream, taken_over

# ---- workers


@kind("workers")
async def worker_killed(arena: Arena, chance: random.Random) -> After:
    """SIGKILL; the others take over when its lease ends, and it comes back after that."""
    worker = a_worker(arena, chance)
    arena.down.add(worker.worker_id)
    await off(worker.kill)
    return back(arena, worker)


@kind("workers")
async def worker_killed_and_restarted(arena: Arena, chance: random.Random) -> After:
    """SIGKILL, and a new process with the same id at once, which has to wait for its predecessor's lease."""
    worker = a_worker(arena, chance)
    await off(worker.kill)
    await off(worker.start)
    return arena.ready(worker)


@kind("workers")
async def worker_paused(arena: Arena, chance: random.Random) -> None:
    """SIGSTOP for longer than its lease: it wakes up believing in an ownership that it has lost."""
    worker = a_worker(arena, chance)
    await off(worker.pause)
    await taken_over(arena, worker.worker_id)
    await hold(arena, chance, 0, 3)
    await off(worker.resume)


@kind("workers")
async def worker_replaced(arena: Arena, chance: random.Random) -> After:
    """An orderly end and a new start, as a deployment does it."""
    worker = a_worker(arena, chance)
    await off(worker.terminate)
    await off(worker.start)
    return arena.ready(worker)


@kind("workers")
async def slot_taken(arena: Arena, chance: random.Random) -> After:
    """SIGSTOP for longer than a lease, while a new worker joins and takes the sleeper's place."""
    worker = a_worker(arena, chance)
    await off(worker.pause)
    await taken_over(arena, worker.worker_id)
    joined = joiner(arena)
    await off(joined.start)
    await arena.ready(joined)
    await off(worker.resume)
    return gone(arena, joined)


@kind("workers", strategy="peer")
async def lease_lost_silently(arena: Arena, chance: random.Random) -> After:
    """SIGKILL, and the lease disappears, which nothing on the bus tells of."""
    worker = a_worker(arena, chance)
    arena.down.add(worker.worker_id)
    await off(worker.kill)
    await on_jetstream(arena, lambda js: _expire_silently(js, worker.worker_id))
    return back(arena, worker)


async def _expire_silently(js: nats.js.JetStreamContext, lease: str) -> None:
    """Returns when a lease has ended. May be done again after a failure."""
    stream = f"KV_{names.LEASES_BUCKET}"
    with contextlib.suppress(nats.js.errors.NotFoundError):
        while True:
            await js.get_msg(stream, subject=f"$KV.{names.LEASES_BUCKET}.{lease}")
            await asyncio.sleep(0.2)


@kind("workers")
async def joiner_killed(arena: Arena, chance: random.Random) -> After:
    """A worker joins, and is killed as soon as it owns something, long before it has loaded that."""
    joined = joiner(arena)
    arena.down.add(joined.worker_id)
    await off(joined.start)
    await off(arena.history.wait, lambda: joined.joined or joined.process.returncode is not None, 60)
    await off(joined.kill)
    return gone(arena, joined)


_numbers = itertools.count()


def joiner(arena: Arena) -> WorkerProcess:
    """One more worker, not started."""
    return arena.add_worker(f"joiner{next(_numbers)}")


async def gone(arena: Arena, worker: WorkerProcess) -> None:
    """Ends a worker for good."""
    arena.down.add(worker.worker_id)
    if worker.process.returncode is None:
        await off(worker.terminate)
    await arena.mirror.wait(arena.mirror.owned_once, 60, f"nobody took over from {worker.worker_id}")
    arena.remove_worker(worker.worker_id)
    arena.down.discard(worker.worker_id)


async def back(arena: Arena, worker: WorkerProcess) -> None:
    """Starts a worker that a fault has ended."""
    await off(worker.start)
    arena.down.discard(worker.worker_id)
    await arena.ready(worker)


# ---- services


def _service(arena: Arena, chance: random.Random) -> ConfigServiceProcess:
    return arena.services[chance.choice(sorted(arena.services))]


@kind("services")
async def service_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL under load, wherever it is between commit and publish; restarted after a while."""
    service = _service(arena, chance)
    await off(service.kill)
    await hold(arena, chance, 0, 3)
    await off(service.start)


@kind("services")
async def all_services_killed(arena: Arena, chance: random.Random) -> None:
    """SIGKILL to all of them together: nobody is left to drain the outbox."""
    await asyncio.gather(*(off(service.kill) for service in arena.services.values()))
    await hold(arena, chance, 0, 3)
    await asyncio.gather(*(off(service.start) for service in arena.services.values()))


@kind("services")
async def service_paused(arena: Arena, chance: random.Random) -> None:
    """SIGSTOP: what it was asked times out, and takes effect later."""
    service = _service(arena, chance)
    await off(service.pause)
    await hold(arena, chance, 4, 9)
    await off(service.resume)
