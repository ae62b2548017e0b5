"""Removing what has expired: at once when a read meets it, and in the background."""

from __future__ import annotations

import sqlite3
import threading
import weakref

from ringcast_sqlite import StoreError

from ringcast_groupstore._changes import Changer, Changes, Commits
from ringcast_groupstore._checks import prefix_end
from ringcast_groupstore._engine import Engine
from ringcast_groupstore._events import logger

BATCH_ROWS = 10_000
"""Removed in one transaction, so that no writer waits long."""

_DROP = """
    DELETE FROM entries WHERE (group_name, entry_key) IN
    (SELECT group_name, entry_key FROM entries WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)
    """
_DROP_OF = """
    DELETE FROM entries WHERE (group_name, entry_key) IN
    (SELECT group_name, entry_key FROM entries
     WHERE expires_at <= ? AND group_name >= ? AND group_name < ? ORDER BY expires_at LIMIT ?)
    """
_DROP_KEY = "DELETE FROM entries WHERE group_name = ? AND entry_key = ? AND expires_at <= ? RETURNING expires_at"


def drop_expired(changer: Changer, now: int, prefix: str) -> int:
    """Removes what has expired by ``now`` in a store or a namespace, batch by batch; tells how many."""
    total = 0

    def batch(tx: Changes) -> int:
        tx.reserve(0)
        if prefix:
            tx.engine.usage.settle(tx, prefix)
            params = (now, prefix, prefix_end(prefix), BATCH_ROWS)
            return int(tx.cursor.execute(_DROP_OF, params).rowcount)
        tx.engine.usage.settle_all(tx)
        return int(tx.cursor.execute(_DROP, (now, BATCH_ROWS)).rowcount)

    while dropped := changer.change(batch):
        total += dropped
        if dropped < BATCH_ROWS:
            break
    return total


def drop_key(engine: Engine, group: str, key: str) -> None:
    """Removes a key that a read has found expired, unless that would make the reader wait: the purge finds it."""
    if engine.health.damage is not None or not engine.lock.acquire(blocking=False):
        return
    try:
        if engine.closed or engine.writer.in_transaction:
            return
        cursor = engine.cursor
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            dropped = cursor.execute(_DROP_KEY, (group, key, engine.clock())).fetchall()
        except sqlite3.OperationalError as error:
            logger.debug("expired_key.left_to_purge", error=error)
        else:
            for (expires_at_ms,) in dropped:
                engine.usage.expired(group, expires_at_ms)
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {round(engine.busy_timeout_s * 1000)}")
    finally:
        engine.lock.release()


class Purger:
    """Purges a store every ``interval_s`` seconds on a thread of its own, until it is stopped or the store is gone."""

    def __init__(self, engine: Engine, interval_s: float | None) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if interval_s is None:
            return
        self._thread = threading.Thread(
            target=_purge,
            args=(weakref.ref(engine), self._stopping, interval_s),
            name="ringcast-groupstore-purge",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """Waits for a purge that runs."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _purge(engine: weakref.ref[Engine], stopping: threading.Event, interval_s: float) -> None:
    while not stopping.wait(interval_s):
        found = engine()
        if found is None or found.closed:
            return
        try:
            drop_expired(Commits(found), found.clock(), "")
        except StoreError as error:
            logger.warning("expired_keys.purge_failed", retry_s=interval_s, error=error)
        del found
