"""Stores and their keys in SQLite."""

from __future__ import annotations

import sqlite3

from ringcast_wire import Migration

from ringcast_config_service.repository import audit, mapping
from ringcast_config_service.repository.base import SERVICE, Authorship, StoreInfo, StoreRecord
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.lead import write_as
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteStores:
    """:class:`~ringcast_config_service.repository.parts.StoreRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def create_store(self, record: StoreRecord, by: Authorship = SERVICE) -> StoreRecord:
        def work(db: sqlite3.Connection) -> StoreRecord:
            found = db.execute(Sql.GET_STORE, (record.name,)).fetchone()
            if found:
                return mapping.check_same(mapping.to_store(found), record)
            mapping.check_store_count(db.execute(Sql.COUNT_STORES).fetchone()[0], record.name)
            db.execute(Sql.INSERT_STORE, mapping.from_store(record))
            add_facts(db, [audit.created(by, record)])
            return record

        return await self._sessions.write(work)

    async def get_record(self, name: str) -> StoreRecord:
        found = await self._sessions.read(lambda db: db.execute(Sql.GET_STORE, (name,)).fetchone())
        return mapping.only_record(found, name)

    async def get_store(self, name: str, *, include_deleted: bool = False) -> StoreInfo:
        return await self._sessions.read(lambda db: store_info(db, name, include_deleted=include_deleted))

    async def list_stores(self, *, include_deleted: bool = False) -> list[StoreInfo]:
        def work(db: sqlite3.Connection) -> list[StoreInfo]:
            stores, stats = db.execute(Sql.LIST_STORES), db.execute(Sql.KEY_STATS, ("",))
            return mapping.to_infos(stores, stats, include_deleted=include_deleted)

        return await self._sessions.read(work)

    async def store_records(self) -> list[StoreRecord]:
        found = await self._sessions.read(lambda db: db.execute(Sql.LIST_STORES).fetchall())
        return [mapping.to_store(record) for record in found]

    async def update_store(self, name: str, inline_max_bytes: int, by: Authorship = SERVICE) -> StoreInfo:
        def work(db: sqlite3.Connection) -> StoreInfo:
            db.execute(Sql.SET_INLINE, (name, inline_max_bytes))
            found = store_info(db, name)
            add_facts(db, [audit.fact(by, "UpdateStore", name, inline_max_bytes=inline_max_bytes)])
            return found

        return await self._sessions.write(work)

    async def migrate_store(
        self, name: str, before: Migration | None, step: Migration, by: Authorship = SERVICE
    ) -> StoreInfo:
        def work(db: sqlite3.Connection) -> StoreInfo:
            mapping.check_step(mapping.only_record(db.execute(Sql.GET_STORE, (name,)).fetchone(), name), before)
            db.execute(Sql.SET_MIGRATION, (name, *mapping.from_step(step)))
            add_facts(db, [audit.migrated(by, name, step)])
            return store_info(db, name)

        return await self._sessions.write(work)

    async def pin_wire(self, lead: Lead, name: str, version: int) -> None:
        await write_as(self._sessions, lead, lambda db: db.execute(Sql.SET_WIRE_PIN, (name, version)).rowcount)


def store_info(db: sqlite3.Connection, name: str, *, include_deleted: bool = False) -> StoreInfo:
    # All rows are fetched: a cursor that an exception keeps alive would hold this connection to its snapshot.
    stores, stats = db.execute(Sql.GET_STORE, (name,)).fetchall(), db.execute(Sql.KEY_STATS, (name,)).fetchall()
    return mapping.only_store(stores, stats, name, include_deleted=include_deleted)
