"""What is made for exclusive ownership: leaders that die in the middle of a move, sessions that end, a lost table."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import aclosing
from typing import Any, Final, TypeVar

from nats.js import JetStreamContext
from nats.js.kv import KeyValue
from ringcast._protocol.sticky.fence import FenceTimes
from ringcast.wishes import drain_worker, follow_drain, undrain_worker
from ringcast_testkit import WorkerProcess
from ringcast_wire import UnavailableError, names
from ringcast_wire.owner_records import Phase, Table, decode_state, decode_table, decode_term

from tests.integration.faults.arena import STORE, Arena, off
from tests.integration.faults.fault import After, a_user, a_worker, hold, kind, on_jetstream, taken_over
from tests.integration.faults.process_faults import back, gone, joiner
from tests.integration.faults.user_faults import denied

T = TypeVar("T")

_MOVED_S: Final = 90.0
"""How long a planned move may take to begin, or to end, beside other faults."""
_LATE_S: Final = 0.15
"""How much later everything arrives at the workers that do not lead, so that a phase lasts. After each time that it was
over before the leader was, twice as long, up to:"""
_LATEST_S: Final = 0.6
_HALTS: Final = 50
"""How often a worker is halted until it is within a call."""
_BEGUN_S: Final = 5.0
_TOLD_S: Final = 0.1
"""For so long what a halted worker has said before may be under way."""
_OWNERS: Final = names.owners_bucket(STORE)

# ---- the leader of a key


@kind("workers", alone=True, strategy="sticky")
async def key_leader_killed_in_prepare(arena: Arena, chance: random.Random) -> After:
    """A worker joins; the one that leads the key is killed while another prepares what it is to take over."""
    return await _leader_killed(arena, chance, Phase.PREPARE)


@kind("workers", alone=True, strategy="sticky")
async def key_leader_killed_in_drain(arena: Arena, chance: random.Random) -> After:
    """The same, while an owner is about to stop."""
    return await _leader_killed(arena, chance, Phase.DRAIN)


@kind("workers", alone=True, strategy="sticky")
async def key_leader_killed_after_release(arena: Arena, chance: random.Random) -> After:
    """The same, once an owner has said that it has stopped, and the leader has not heard of it."""
    return await _leader_killed(arena, chance, Phase.DRAIN, is_released=True)


@kind("workers", strategy="sticky")
async def key_leader_paused(arena: Arena, chance: random.Random) -> None:
    """SIGSTOP to the worker that leads a key, beyond its fence: another leads when it wakes up."""
    key = chance.choice(arena.shape.keys)
    worker = await _leader(arena, key) or a_worker(arena, chance)
    await off(worker.pause)
    await taken_over(arena, worker.worker_id)
    await hold(arena, chance, 0, 3)
    await off(worker.resume)


async def _leader_killed(arena: Arena, chance: random.Random, phase: Phase, *, is_released: bool = False) -> After:
    key = chance.choice(arena.shape.keys)
    met = "killed_after_release" if is_released else f"killed_in_{phase}"
    late_s = min(_LATE_S * 2 ** arena.met[f"{met}_too_late"], _LATEST_S)
    async with arena.bus() as client:
        tables = Tables(await client.jetstream().key_value(_OWNERS), key, arena.shape.partitions)
        # The joiner of the fault before may have led, and a key is whole again before another leads it.
        async with asyncio.timeout(_MOVED_S):
            leader = arena.workers[await tables.led_by(arena.workers)]
        joined = joiner(arena)
        links = [link for name in arena.workers if name != leader.worker_id for link in arena.links[name]]
        for link in links:
            await off(link.delay, late_s)
        try:
            await off(joined.start)
            async with asyncio.timeout(_MOVED_S):
                await tables.until(lambda table: _moves(table, phase, leader.worker_id))
            if is_released:
                leader.pause()  # here, and not in a thread: each millisecond counts
                async with asyncio.timeout(_MOVED_S):
                    await tables.until_released(leader.worker_id)
            leader.kill()
            arena.down.add(leader.worker_id)
            arena.met[met if _moves(await tables.last(), phase, leader.worker_id) else f"{met}_too_late"] += 1
        finally:
            for link in links:
                await off(link.resume)

    async def restore() -> None:
        await back(arena, leader)
        await gone(arena, joined)

    return restore()


class Tables:
    """The tables of a key, as they are written, and who leads it."""

    def __init__(self, bucket: KeyValue, key: str, partitions: int) -> None:
        self._bucket = bucket
        self._key = key
        self._name = names.table_key(key)
        self._partitions = partitions

    async def until(self, condition: Callable[[Table], bool]) -> None:
        """Waits for a table."""
        async for value in self._written(self._name):
            if condition(decode_table(value, self._partitions)):
                return

    async def led_by(self, workers: Collection[str]) -> str:
        """Waits until one of them leads, and returns which."""
        async for value in self._written(names.term_key(self._key)):
            if (leader := decode_term(value).leader) in workers:
                return leader
        raise AssertionError  # the watch has no end

    async def until_released(self, leader: str) -> None:
        """Waits until an owner has said that it has stopped, where the table has another than the leader do so."""
        table = await self.last()
        if not _moves(table, Phase.DRAIN, leader):
            return
        async for value in self._written(names.state_key(self._key, "*")):
            state = decode_state(value)
            for number, token in state.released:
                entry = table.entries[number]
                is_owner = entry.owner is not None and entry.owner.worker_id == state.lease != leader
                if is_owner and (entry.phase, entry.token) == (Phase.DRAIN, token):
                    return

    async def _written(self, name: str) -> AsyncIterator[bytes]:
        watcher = await self._bucket.watch(name)
        while True:
            entry = await watcher.updates(timeout=None)
            if entry is not None and entry.value:
                yield entry.value

    async def last(self) -> Table:
        """The one that stands there."""
        entry = await self._bucket.get(self._name)
        return decode_table(entry.value or b"", self._partitions)


def _moves(table: Table, phase: Phase, leader: str) -> bool:
    """Whether a partition of another than the leader is in a phase."""
    owners = (entry.owner for entry in table.entries if entry.phase is phase)
    return any(owner is not None and owner.worker_id != leader for owner in owners)


async def _leader(arena: Arena, key: str) -> WorkerProcess | None:
    """The worker that leads a key, if it is one of ours."""
    found = ""

    async def ask(js: JetStreamContext) -> None:
        nonlocal found
        bucket = await js.key_value(_OWNERS)
        found = decode_term((await bucket.get(names.term_key(key))).value or b"").leader

    await on_jetstream(arena, ask)
    return arena.workers.get(found)


# ---- sessions that end


@kind("users", login="password", strategy="sticky")
async def session_refused(arena: Arena, chance: random.Random) -> None:
    """A worker may not refresh its session, and hears everything else, until the others own what it owned."""
    user = a_user(arena, chance)
    async with denied(arena, user, f"$KV.{_OWNERS}.{names.session_key(user)}"):
        await taken_over(arena, user)
        await hold(arena, chance, 0, 3)


@kind("workers", strategy="sticky")
async def worker_halted_within_a_call(arena: Arena, chance: random.Random) -> None:
    """SIGSTOP while the handler is at work, until the others own what it had: the call goes on past its fence then."""
    slow = sorted(arena.workers.keys() & set(arena.shape.slow_workers))
    worker = arena.workers[chance.choice(slow or sorted(arena.workers))]
    for _ in range(_HALTS if slow else 1):
        since = len(arena.history.reports())
        await off(arena.history.wait, lambda since=since: _is_at_work(arena, worker, since), _BEGUN_S)
        await off(worker.pause)
        await asyncio.sleep(_TOLD_S)
        if _is_at_work(arena, worker, since):
            arena.met["halted_within_a_call"] += 1
            break
        await off(worker.resume)
    else:
        await off(worker.pause)
    await taken_over(arena, worker.worker_id)
    await hold(arena, chance, 0, 3)
    await off(worker.resume)


def _is_at_work(arena: Arena, worker: WorkerProcess, since: int) -> bool:
    """Whether the last that a worker has said of a change is that its handler has begun with it."""
    mine = (report for report in reversed(arena.history.reports(since)) if report.worker_id == worker.worker_id)
    return next((report.event == "begun" for report in mine if report.event in ("begun", "row")), False)


@kind("workers", alone=True, strategy="sticky")
async def owners_deleted(arena: Arena, chance: random.Random) -> None:
    """All workers are killed; when no call of theirs can run any more, all records of owners are deleted."""
    workers = list(arena.workers.values())
    arena.down.update(worker.worker_id for worker in workers)
    await asyncio.gather(*(off(worker.kill) for worker in workers))
    await asyncio.sleep(FenceTimes(arena.shape.lease_ttl_ms, arena.shape.call_bound_ms).give_away_s)
    await on_jetstream(arena, _delete_owners)
    await asyncio.gather(*(off(worker.start) for worker in workers))
    arena.down.clear()
    await asyncio.gather(*(arena.ready(worker) for worker in workers))


async def _delete_owners(js: JetStreamContext) -> None:
    bucket = await js.key_value(_OWNERS)
    for name in await bucket.keys():  # by hand: the client takes no name with a ~
        await js.publish(f"$KV.{_OWNERS}.{name}", headers={"KV-Operation": "DEL"})


# ---- moves that are wished for


@kind("workers", strategy="sticky")
async def worker_drained(arena: Arena, chance: random.Random) -> None:
    """An operator drains a worker, until it has nothing, and lets it have partitions again."""
    worker = a_worker(arena, chance).worker_id
    drains = await _wished(lambda: drain_worker(arena.url, STORE, worker))
    try:
        async with asyncio.timeout(_MOVED_S):
            await _followed(arena, worker, [drain.key for drain in drains])
        arena.met["drained"] += 1
        await hold(arena, chance, 0, 2)
    finally:
        await _wished(lambda: undrain_worker(arena.url, STORE, worker))


async def _followed(arena: Arena, worker: str, keys: list[str]) -> None:
    while True:
        with contextlib.suppress(UnavailableError):
            async with aclosing(follow_drain(arena.url, STORE, worker, keys)) as following:
                async for _ in following:
                    pass
            return


async def _wished(wish: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Does it again while a fault of another group keeps NATS from answering."""
    async with asyncio.timeout(_MOVED_S):
        while True:
            try:
                return await wish()
            except UnavailableError:
                await asyncio.sleep(0.2)
