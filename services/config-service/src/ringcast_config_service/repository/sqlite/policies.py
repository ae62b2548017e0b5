"""The policies of stores in SQLite."""

from __future__ import annotations

import sqlite3

from ringcast_wire import StorePolicy

from ringcast_config_service.repository import audit, budgets, mapping
from ringcast_config_service.repository.base import SERVICE, Authorship, StoreInfo
from ringcast_config_service.repository.policies import PolicyChange, least_schema
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.session import Sessions
from ringcast_config_service.repository.sqlite.stores import store_info
from ringcast_config_service.repository.sqlite.writer import fill_heads


class SqlitePolicies:
    """:class:`~ringcast_config_service.repository.parts.PolicyRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def set_policy(self, name: str, change: PolicyChange, by: Authorship = SERVICE) -> StoreInfo:
        def work(db: sqlite3.Connection) -> StoreInfo:
            record = mapping.only_record(db.execute(Sql.GET_STORE, (name,)).fetchone(), name)
            policy = change.of(record.policy)
            if policy != record.policy:
                (before,) = db.execute(Sql.GET_POLICY, (name,)).fetchone()
                db.execute(Sql.SET_POLICY, (name, mapping.from_policy(policy, before)))
                db.execute(Sql.RAISE_USABLE_FROM, (least_schema(policy),))
                add_facts(db, [audit.fact(by, "SetStorePolicy", name, **change.details())])
            if budgets.limits_differ(policy, record.policy):
                _limit(db, name, record.partition_count, policy)
            return store_info(db, name, include_deleted=True)

        return await self._sessions.write(work)


def _limit(db: sqlite3.Connection, store: str, partition_count: int, policy: StorePolicy) -> None:
    """Starts over with the limits of a store: no partition has caps to use."""
    caps = budgets.least_caps(policy)
    for (key_id,) in db.execute(Sql.KEY_IDS, (store,)).fetchall():
        fill_heads(db, key_id, partition_count, caps)
        db.execute(Sql.SET_ALL_CAPS, (key_id, *caps))
    if not budgets.has_limits(policy):
        db.execute(Sql.DROP_BUDGET, (store,))
        return
    use = budgets.StoreUse(*db.execute(Sql.STORE_USE, (store,)).fetchone())
    db.execute(Sql.SET_BUDGET, (store, *use.budget(policy)))
