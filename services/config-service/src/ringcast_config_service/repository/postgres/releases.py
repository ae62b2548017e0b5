"""Releases in PostgreSQL and CockroachDB."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import asyncpg

from ringcast_config_service.repository.postgres import write as writing
from ringcast_config_service.repository.postgres.audit import add_facts
from ringcast_config_service.repository.postgres.history import RecordWatch
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.release_transactions import (
    Ask,
    Each,
    Insert,
    ReleaseStatements,
    Transaction,
    Write,
)
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.transacted_releases import TransactedReleases

T = TypeVar("T")

_SQL: Final = ReleaseStatements(
    lock_store_name=Sql.LOCK_STORE_NAME,
    lock_policy=Sql.LOCK_POLICY,
    get_policy=Sql.GET_POLICY,
    get_store=Sql.GET_STORE,
    raise_usable_from=Sql.RAISE_USABLE_FROM,
    next_release=Sql.NEXT_RELEASE,
    lock_release_pin=Sql.LOCK_RELEASE_PIN,
    get_release_pin=Sql.GET_RELEASE_PIN,
    set_release_pin=Sql.SET_RELEASE_PIN,
    first_removed_release=Sql.FIRST_REMOVED_RELEASE,
    count_open_releases=Sql.COUNT_OPEN_RELEASES,
    begun_releases=Sql.BEGUN_RELEASES,
    insert_release=Sql.INSERT_RELEASE,
    find_stage=Sql.FIND_STAGE,
    get_release=Sql.GET_RELEASE,
    lock_release=Sql.LOCK_RELEASE,
    list_releases=Sql.LIST_RELEASES,
    set_release=Sql.SET_RELEASE,
    is_staged_long=Sql.IS_STAGED_LONG,
    old_releases=Sql.OLD_RELEASES,
    forget_releases=Sql.FORGET_RELEASES,
    forget_release_keys=Sql.FORGET_RELEASE_KEYS,
    forget_release_partitions=Sql.FORGET_RELEASE_PARTITIONS,
    forget_release_proofs=Sql.FORGET_RELEASE_PROOFS,
    release_revisions=Sql.RELEASE_REVISIONS,
    release_histories=Sql.RELEASE_HISTORIES,
    release_version=Sql.RELEASE_VERSION,
    row_releases=Sql.ROW_RELEASES,
    insert_release_proof=Sql.INSERT_RELEASE_PROOF,
    release_proofs=Sql.RELEASE_PROOFS,
    is_proven=Sql.IS_PROVEN,
    insert_release_rows=Sql.INSERT_RELEASE_ROWS,
    insert_release_keys=Sql.INSERT_RELEASE_KEYS,
    release_keys=Sql.RELEASE_KEYS,
    release_shares=Sql.RELEASE_SHARES,
    release_byte_shares=Sql.RELEASE_BYTE_SHARES,
    release_partition_shares=Sql.RELEASE_PARTITION_SHARES,
    added_ids=Sql.ADDED_IDS,
    waiting_ids=Sql.WAITING_IDS,
    deleted_ids=Sql.DELETED_IDS,
    ids_there=Sql.IDS_THERE,
    set_release_key=Sql.SET_RELEASE_KEY,
    release_conflicts=Sql.RELEASE_CONFLICTS,
    publish_page=Sql.PUBLISH_PAGE,
    schemas_since=Sql.SCHEMAS_SINCE,
    wave_page=Sql.WAVE_PAGE,
    undo_page=Sql.UNDO_PAGE,
    other_undone=Sql.OTHER_UNDONE,
    same_again=Sql.SAME_AGAIN,
    release_partitions=Sql.RELEASE_PARTITIONS,
    release_key_partitions=Sql.RELEASE_KEY_PARTITIONS,
    staged_page=Sql.STAGED_PAGE,
    clear_release_partitions=Sql.CLEAR_RELEASE_PARTITIONS,
    insert_release_partitions=Sql.INSERT_RELEASE_PARTITIONS,
    remove_release_rows=Sql.REMOVE_RELEASE_ROWS,
    release_page=Sql.RELEASE_PAGE,
    insert_approval=Sql.INSERT_APPROVAL,
    delete_approval=Sql.DELETE_APPROVAL,
    release_approvals=Sql.RELEASE_APPROVALS,
    forget_approvals=Sql.FORGET_APPROVALS,
)


class PostgresReleases(TransactedReleases):
    """:class:`~ringcast_config_service.repository.parts.ReleaseRepository`; ``watch`` as of the writer."""

    def __init__(self, sessions: Sessions, watch: RecordWatch) -> None:
        super().__init__(_SQL)
        self._sessions = sessions
        self._watch = watch

    async def due(self, idle_ms: int) -> list[tuple[str, int]]:
        async with self._sessions.use("upkeep") as db:
            return [(store, number) for store, number in await db.fetch(Sql.DUE_RELEASES, idle_ms)]

    async def counts(self) -> dict[str, int]:
        async with self._sessions.use("upkeep") as db:
            return dict(map(tuple, await db.fetch(Sql.COUNT_RELEASES)))

    async def set_problem(self, store: str, number: int, problem: str) -> None:
        async with self._sessions.use("upkeep") as db:
            await db.execute(Sql.SET_PROBLEM, store, number, problem)

    async def _read(self, make: Callable[[], Transaction[T]]) -> T:
        async with self._sessions.snapshot("snapshots") as db:
            return await self._run(db, make())

    async def _write(self, make: Callable[[], Transaction[T]]) -> T:
        return await self._sessions.transact(lambda db: self._run(db, make()))

    async def _run(self, db: Connection, transaction: Transaction[T]) -> T:
        answer: Any = None
        try:
            while True:
                asked = transaction.send(answer)
                answer = None
                if isinstance(asked, Ask):
                    answer = await db.fetch(asked.text, *asked.params)
                elif isinstance(asked, Each):
                    if asked.rows:
                        await db.execute(asked.text, *writing.columns(asked.rows))
                elif isinstance(asked, Insert):
                    try:
                        await db.execute(asked.text, *writing.columns(asked.rows))
                    except asyncpg.UniqueViolationError:
                        raise asked.twice from None
                elif isinstance(asked, Write):
                    # Nothing is remembered of keys: a release is looked at much later than it was staged.
                    fresh, now_ms = self._watch.fresh(db, asked.requests), int(time.time() * 1000)
                    how: dict[str, Any] = {
                        "copies": self._sessions.is_postgres,
                        "kept": asked.kept,
                        "staged": asked.staged,
                    }
                    answer, _ = await writing.write(fresh, asked.requests, now_ms, {}, **how)
                else:
                    await add_facts(db, asked.facts)
        except StopIteration as end:
            result: T = end.value
            return result
