"""The group/key store over one SQLite file."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, overload

from ringcast_sqlite import BUSY_TIMEOUT_S, StoreBusyError, StoreClosedError, StoreError, connect

from ringcast_groupstore import _log
from ringcast_groupstore._errors import InputError
from ringcast_groupstore._forks import close_in_children
from ringcast_groupstore._health import Health
from ringcast_groupstore._integrity import CHECKS, ON_DAMAGE, Check, OnDamage, back_up, find_damage, open_checked
from ringcast_groupstore._namespace import Namespace
from ringcast_groupstore._presence import Presence
from ringcast_groupstore._purge import Purger, drop_expired, drop_key
from ringcast_groupstore._quotas import Usage
from ringcast_groupstore._readers import Readers
from ringcast_groupstore._reads import GET, D, fetched, fetched_each
from ringcast_groupstore._transaction import Transaction, put
from ringcast_groupstore._types import Event, Limits, Quota, Value
from ringcast_groupstore._view import View
from ringcast_groupstore._watch import Callback, Choice, Hub, LiveWatch, LogWatch, Watch
from ringcast_groupstore._writes import Writes

T = TypeVar("T")

# 16 MiB of write-ahead log: a page that small writes change again and again is copied back, and synced, once.
_LOG_PAGES = 4_000


class GroupStore(Writes):
    """Groups of keys in one SQLite file. Opens it when constructed; close it, or use it as a context manager.

    Any thread may use it, and any number of processes may open the same file. Writes run one at a time, each in a
    transaction; reads run beside them on connections of their own and never wait. After a fork the child opens its
    own.

    Args:
        path: the file; created if it is not there. Its directory must exist.
        durable: whether a write is on the disk when its call returns. Without, a power cut may lose the last writes,
            a crash of the process none; neither damages the file.
        check: how well the file is looked at first: ``"header"`` only whether it is a store, ``"quick"`` every page,
            ``"full"`` the indices and every checksum too. The latter two read the whole file.
        on_damage: what happens with a damaged file: ``"raise"`` StoreCorruptError, or ``"set_aside"``: it is renamed,
            a warning logged, ``set_aside`` says to what, and a store of all keys that can still be read takes its
            place, whose log of changes begins anew. A sound file of something else is left alone, and so is a damaged
            one that another process has open. What is no SQLite file at all, but of a size that one may have, counts
            as a store whose first page is damaged.
        limits: what is taken at most.
        keep_changes: how many changes the log keeps, for those who resume from a revision; some more may be there.
        purge_interval_s: how often expired keys are removed in the background; ``None``: only by ``purge_expired``.
        busy_timeout_s: how long a write waits for other threads and processes.
        clock: milliseconds since 1970.

    Raises:
        StoreOpenError: the file can't be opened, is no store, or is of a newer version.
        StoreCorruptError: the file is damaged.
        StoreBusyError: another process holds it locked.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        durable: bool = True,
        check: Check = "header",
        on_damage: OnDamage = "raise",
        limits: Limits | None = None,
        keep_changes: int = 10_000,
        purge_interval_s: float | None = 60.0,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        if not 1 <= keep_changes <= 10_000_000:
            raise InputError(f"keep_changes {keep_changes} is out of range: 1 to 10000000")
        if not 0 <= busy_timeout_s <= 3600:
            raise InputError(f"busy_timeout_s {busy_timeout_s} is out of range: 0 to 3600")
        if purge_interval_s is not None and not 0.001 <= purge_interval_s <= 604_800:
            raise InputError(f"purge_interval_s {purge_interval_s} is out of range: 0.001 to 604800, or None")
        for name, value, known in (("check", check, CHECKS), ("on_damage", on_damage, ON_DAMAGE)):
            if value not in known:
                raise InputError(f"{name} {value!r} is not known: {', '.join(known)} are")
        self.path = Path(path)
        self._durable = durable
        self._store_limits = limits or Limits()
        self._keep_changes = keep_changes
        self._busy_timeout_s = busy_timeout_s
        self._clock = clock
        self._closed = False
        self._lock = threading.RLock()
        self._health = Health(self.path, self._limits.max_file_bytes)
        self._readers = Readers(self.path, self._health, busy_timeout_s)
        self._hub = Hub()
        self._usage = Usage()
        self._presence = Presence(self.path)
        try:
            self._writer, self.set_aside = open_checked(
                self.path, self._connect_writer, self._presence, check, on_damage, self._limits, busy_timeout_s
            )
        except BaseException:
            self._presence.end()
            raise
        self._cursor = self._writer.cursor()
        self._purger = Purger(self, purge_interval_s)
        close_in_children(self)

    def namespace(self, name: str, *, quota: Quota | None = None) -> Namespace:
        """The part of the store that belongs to ``name``: 1 to 64 of ``A-Z a-z 0-9 -``.

        The quota holds for what is written through it: a namespace has no quota of its own in the file.

        Raises:
            InputError: the name is not allowed.
        """
        return Namespace(self, name, quota)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Groups writes: all are there after the ``with`` block, or none when it raises. Others wait meanwhile.

        Events are sent after the commit. Inside the block write through what it gives: the store's own writing verbs
        raise, and its reads show what was there before.
        """
        self._acquire()
        try:
            self._begin()
            tx = Transaction(self, self._cursor)
            try:
                yield tx
                with self._health.translating():
                    events = self._commit(tx)
            except BaseException:  # what the caller raises stays as it is
                tx._open = False
                self._roll_back()
                raise
        finally:
            self._lock.release()
        if events:
            self._hub.call_back(events)

    @contextmanager
    def snapshot(self) -> Iterator[View]:
        """One unchanging view of the store over several reads.

        While it is open the write-ahead log can't be trimmed: don't keep it for long.
        """
        cursor = self._readers.take()
        view = View(self, cursor)
        try:
            with self._health.translating():
                cursor.execute("BEGIN")
                _log.head(cursor)  # a transaction begins with its first read
            yield view
        finally:
            view._end()
            self._readers.give_back(cursor)

    @property
    def revision(self) -> int:
        """How many changes the store has seen, of every process: the revision of the last."""
        return self._readers.run(_log.head)

    def changes(self, since: int, *, limit: int = 1_000) -> list[Event]:
        """At most ``limit`` changes after revision ``since``, oldest first, of every process.

        Raises:
            RevisionGapError: the log no longer has them, or never had such a revision.
        """
        if limit < 1:
            raise InputError(f"limit {limit} is out of range: 1 or more")

        return self._readers.run_on_snapshot(lambda cursor: _log.read(cursor, since, limit))

    @overload
    def watch(self, group: str | None = None, *, capacity: int = 1_024) -> LiveWatch: ...

    @overload
    def watch(self, group: str | None = None, *, since: int, poll_s: float = 0.25) -> LogWatch: ...

    def watch(
        self, group: str | None = None, *, since: int | None = None, capacity: int = 1_024, poll_s: float = 0.25
    ) -> Watch:
        """Hears of changes in one group or in all.

        Without ``since``: of those that are made through this object from now on; see :class:`LiveWatch`.
        With it: of every change after that revision, of this and of other processes; see :class:`LogWatch`.

        Raises:
            RevisionGapError: the log no longer has what followed ``since``, or never had such a revision.
        """
        return self._watch(Choice("", group), since, capacity, poll_s)

    def on_change(self, callback: Callback, group: str | None = None) -> Callable[[], None]:
        """Calls ``callback`` with every change that is made through this object, after its commit, in its thread.

        It may use the store, and add and remove watches and callbacks. Between threads the order is not that of the
        commits: an event's revision says it. Returns what removes the callback; calling that again is harmless.
        """
        return self._hub.on_change(callback, Choice("", group))

    def purge_expired(self) -> int:
        """Removes every key that has expired by now; tells how many. They could not be read before either."""
        return drop_expired(self)

    def backup(self, target: Path | str) -> None:
        """Writes a copy of the store as of now, while others go on reading and writing.

        The copy appears under its name only once it is whole and on the disk.

        Raises:
            InputError: there is a file of that name.
            StoreFullError: it can't be written.
        """
        self._readers.run(lambda cursor: back_up(cursor.connection, self.path, Path(target)))

    def check(self) -> list[str]:
        """Looks at the whole file, structure and content; returns what is wrong, one sentence each.

        Nothing is wrong when there is none. Reads every page, beside other readers and writers.
        """
        return self._readers.run(find_damage)

    def close(self) -> None:
        """Waits for the write that runs, ends every watch, and closes the file. Calling it again is harmless.

        Raises:
            StoreError: this thread is inside a transaction of the store.
        """
        if self._closed:
            return
        with self._lock:
            if self._writer.in_transaction:
                raise StoreError(f"store {self.path} can't be closed inside a transaction")
            self._closed = True
        self._purger.stop()
        self._hub.close()
        self._readers.close()
        with self._lock:
            self._writer.close()  # last: it trims the write-ahead log
        self._presence.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _limits(self) -> Limits:
        return self._store_limits

    @property
    def _prefix(self) -> str:
        return ""

    @property
    def _quota(self) -> Quota | None:
        return None

    def _now(self) -> int:
        return self._clock()

    # Writing.

    def set(self, group: str, key: str, value: Value, *, ttl_ms: int | None = None) -> int:
        """See :meth:`Writes.set`; the same with fewer steps while nobody listens, for it is called most of all."""
        name, expires_at_ms = self._checked(group, key, value, ttl_ms)
        self._acquire()
        try:
            if not self._hub.active:
                return self._set_unheard(name, key, value, expires_at_ms)
        finally:
            self._lock.release()
        return super().set(group, key, value, ttl_ms=ttl_ms)

    def _set_unheard(self, group: str, key: str, value: Value, expires_at_ms: int | None) -> int:
        self._begin()
        cursor = self._cursor
        try:
            revision = _log.append_set(cursor, group, key, expires_at_ms, self._clock())
            put(cursor, group, key, value, expires_at_ms, revision)
            _log.trim(cursor, revision - 1, 1, self._keep_changes)
            cursor.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            self._health.explain(error)
            raise
        self._usage.wrote(group, revision)
        return revision

    def _change(self, work: Callable[[Transaction], T]) -> T:
        self._acquire()
        try:
            self._begin()
            tx = Transaction(self, self._cursor)
            try:
                result = work(tx)
                events = self._commit(tx)
            except BaseException as error:
                tx._open = False
                self._roll_back()
                self._health.explain(error)
                raise
        finally:
            self._lock.release()
        if events:
            self._hub.call_back(events)
        return result

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise StoreBusyError(
                f"store {self.path} is busy: another thread writes for over {self._busy_timeout_s:g} s"
            )

    def _begin(self) -> None:
        if self._closed:
            raise StoreClosedError(f"store {self.path} is closed")
        self._health.check_writable()
        if self._writer.in_transaction:
            raise StoreError(f"this thread is inside a transaction of store {self.path}: write through that")
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
        except (sqlite3.Error, UnicodeError) as error:
            self._health.explain(error)
            raise

    def _commit(self, tx: Transaction) -> list[Event]:
        tx._write_log(self._keep_changes)
        self._cursor.execute("COMMIT")
        tx._open = False
        self._usage.committed(tx._head())
        if not self._hub.active:
            return []
        events = tx._events()
        self._hub.publish(events)
        return events

    def _roll_back(self) -> None:
        self._usage.forget()
        # A full disk makes SQLite roll back by itself.
        if self._writer.in_transaction:
            self._cursor.execute("ROLLBACK")

    # Reading.

    def get(self, group: str, key: str, default: D | None = None) -> Value | D | None:
        """See :meth:`Reads.get`; the same without its detours, for it is called most of all."""
        if type(group) is not str or type(key) is not str:
            raise TypeError(f"group and key must be str, not {type(group).__name__} and {type(key).__name__}")
        try:
            cursor = self._readers.idle.pop()
        except IndexError:
            cursor = self._readers.take()
        try:
            rows = cursor.execute(GET, (group, key)).fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            self._health.explain(error)
            raise
        finally:
            self._readers.give_back(cursor)
        found = self._found(group, key, rows)
        return default if found is None else found[0]

    def _rows(self, sql: str, words: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        cursor, whole = self._readers.take(), True
        try:
            rows, whole = fetched(cursor.execute(sql, words), max_bytes)
            return rows
        except (sqlite3.Error, UnicodeError) as error:
            self._health.explain(error)
            raise
        finally:
            (self._readers.give_back if whole else self._readers.give_back_unfinished)(cursor)

    def _each(self, sql: str, words: Iterable[tuple[object, ...]]) -> list[Any]:
        return self._readers.run_on_snapshot(lambda cursor: fetched_each(cursor, sql, words))

    def _report(self, group: str, key: str) -> NoReturn:
        self._health.report(group, key)

    def _expired(self, group: str, key: str) -> None:
        drop_key(self, group, key)

    # Listening.

    def _watch(self, choice: Choice, since: int | None, capacity: int, poll_s: float) -> Watch:
        self._check_open()
        watch: Watch
        if since is None:
            watch = LiveWatch(self._hub, choice, capacity)
        else:
            watch = LogWatch(self._hub, choice, self, since, poll_s)
            self._readers.run(lambda cursor: _log.check_since(cursor, since))
        self._hub.add(watch)
        return watch

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"store {self.path} is closed")

    # The file.

    def _connect_writer(self) -> sqlite3.Connection:
        connection = connect(self.path, writer=True, durable=self._durable, busy_timeout_s=self._busy_timeout_s)
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {self._store_limits.max_file_bytes // page_size}")
        return connection
