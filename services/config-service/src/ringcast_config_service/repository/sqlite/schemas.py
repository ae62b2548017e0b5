"""The schemas of values in SQLite."""

from __future__ import annotations

import sqlite3

from ringcast_wire import SchemaMode, limits

from ringcast_config_service.repository import mapping, schemas
from ringcast_config_service.repository.base import SERVICE, Authorship
from ringcast_config_service.repository.schemas import InForce, KeySchema, SchemaChange, Seen
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.session import Sessions
from ringcast_config_service.repository.sqlite.writer import fill_heads
from ringcast_config_service.repository.writes import NO_CAPS


class SqliteSchemas:
    """:class:`~ringcast_config_service.repository.schemas.SchemaRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def in_force(self, store: str) -> dict[str, InForce]:
        found = await self._sessions.read(lambda db: db.execute(Sql.SCHEMAS_IN_FORCE, (store,)).fetchall())
        return schemas.to_in_force(found)

    async def definition(self, schema_id: int) -> tuple[str, str] | None:
        found = await self._sessions.read(lambda db: db.execute(Sql.SCHEMA_TEXT, (schema_id,)).fetchone())
        return None if found is None else (found[1], found[2])

    async def newest(self, store: str, key: str = "") -> list[KeySchema]:
        def work(db: sqlite3.Connection) -> list[KeySchema]:
            mapping.only_record(db.execute(Sql.GET_STORE, (store,)).fetchone(), store)
            return [*map(schemas.to_key_schema, db.execute(Sql.KEY_SCHEMAS, (store, key)).fetchall())]

        return await self._sessions.read(work)

    async def versions(self, store: str, key: str, version: int = 0) -> list[KeySchema]:
        def work(db: sqlite3.Connection) -> list[KeySchema]:
            mapping.only_record(db.execute(Sql.GET_STORE, (store,)).fetchone(), store)
            return [*map(schemas.to_key_schema, db.execute(Sql.SCHEMA_VERSIONS, (store, key, version)).fetchall())]

        return await self._sessions.read(work)

    async def change(self, store: str, change: SchemaChange, seen: Seen | None, by: Authorship = SERVICE) -> KeySchema:
        def work(db: sqlite3.Connection) -> KeySchema:
            return _change(db, store, change, seen, by)

        return await self._sessions.write(work)


def _change(db: sqlite3.Connection, store: str, change: SchemaChange, seen: Seen | None, by: Authorship) -> KeySchema:
    place = f"{store}/{change.key}"
    mapping.only_record(db.execute(Sql.GET_STORE, (store,)).fetchone(), store)
    located = db.execute(Sql.LOCATE, (store, change.key)).fetchone()
    if (error := mapping.deleted(located, store, change.key)) is not None:
        raise error
    found = db.execute(Sql.KEY_SCHEMAS, (store, change.key)).fetchone()
    newest = None if found is None else schemas.to_key_schema(found)
    step = schemas.decide(place, newest, change)
    if newest is None:
        schemas.check_schema_count(place, db.execute(Sql.COUNT_SCHEMA_KEYS, (store, change.key)).fetchone()[0])
    partition_count, key_id, history, *_ = located
    if step.enforces:
        if seen is None:
            raise schemas.SchemaRaceError
        if key_id is not None:
            step.checked(place, _written_since(db, key_id, history, seen))
    if step.is_new:
        words = store, change.key, step.version, step.kind, step.definition, by.author, by.reason
        schema_id = schemas.new_schema_id()
        db.execute(Sql.INSERT_SCHEMA, (schema_id, *words))
        db.execute(Sql.FORGET_SCHEMAS, (store, change.key, step.version - limits.MAX_SCHEMA_VERSIONS))
    else:
        schema_id = db.execute(Sql.SCHEMA_ID, (store, change.key)).fetchone()[0]
    if key_id is not None:  # also where it says so already: an older build may have made heads without
        fill_heads(db, key_id, partition_count, NO_CAPS)
        db.execute(Sql.SET_SCHEMA, (key_id, schema_id if step.mode is SchemaMode.ENFORCE else None))
    if step.changes:
        db.execute(Sql.SET_SCHEMA_MODE, (store, change.key, schema_id, step.mode, step.compatibility))
        db.execute(Sql.RAISE_USABLE_FROM, (step.known_from,))
        add_facts(db, [step.fact(by, store, change.key)])
    return schemas.to_key_schema(db.execute(Sql.KEY_SCHEMAS, (store, change.key)).fetchone())


def _written_since(db: sqlite3.Connection, key_id: int, history: str, seen: Seen) -> list[tuple[str, str, str | None]]:
    """The live rows of a key that were written since others were seen."""
    heads = [(partition, head) for partition, head, *_ in db.execute(Sql.HEADS, (key_id,)).fetchall()]
    found: list[tuple[str, str, str | None]] = []
    for partition, since in seen.since(history, heads):
        room = schemas.MAX_CHANGED_ROWS - len(found)
        found += db.execute(Sql.CHANGED_VALUES, (key_id, partition, since, room + 1)).fetchall()
        if len(found) > schemas.MAX_CHANGED_ROWS:
            raise schemas.SchemaRaceError
    return found
