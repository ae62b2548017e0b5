"""Reads of rows and revisions in PostgreSQL and CockroachDB, each in one snapshot."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ringcast_core import row_partitions
from ringcast_wire import WIRE_VERSION, FetchReply, HeadsReply

from ringcast_config_service.repository import answers, mapping, paging
from ringcast_config_service.repository import as_of as as_of_reads
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.release_transactions import to_only_release
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.states import StateReads, StateStatements

_AT_ONCE: Final = 1_000
"""So many records come in one answer of the server; for more there is a cursor."""


class PostgresReader(StateReads):
    """:class:`~ringcast_config_service.repository.parts.RowReader`."""

    _list_page = Sql.LIST_PAGE
    _history_page = Sql.HISTORY_PAGE
    _state_statements = StateStatements(
        Sql.HEADS, Sql.HORIZON, Sql.KEPT_BETWEEN, Sql.LIST_PAGE, Sql.AS_OF_PAGE, Sql.CHANGES_PAGE
    )

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

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
        async with self._sessions.snapshot("fetches") as db:
            found = await db.fetchrow(Sql.LOCATE_PARTITION, store, key, partition)
            reading = as_of_reads.Reading.of(as_of_reads.Place(store, key, partition, history, as_of), found, since)
            reading.check_room(most_bytes)
            if reading.is_earlier:
                kept = await db.fetchrow(Sql.KEPT_REVISIONS, *reading.kept_words)
                return await self._pages_of(db, reading.answer(version), Sql.READ_AS_OF, *reading.earlier_words(*kept))
            statement = Sql.READ_WHOLE if reading.whole else Sql.READ_SINCE
            return await self._pages_of(db, reading.answer(version), statement, *reading.params)

    async def read_rows(
        self, store: str, key: str, row_ids: Sequence[str], most_bytes: int = sys.maxsize
    ) -> FetchReply:
        async with self._sessions.snapshot("fetches") as db:
            count, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            ids = list(dict.fromkeys(row_ids))
            partitions = list(row_partitions(ids, count))
            found = {head[0]: head for head in await db.fetch(Sql.HEADS, key_id)}
            heads = [found.get(partition, (partition, 0, 0)) for partition in sorted(set(partitions))]
            if answers.may_exceed(ids, sum(head[2] for head in heads), most_bytes):
                size = await db.fetchval(Sql.SIZE_OF_ROWS, key_id, partitions, ids)
                answers.check_named_rows(ids, size, most_bytes)
            rows = await db.fetch(Sql.READ_ROWS, key_id, partitions, ids)
            return mapping.fetch_reply(history, mapping.by_partition(heads, rows))

    async def read_full(self, store: str, key: str, version: int = WIRE_VERSION) -> bytearray:
        async with self._sessions.snapshot("fetches") as db:
            _, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            heads = await db.fetch(Sql.HEADS, key_id)
            answers.check_full_size(heads, store, key)
            return await self._pages_of(db, answers.KeyAnswer(history, heads, version), Sql.READ_FULL, key_id)

    async def heads(self, store: str, key: str, at_ms: int | None = None) -> HeadsReply:
        async with self._sessions.snapshot("fetches") as db:
            count, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            found = mapping.dense_heads(await db.fetch(Sql.HEADS, key_id), count, history)
            if at_ms is None:
                return found
            as_of_reads.check_moment(at_ms, await db.fetchval(Sql.HORIZON, key_id), store, key)
            return as_of_reads.earlier_heads(found, await db.fetch(Sql.REVISIONS_AT, key_id, at_ms))

    async def heads_of_release(self, store: str, key: str, number: int) -> HeadsReply:
        async with self._sessions.snapshot("fetches") as db:
            count, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            now = mapping.dense_heads(await db.fetch(Sql.HEADS, key_id), count, history)
            release = to_only_release(await db.fetch(Sql.GET_RELEASE, store, number), store, number)
            as_of_reads.check_release(release, key)
            at_ms = await db.fetchval(Sql.RELEASE_PUBLISHED_AT, store, number)
            as_of_reads.check_release_moment(release, key, at_ms, await db.fetchval(Sql.HORIZON, key_id))
            then = await db.fetch(Sql.REVISIONS_AT, key_id, at_ms)
            return as_of_reads.release_heads(now, then, await db.fetch(Sql.RELEASE_HEADS, store, number, key))

    async def _pages_of(self, db: Connection, answer: answers.Answer, statement: str, *params: object) -> bytearray:
        """The answer with all records of the statement; between two pages of them the event loop goes on."""
        if answer.rows > _AT_ONCE and self._sessions.is_postgres:
            found = await db.cursor(statement, *params)
            while page := await found.fetch(answer.page_rows):
                answer.add(page)
            return answer.finish()
        # CockroachDB lets a transaction do nothing else while a cursor is open, and has not always had them.
        for _ in answers.slices(await db.fetch(statement, *params), answer):
            await asyncio.sleep(0)
        return answer.finish()

    @asynccontextmanager
    async def _pages(self, store: str, key: str) -> AsyncIterator[paging.Pages]:
        async with self._sessions.snapshot("snapshots") as db:
            count, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)

            async def fetch(statement: str, params: tuple[object, ...]) -> list[mapping.Record]:
                return list(await db.fetch(statement, key_id, *params, paging.PAGE_BYTES))

            async def ask(statement: str, params: tuple[object, ...]) -> list[mapping.Record]:
                return list(await db.fetch(statement, key_id, *params))

            yield paging.Pages(count, fetch, ask, history)
