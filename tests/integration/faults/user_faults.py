"""What one credential is refused, and what it can do with the records that it may write."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import nats.js.errors
from ringcast_wire import EndedLeases, SlotClaim, encode_record, limits, names

from tests.integration.faults.arena import STORE, Arena
from tests.integration.faults.fault import PAST_A_LEASE_S, a_user, a_worker, hold, kind, on_jetstream, taken_over

_DELETED = {"KV-Operation": "DEL"}
_NODES = names.nodes_bucket(STORE)

# ---- a login, or a right, that is taken away and given back


@kind("users", login="password")
async def password_rotated(arena: Arena, chance: random.Random) -> None:
    """The servers take another password for a worker, until the others own what it owned; then the first one again."""
    user, users = a_user(arena, chance), arena.users
    first = users.passwords[user]
    users.passwords[user] = f"{first}-rotated"
    await arena.reload_users()
    try:
        await taken_over(arena, user)
        await hold(arena, chance, 0, 3)
    finally:
        users.passwords[user] = first
        await arena.reload_users()


@kind("users", login="token")
async def token_rotated(arena: Arena, chance: random.Random) -> None:
    """The servers take another token than all processes have, for a moment or until every lease has ended."""
    users = arena.users
    first = users.token
    users.token = f"{first}-rotated"
    await arena.reload_users()
    try:
        await asyncio.sleep(chance.uniform(*chance.choice([(0.0, 3.0), PAST_A_LEASE_S])))
    finally:
        users.token = first
        await arena.reload_users()


@kind("users", login="password")
async def consumer_refused(arena: Arena, chance: random.Random) -> None:
    """The consumer of a worker is gone, and it may make none until the others own what it owned."""
    user, stream = a_user(arena, chance), names.notify_stream(STORE)
    async with denied(arena, user, f"$JS.API.CONSUMER.CREATE.{stream}.>"):
        await on_jetstream(arena, lambda js: js.delete_consumer(stream, names.consumer_name("ringcast", user, 0)))
        await taken_over(arena, user)
        await hold(arena, chance, 0, 3)


@kind("users", login="password", strategy="peer")
async def registration_refused(arena: Arena, chance: random.Random) -> None:
    """A worker's record as a member of a key is deleted, and it may not write it again until the others took over."""
    user, key = a_user(arena, chance), chance.choice(arena.shape.keys)
    record = f"$KV.{_NODES}.{names.node_key(key, user)}"
    async with denied(arena, user, record, f"$KV.{_NODES}.{key}.slot.*"):
        await on_jetstream(arena, lambda js: js.publish(record, headers=_DELETED))
        await hold(arena, chance, 4, 12)


@contextlib.asynccontextmanager
async def denied(arena: Arena, user: str, *subjects: str) -> AsyncIterator[None]:
    """Inside, a worker may not publish to these subjects."""
    arena.users.denied[user] = list(subjects)
    await arena.reload_users()
    try:
        yield
    finally:
        del arena.users.denied[user]
        await arena.reload_users()


# ---- what a neighbour writes


def _neighbour(arena: Arena, chance: random.Random) -> tuple[str, str]:
    """The id of a worker, and its user (empty where all have the same rights)."""
    user = a_user(arena, chance)
    return user or a_worker(arena, chance).worker_id, user


@kind("bus")
async def buckets_rolled_up(arena: Arena, chance: random.Random) -> None:
    """A worker's own records come with a header that would remove all others of the bucket: the stream refuses them."""
    (worker, user), key = _neighbour(arena, chance), chance.choice(arena.shape.keys)
    subjects = (
        f"$KV.{names.LEASES_BUCKET}.{worker}",
        *(f"$KV.{_NODES}.{name}" for name in (names.node_key(key, worker), names.ended_key(worker))),
        f"$KV.{_NODES}.{names.slot_key(key, chance.randrange(arena.shape.workers))}",
    )

    async def roll_up(js: nats.js.JetStreamContext) -> None:
        for subject in subjects:
            for what in ("all", "sub"):
                try:
                    await js.publish(subject, b"{}", headers={"Nats-Rollup": what})
                except nats.js.errors.APIError as error:
                    if "rollup not permitted" not in str(error):
                        raise
                else:
                    raise AssertionError(f"a roll-up on {subject} was taken")

    await on_jetstream(arena, roll_up, user)


@kind("bus", strategy="peer")
async def slots_claimed(arena: Arena, chance: random.Random) -> None:
    """Every slot of a key is claimed for one worker, the slots of the others too."""
    (worker, user), key = _neighbour(arena, chance), chance.choice(arena.shape.keys)
    claim = encode_record(SlotClaim(worker_id=worker, lease=worker))

    async def claim_all(js: nats.js.JetStreamContext) -> None:
        for slot in range(limits.MAX_WORKERS_PER_KEY):
            await js.publish(f"$KV.{_NODES}.{names.slot_key(key, slot)}", claim)

    await on_jetstream(arena, claim_all, user)


@kind("bus", strategy="peer")
async def others_told_dead(arena: Arena, chance: random.Random) -> None:
    """A worker says again and again that the leases of all the others have ended, and of some that never were."""
    worker, user = _neighbour(arena, chance)
    leases = (*(name for name in sorted(arena.workers) if name != worker), "nobody")
    report = encode_record(EndedLeases(leases=leases))

    async def tell(js: nats.js.JetStreamContext) -> None:
        for _ in range(50):
            await js.publish(f"$KV.{_NODES}.{names.ended_key(worker)}", report)

    await on_jetstream(arena, tell, user)


@kind("bus", strategy="peer")
async def records_that_are_none(arena: Arena, chance: random.Random) -> None:
    """A worker's records as a member, and the claims on all slots, are replaced by what no worker writes."""
    (worker, user), key = _neighbour(arena, chance), chance.choice(arena.shape.keys)
    slots = range(limits.MAX_WORKERS_PER_KEY)
    subjects = [f"$KV.{_NODES}.{name}" for name in (names.node_key(key, worker), names.ended_key(worker))]
    subjects += [f"$KV.{_NODES}.{names.slot_key(key, slot)}" for slot in slots]
    rubbish = [b"", b"{", b"[]", b"null", b"\xff" * 64, b'{"slot":-1}', b'{"worker_id":7}']

    async def write(js: nats.js.JetStreamContext) -> None:
        for subject in subjects:
            await js.publish(subject, chance.choice(rubbish))

    await on_jetstream(arena, write, user)
