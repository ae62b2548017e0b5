"""The system of record, read past the service: for what it had before it went back, and what it has after that."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

import asyncpg

_ALL = """
SELECT k.name, h.partition, h.revision, h.row_id, h.value, h.deleted
FROM history h JOIN config_keys k ON k.key_id = h.key_id
ORDER BY k.name, h.partition, h.revision
"""


class Revision(NamedTuple):
    """One write as the system of record keeps it."""

    key: str
    partition: int
    version: int
    row_id: str
    value: str | None


async def record_of(database: str) -> list[Revision]:
    """Every write that a database has, which holds one store."""
    if database.startswith("sqlite:"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:"))) as file:
            return _revisions(file.execute(_ALL))
    connection = await asyncpg.connect(database)
    try:
        return _revisions(await connection.fetch(_ALL))
    finally:
        await connection.close()


def _revisions(rows: Iterable[tuple[str, int, int, str, str, bool]]) -> list[Revision]:
    return [
        Revision(key, partition, version, row_id, None if deleted else value)
        for key, partition, version, row_id, value, deleted in rows
    ]
