"""Reads of rows and revisions in SQLite, each in one snapshot."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from ringcast_core import row_partitions
from ringcast_wire import WIRE_VERSION, FetchReply, HeadsReply

from ringcast_config_service.repository import answers, mapping, paging
from ringcast_config_service.repository import as_of as as_of_reads
from ringcast_config_service.repository.base import SMALL_ANSWER_BYTES, LargeAnswerError
from ringcast_config_service.repository.release_transactions import to_only_release
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.session import Sessions
from ringcast_config_service.repository.states import StateReads, StateStatements

T = TypeVar("T")

_PAUSE_S: Final = 0.0001
"""How long no thread reads after a page: long enough for the system to run the threads that wait."""


class SqliteReader(StateReads):
    """:class:`~ringcast_config_service.repository.parts.RowReader`."""

    _list_page = Sql.LIST_PAGE
    _history_page = Sql.HISTORY_PAGE
    _state_statements = StateStatements(
        Sql.HEADS, Sql.HORIZON, Sql.KEPT_BETWEEN, Sql.LIST_PAGE, Sql.AS_OF_PAGE, Sql.CHANGES_PAGE
    )

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._turn = threading.Lock()

    async def read_partition(
        self,
        store: str,
        key: str,
        partition: int,
        since: int | None,
        history: str = "",
        as_of: int | None = None,
        most_bytes: int = sys.maxsize,
        version: int = WIRE_VERSION,
    ) -> bytearray:
        def work(db: sqlite3.Connection, room: int) -> bytearray:
            found = db.execute(Sql.LOCATE_PARTITION, (store, key, partition)).fetchone()
            reading = as_of_reads.Reading.of(as_of_reads.Place(store, key, partition, history, as_of), found, since)
            reading.check_room(room)
            if reading.is_earlier:
                kept = db.execute(Sql.KEPT_REVISIONS, reading.kept_words).fetchone()
                found = db.execute(Sql.READ_AS_OF, reading.earlier_words(*kept))
            else:
                found = db.execute(Sql.READ_WHOLE if reading.whole else Sql.READ_SINCE, reading.params)
            return self._pages_of(found, reading.answer(version))

        return await self._read(work, most_bytes)

    async def read_rows(
        self, store: str, key: str, row_ids: Sequence[str], most_bytes: int = sys.maxsize
    ) -> FetchReply:
        def work(db: sqlite3.Connection, room: int) -> FetchReply:
            count, key_id, history = mapping.located(db.execute(Sql.LOCATE, (store, key)).fetchone(), store, key)
            ids = list(dict.fromkeys(row_ids))
            wanted = list(zip(row_partitions(ids, count), ids, strict=True))
            heads, live_bytes = [], 0
            for partition in sorted({partition for partition, _ in wanted}):
                head, _, size, *_ = db.execute(Sql.GET_HEAD, (key_id, partition)).fetchone() or (0, 0, 0)
                heads.append((partition, head))
                live_bytes += size
            if answers.may_exceed(ids, live_bytes, room):
                sizes = (db.execute(Sql.STORED_SIZE, (key_id, *ref)).fetchone() for ref in wanted)
                answers.check_named_rows(ids, sum(size[2] for size in sizes if size), room)
            rows = (db.execute(Sql.READ_ROW, (key_id, *ref)).fetchone() for ref in wanted)
            return mapping.fetch_reply(history, mapping.by_partition(heads, (row for row in rows if row)))

        return await self._read(work, most_bytes)

    async def read_full(self, store: str, key: str, version: int = WIRE_VERSION) -> bytearray:
        def work(db: sqlite3.Connection) -> bytearray:
            _, key_id, history = mapping.located(db.execute(Sql.LOCATE, (store, key)).fetchone(), store, key)
            heads = db.execute(Sql.HEADS, (key_id,)).fetchall()
            answers.check_full_size(heads, store, key)
            return self._pages_of(db.execute(Sql.READ_FULL, (key_id,)), answers.KeyAnswer(history, heads, version))

        return await self._read_apart(work)

    async def heads(self, store: str, key: str, at_ms: int | None = None) -> HeadsReply:
        def work(db: sqlite3.Connection) -> HeadsReply:
            count, key_id, history = mapping.located(db.execute(Sql.LOCATE, (store, key)).fetchone(), store, key)
            found = mapping.dense_heads(db.execute(Sql.HEADS, (key_id,)), count, history)
            if at_ms is None:
                return found
            as_of_reads.check_moment(at_ms, db.execute(Sql.HORIZON, (key_id,)).fetchone()[0], store, key)
            return as_of_reads.earlier_heads(found, db.execute(Sql.REVISIONS_AT, (key_id, at_ms)))

        return await (self._sessions.read(work) if at_ms is None else self._read_apart(work))

    async def heads_of_release(self, store: str, key: str, number: int) -> HeadsReply:
        def work(db: sqlite3.Connection) -> HeadsReply:
            count, key_id, history = mapping.located(db.execute(Sql.LOCATE, (store, key)).fetchone(), store, key)
            now = mapping.dense_heads(db.execute(Sql.HEADS, (key_id,)), count, history)
            release = to_only_release(db.execute(Sql.GET_RELEASE, (store, number)).fetchall(), store, number)
            as_of_reads.check_release(release, key)
            at_ms = db.execute(Sql.RELEASE_PUBLISHED_AT, (store, number)).fetchone()[0]
            as_of_reads.check_release_moment(release, key, at_ms, db.execute(Sql.HORIZON, (key_id,)).fetchone()[0])
            then = db.execute(Sql.REVISIONS_AT, (key_id, at_ms))
            return as_of_reads.release_heads(now, then, db.execute(Sql.RELEASE_HEADS, (store, number, key)))

        return await self._read_apart(work)

    async def _read(self, work: Callable[[sqlite3.Connection, int], T], most_bytes: int) -> T:
        """Runs ``work`` with how many bytes its answer may have: apart where there are many."""
        try:
            return await self._sessions.read(lambda db: work(db, min(SMALL_ANSWER_BYTES, most_bytes)))
        except LargeAnswerError as error:
            if error.size > most_bytes:
                raise
        return await self._read_apart(lambda db: work(db, most_bytes))

    async def _read_apart(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs ``work`` on a connection and a thread of its own.

        The few threads of short reads stay free: a write waits for one of them when it looks up its store.
        """
        async with self._sessions.snapshot() as snapshot:
            return await snapshot.read(work)

    def _pages_of(self, found: sqlite3.Cursor, answer: answers.Answer) -> bytearray:
        """The answer with all of these records. One thread at a time reads a page.

        For each record sqlite3 gives the interpreter's lock up and takes it again. Several threads that do so pass the
        lock among themselves, record by record: the event loop and the writer, which wait for it too, hardly get it.
        Even one thread takes it again before another on its core can run, so after each page all of them pause.
        """
        while True:
            asked = answer.page_rows
            with self._turn:
                page = found.fetchmany(asked)
                if len(page) == asked:
                    time.sleep(_PAUSE_S)
            answer.add(page)
            if len(page) < asked:
                return answer.finish()

    @asynccontextmanager
    async def _pages(self, store: str, key: str) -> AsyncIterator[paging.Pages]:
        async with self._sessions.snapshot() as snapshot:
            found = await snapshot.read(lambda db: db.execute(Sql.LOCATE, (store, key)).fetchone())
            count, key_id, history = mapping.located(found, store, key)

            async def fetch(statement: str, params: tuple[object, ...]) -> list[mapping.Record]:
                return await snapshot.read(lambda db: paging.bounded(db.execute(statement, (key_id, *params))))

            async def ask(statement: str, params: tuple[object, ...]) -> list[mapping.Record]:
                return await snapshot.read(lambda db: db.execute(statement, (key_id, *params)).fetchall())

            yield paging.Pages(count, fetch, ask, history)
