"""The limits of stores in PostgreSQL and CockroachDB: what a plan takes of them, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringcast_config_service.repository import budgets, writes
from ringcast_config_service.repository.base import WriteRequest
from ringcast_config_service.repository.postgres.session import Connection, LostRaceError
from ringcast_config_service.repository.sql.statements import Postgres as Sql


async def settle(
    db: Connection, requests: Sequence[WriteRequest], state: writes.CurrentState, now_ms: int
) -> budgets.Settled:
    """The plan within the limits of the stores.

    Raises:
        LostRaceError: another transaction has locked what the store may still take back.
    """
    steps = budgets.plan_within(requests, state, now_ms)
    try:
        look = next(steps)
        while True:
            look = steps.send(await _look(db, look))
    except StopIteration as end:
        settled: budgets.Settled = end.value
    if settled.busy:
        raise LostRaceError([])
    return settled


async def _look(db: Connection, look: budgets.Look) -> budgets.Budget | budgets.StoreUse | None:
    if look.take_back:
        await db.execute(Sql.TAKE_BACK, look.store)
        return budgets.StoreUse(*await db.fetchrow(Sql.STORE_USE, look.store))
    found = await db.fetchrow(Sql.LOCK_BUDGET, look.store)
    return budgets.Budget(*found) if found else None


async def store_caps(db: Connection, settled: budgets.Settled, key_ids: Mapping[writes.KeyRef, int]) -> None:
    """What partitions may grow to, and what is free of the limits of their stores."""
    if settled.caps:
        caps = [(key_ids[ref.key], ref.partition, *found) for ref, found in settled.caps.items()]
        await db.execute(Sql.SET_CAPS, *map(list, zip(*caps, strict=True)))
    for store, free in settled.free.items():
        await db.execute(Sql.SET_FREE, store, *free)
