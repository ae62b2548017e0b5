"""A system of record that goes back: a failover to a replica that lags, an older copy of a file, an empty one.

What the database has acknowledged and lost is lost by its own nature. So each of these reads what the record had and
what is left of it: from then on that is the truth, which every worker has to come to, and from which nothing may go.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from ringcast_config_service.repository import make_repository
from ringcast_testkit import ConfigServiceProcess, PostgresStandby

from tests.integration.faults.arena import STORE, Arena, located, off
from tests.integration.faults.fault import hold, kind
from tests.integration.faults.load import Load
from tests.integration.faults.record import record_of

_LOST = 40
"""How many writes are acknowledged, at the least, that the database then has not."""


@kind("database", database="postgres", alone=True)
async def failover_to_a_lagging_replica(arena: Arena, chance: random.Random) -> None:
    """The primary dies with commits that its asynchronous standby has not heard of, and the standby takes its place.

    Nobody says so: the services have to notice.
    """
    async with _failed_over(arena, chance):
        pass


@kind("database", database="postgres")
async def failover_that_is_told(arena: Arena, chance: random.Random) -> None:
    """The same, and an operator says so before anything is written."""
    async with _failed_over(arena, chance):
        await _new_history(arena.database)


@asynccontextmanager
async def _failed_over(arena: Arena, chance: random.Random) -> AsyncIterator[None]:
    """Inside, the standby is the primary, and nobody but us can reach it yet."""
    primary, load = arena.postgres, _load(arena)
    assert primary is not None
    _, name = located(arena.database)
    standby = PostgresStandby(primary)
    await off(standby.start)
    arena.stack.callback(standby.close)
    standby.fall_behind()
    await load.acknowledge(_LOST)
    await off(primary.kill)
    for link in arena.database_links.values():
        await off(link.cut)  # the address leads nowhere until somebody has decided
    await hold(arena, chance, 0, 4)
    async with load.held():  # so that every answer of the old primary is in the ledger
        await off(primary.restart)
        former = await record_of(arena.database)
        await off(primary.kill)
        arena.postgres = await off(standby.promote)
        arena.database = standby.server.url(name)
        arena.went_back(former, await record_of(arena.database))
        yield
    for link in arena.database_links.values():
        await off(link.redirect, standby.server.socket)
        await off(link.resume)


@kind("services", database="sqlite", alone=True)
async def file_replaced_by_an_older_copy(arena: Arena, chance: random.Random) -> None:
    """While the service is down, somebody puts back a backup of its file that is some writes old, and says nothing."""
    backup = arena.directory / "backup.db"
    await off(_copy, _file(arena), backup)
    load = _load(arena)
    await load.acknowledge(_LOST)
    service = await _killed(arena)
    async with load.held():
        former = await record_of(arena.database)
        _remove(_file(arena))
        os.replace(backup, _file(arena))
        arena.went_back(former, await record_of(arena.database))
    await off(service.start)
    arena.down -= set(arena.services)  # a fault of another group may have ended a worker


@kind("services", database="sqlite")
async def file_lost(arena: Arena, chance: random.Random) -> None:
    """The file is gone: the service begins with an empty one, and somebody creates the store again by its old name."""
    load = _load(arena)
    await load.acknowledge(_LOST)
    service = await _killed(arena)
    async with load.held():
        former = await record_of(arena.database)
        _remove(_file(arena))
        arena.went_back(former, [])
        await off(service.start)
        await arena.create_store()
    arena.down -= set(arena.services)


async def _new_history(database: str) -> None:
    """What the operator's command does, before anybody writes again."""
    repository = make_repository(database)
    await repository.open()
    try:
        await repository.histories.new_history(STORE)
    finally:
        await repository.close()


async def _killed(arena: Arena) -> ConfigServiceProcess:
    ((name, service),) = arena.services.items()
    arena.down.add(name)
    await off(service.kill)
    return service


def _load(arena: Arena) -> Load:
    assert arena.load is not None, "a record goes back under load alone"
    return arena.load


def _file(arena: Arena) -> Path:
    return Path(arena.database.removeprefix("sqlite:"))


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)


def _remove(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
