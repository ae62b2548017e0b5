"""Transactions on one SQLite file, and what their errors mean to a client."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from ringcast_sqlite import Database, Snapshot, StoreError
from ringcast_wire import UnavailableError

T = TypeVar("T")


class Sessions:
    """What the parts of the repository share. A file that can't be used raises ``UnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``work`` on a thread, in a transaction that sees one state of the file."""
        with _available():
            return await self._database.read(work)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same in a transaction that writes: one at a time, of all processes."""
        with _available():
            return await self._database.write(work)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """One state of the file for any number of reads."""
        with _available():
            async with self._database.snapshot() as snapshot:
                yield snapshot


@contextmanager
def _available() -> Iterator[None]:
    """What the store layer raises means to a client that it may try again later."""
    try:
        yield
    except StoreError as error:
        raise UnavailableError(str(error)) from error
