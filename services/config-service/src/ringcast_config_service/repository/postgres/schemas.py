"""The schemas of values in PostgreSQL and CockroachDB."""

from __future__ import annotations

from ringcast_wire import SchemaMode, limits

from ringcast_config_service.repository import mapping, schemas
from ringcast_config_service.repository.base import SERVICE, Authorship
from ringcast_config_service.repository.postgres.audit import add_facts
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.schemas import InForce, KeySchema, SchemaChange, Seen
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.writes import NO_CAPS


class PostgresSchemas:
    """:class:`~ringcast_config_service.repository.schemas.SchemaRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def in_force(self, store: str) -> dict[str, InForce]:
        async with self._sessions.use("fetches") as db:
            return schemas.to_in_force(await db.fetch(Sql.SCHEMAS_IN_FORCE, store))

    async def definition(self, schema_id: int) -> tuple[str, str] | None:
        async with self._sessions.use("fetches") as db:
            found = await db.fetchrow(Sql.SCHEMA_TEXT, schema_id)
            return None if found is None else (found[1], found[2])

    async def newest(self, store: str, key: str = "") -> list[KeySchema]:
        async with self._sessions.snapshot("fetches") as db:
            mapping.only_record(await db.fetchrow(Sql.GET_STORE, store), store)
            return [*map(schemas.to_key_schema, await db.fetch(Sql.KEY_SCHEMAS, store, key))]

    async def versions(self, store: str, key: str, version: int = 0) -> list[KeySchema]:
        async with self._sessions.snapshot("fetches") as db:
            mapping.only_record(await db.fetchrow(Sql.GET_STORE, store), store)
            return [*map(schemas.to_key_schema, await db.fetch(Sql.SCHEMA_VERSIONS, store, key, version))]

    async def change(self, store: str, change: SchemaChange, seen: Seen | None, by: Authorship = SERVICE) -> KeySchema:
        async def fill(db: Connection) -> None:
            """In a transaction of its own: what inserts heads must not wait for those that others have locked."""
            await db.execute(Sql.LOCK_STORES, [store])
            count, key_id, _ = await _located(db, store, change.key)
            if key_id is not None:
                await db.execute(Sql.FILL_HEADS, key_id, count, *NO_CAPS)

        await self._sessions.transact(fill)
        return await self._sessions.transact(lambda db: _change(db, store, change, seen, by))


async def _located(db: Connection, store: str, key: str) -> tuple[int, int | None, str]:
    """Partition count, id and history of a key; no id: it is not there."""
    mapping.only_record(await db.fetchrow(Sql.GET_STORE, store), store)
    found = await db.fetchrow(Sql.LOCATE, store, key)
    if (error := mapping.deleted(found, store, key)) is not None:
        raise error
    count, key_id, history, *_ = found
    return count, key_id, history


async def _change(db: Connection, store: str, change: SchemaChange, seen: Seen | None, by: Authorship) -> KeySchema:
    place = f"{store}/{change.key}"
    await db.execute(Sql.LOCK_STORES, [store])
    partition_count, key_id, history = await _located(db, store, change.key)
    found = await db.fetchrow(Sql.KEY_SCHEMAS, store, change.key)
    newest = None if found is None else schemas.to_key_schema(found)
    step = schemas.decide(place, newest, change)
    if newest is None:
        schemas.check_schema_count(place, await db.fetchval(Sql.COUNT_SCHEMA_KEYS, store, change.key))
    if key_id is not None:  # all heads are locked until the end: what was written is there, what comes later waits
        await db.execute(Sql.FILL_HEADS, key_id, partition_count, *NO_CAPS)
        await db.execute(Sql.LOCK_KEY_HEADS, key_id)
    if step.enforces:
        if seen is None:
            raise schemas.SchemaRaceError
        if key_id is not None:
            step.checked(place, await _written_since(db, key_id, history, seen))
    if step.is_new:
        words = store, change.key, step.version, step.kind, step.definition, by.author, by.reason
        schema_id = schemas.new_schema_id()
        await db.execute(Sql.INSERT_SCHEMA, schema_id, *words)
        await db.execute(Sql.FORGET_SCHEMAS, store, change.key, step.version - limits.MAX_SCHEMA_VERSIONS)
    else:
        schema_id = await db.fetchval(Sql.SCHEMA_ID, store, change.key)
    if key_id is not None:  # also where it says so already: an older build may have made heads without
        await db.execute(Sql.SET_SCHEMA, key_id, schema_id if step.mode is SchemaMode.ENFORCE else None)
    if step.changes:
        await db.execute(Sql.SET_SCHEMA_MODE, store, change.key, schema_id, step.mode, step.compatibility)
        await db.execute(Sql.RAISE_USABLE_FROM, step.known_from)
        await add_facts(db, [step.fact(by, store, change.key)])
    return schemas.to_key_schema(await db.fetchrow(Sql.KEY_SCHEMAS, store, change.key))


async def _written_since(db: Connection, key_id: int, history: str, seen: Seen) -> list[tuple[str, str, str | None]]:
    """The live rows of a key that were written since others were seen."""
    heads = [(partition, head) for partition, head, *_ in await db.fetch(Sql.HEADS, key_id)]
    found: list[tuple[str, str, str | None]] = []
    for partition, since in seen.since(history, heads):
        room = schemas.MAX_CHANGED_ROWS - len(found)
        found += [tuple(row) for row in await db.fetch(Sql.CHANGED_VALUES, key_id, partition, since, room + 1)]
        if len(found) > schemas.MAX_CHANGED_ROWS:
            raise schemas.SchemaRaceError
    return found
