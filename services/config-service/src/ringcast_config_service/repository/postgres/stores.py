"""Stores and their keys in PostgreSQL and CockroachDB."""

from __future__ import annotations

from ringcast_wire import Migration

from ringcast_config_service.repository import audit, mapping
from ringcast_config_service.repository.base import SERVICE, Authorship, StoreInfo, StoreRecord
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.postgres.audit import add_facts
from ringcast_config_service.repository.postgres.lead import transact_as
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresStores:
    """:class:`~ringcast_config_service.repository.parts.StoreRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def create_store(self, record: StoreRecord, by: Authorship = SERVICE) -> StoreRecord:
        async def work(db: Connection) -> StoreRecord:
            found = await db.fetchrow(Sql.GET_STORE, record.name)
            if not found:
                await db.execute(Sql.LOCK_STORE_COUNT)
                found = await db.fetchrow(Sql.GET_STORE, record.name)
            if found:
                return mapping.check_same(mapping.to_store(found), record)
            mapping.check_store_count(await db.fetchval(Sql.COUNT_STORES), record.name)
            await db.execute(Sql.INSERT_STORE, *mapping.from_store(record))
            await add_facts(db, [audit.created(by, record)])
            return record

        return await self._sessions.transact(work)

    async def get_record(self, name: str) -> StoreRecord:
        async with self._sessions.use("fetches") as db:
            return mapping.only_record(await db.fetchrow(Sql.GET_STORE, name), name)

    async def get_store(self, name: str, *, include_deleted: bool = False) -> StoreInfo:
        async with self._sessions.snapshot("fetches") as db:
            return await store_info(db, name, include_deleted=include_deleted)

    async def list_stores(self, *, include_deleted: bool = False) -> list[StoreInfo]:
        async with self._sessions.snapshot("fetches") as db:
            stores, stats = await db.fetch(Sql.LIST_STORES), await db.fetch(Sql.KEY_STATS, "")
            return mapping.to_infos(stores, stats, include_deleted=include_deleted)

    async def store_records(self) -> list[StoreRecord]:
        async with self._sessions.use("fetches") as db:
            return [mapping.to_store(record) for record in await db.fetch(Sql.LIST_STORES)]

    async def update_store(self, name: str, inline_max_bytes: int, by: Authorship = SERVICE) -> StoreInfo:
        async def work(db: Connection) -> StoreInfo:
            await db.execute(Sql.LOCK_STORES, [name])
            await db.execute(Sql.SET_INLINE, name, inline_max_bytes)
            found = await store_info(db, name)
            await add_facts(db, [audit.fact(by, "UpdateStore", name, inline_max_bytes=inline_max_bytes)])
            return found

        return await self._sessions.transact(work)

    async def migrate_store(
        self, name: str, before: Migration | None, step: Migration, by: Authorship = SERVICE
    ) -> StoreInfo:
        async def work(db: Connection) -> StoreInfo:
            await db.execute(Sql.LOCK_STORES, [name])
            mapping.check_step(mapping.only_record(await db.fetchrow(Sql.GET_STORE, name), name), before)
            await db.execute(Sql.SET_MIGRATION, name, *mapping.from_step(step))
            await add_facts(db, [audit.migrated(by, name, step)])
            return await store_info(db, name)

        return await self._sessions.transact(work)

    async def pin_wire(self, lead: Lead, name: str, version: int) -> None:
        async def work(db: Connection) -> None:
            await db.execute(Sql.SET_WIRE_PIN, name, version)

        await transact_as(self._sessions, lead, work)


async def store_info(db: Connection, name: str, *, include_deleted: bool = False) -> StoreInfo:
    stores, stats = await db.fetch(Sql.GET_STORE, name), await db.fetch(Sql.KEY_STATS, name)
    return mapping.only_store(stores, stats, name, include_deleted=include_deleted)
