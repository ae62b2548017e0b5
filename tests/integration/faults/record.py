"""The system of record, read past the service: for what it had before it went back, and what it has after that."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg

_ALL = """
SELECT k.name, h.partition, h.revision, h.row_id, h.value, h.deleted
FROM history h JOIN config_keys k ON k.key_id = h.key_id
ORDER BY k.name, h.partition, h.revision
"""

Fetch: TypeAlias = Callable[[str], Awaitable[Sequence[Sequence[Any]]]]
"""A query, without arguments, and its rows."""
UNREADABLE: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, sqlite3.Error)
"""What a database says that a fault is done to."""


class Revision(NamedTuple):
    """One write as the system of record keeps it."""

    key: str
    partition: int
    version: int
    row_id: str
    value: str | None


async def record_of(database: str) -> list[Revision]:
    """Every write that a database has, which holds one store."""
    async with opened(database) as fetch:
        return _revisions(await fetch(_ALL))


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[Fetch]:
    """A connection to a database; only one of the errors in ``UNREADABLE`` comes from it."""
    if database.startswith("sqlite:"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:"))) as file:

            async def fetch(query: str) -> Sequence[Sequence[Any]]:
                return file.execute(query).fetchall()

            yield fetch
        return
    connection = await asyncpg.connect(database)
    try:
        yield connection.fetch
    finally:
        await connection.close()


def _revisions(rows: Iterable[Sequence[Any]]) -> list[Revision]:
    return [
        Revision(key, partition, version, row_id, None if deleted else value)
        for key, partition, version, row_id, value, deleted in rows
    ]
