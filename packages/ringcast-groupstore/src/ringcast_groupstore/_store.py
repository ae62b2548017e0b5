"""The group/key store over one SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, overload

from ringcast_sqlite import BUSY_TIMEOUT_S

from ringcast_groupstore import _log
from ringcast_groupstore._changes import Commits
from ringcast_groupstore._engine import Engine, EngineSettings
from ringcast_groupstore._entries import GET, fetched, fetched_each
from ringcast_groupstore._errors import InputError
from ringcast_groupstore._hub import Callback, Choice
from ringcast_groupstore._integrity import CHECKS, ON_DAMAGE, Check, OnDamage, back_up, find_damage
from ringcast_groupstore._namespace import Namespace, Transaction
from ringcast_groupstore._purge import Purger, drop_expired, drop_key
from ringcast_groupstore._source import Source
from ringcast_groupstore._types import Event, Limits, Quota, Value
from ringcast_groupstore._view import View, snapshot
from ringcast_groupstore._watch import LiveWatch, LogWatch, Watch, read_changes, watch
from ringcast_groupstore._writes import Writes

D = TypeVar("D")


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
        on_damage: what happens with a damaged file: ``"raise"`` StoreCorruptError, or ``"quarantine"``: it is renamed,
            a warning logged, ``quarantined`` says to what, and a store of all keys that can still be read takes its
            place, with an empty log of changes. A sound file of something else is left alone, and so is a damaged
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
        settings = EngineSettings(durable, check, on_damage, limits or Limits(), keep_changes, busy_timeout_s, clock)
        self._engine = Engine(self.path, settings)
        self.quarantined = self._engine.quarantined
        super().__init__(_CommittedSource(self._engine))
        self._changer = self._commits = Commits(self._engine)
        self._quota = None
        self._purger = Purger(self._engine, purge_interval_s)

    def namespace(self, name: str, *, quota: Quota | None = None) -> Namespace:
        """The part of the store that belongs to ``name``: 1 to 64 of ``A-Z a-z 0-9 -``.

        The quota holds for what is written through it: a namespace has no quota of its own in the file.

        Raises:
            InputError: the name is not allowed.
        """
        return Namespace(self._engine, self._source, self._commits, name, quota)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Groups writes: all are there after the ``with`` block, or none when it raises. Others wait meanwhile.

        Events are sent after the commit. Inside the block write through what it gives: the store's own writing verbs
        raise, and its reads show what was there before.
        """
        with self._commits.transaction() as changes:
            yield Transaction(changes)

    def snapshot(self) -> AbstractContextManager[View]:
        """One unchanging view of the store over several reads.

        While it is open the write-ahead log can't be trimmed: don't keep it for long.
        """
        return snapshot(self._engine)

    @property
    def revision(self) -> int:
        """How many changes the store has seen, of every process: the revision of the last."""
        return self._engine.readers.run(_log.head)

    def changes(self, since: int, *, limit: int = 1_000) -> list[Event]:
        """At most ``limit`` changes after revision ``since``, oldest first, of every process.

        Raises:
            RevisionGapError: the log no longer has them, or never had such a revision.
        """
        if limit < 1:
            raise InputError(f"limit {limit} is out of range: 1 or more")

        return read_changes(self._engine, since, limit)

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
        return watch(self._engine, Choice("", group), since, capacity, poll_s)

    def on_change(self, callback: Callback, group: str | None = None) -> Callable[[], None]:
        """Calls ``callback`` with every change that is made through this object, after its commit, in its thread.

        It may use the store, and add and remove watches and callbacks. Between threads the order is not that of the
        commits: an event's revision says it. Returns what removes the callback; calling that again is harmless.
        """
        return self._engine.hub.on_change(callback, Choice("", group))

    def purge_expired(self) -> int:
        """Removes every key that has expired by now; tells how many. They could not be read before either."""
        return drop_expired(self._commits, self._engine.clock(), "")

    def backup(self, target: Path | str) -> None:
        """Writes a copy of the store as of now, while others go on reading and writing.

        The copy appears under its name only once it is whole and on the disk.

        Raises:
            InputError: there is a file of that name.
            StoreFullError: it can't be written.
        """
        self._engine.readers.run(lambda cursor: back_up(cursor.connection, self.path, Path(target)))

    def check(self) -> list[str]:
        """Looks at the whole file, structure and content; returns what is wrong, one sentence each.

        Nothing is wrong when there is none. Reads every page, beside other readers and writers.
        """
        return self._engine.readers.run(find_damage)

    def close(self) -> None:
        """Waits for the write that runs, ends every watch, and closes the file. Calling it again is harmless.

        Raises:
            StoreError: this thread is inside a transaction of the store.
        """
        if not self._engine.refuse_use():
            return
        self._purger.stop()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set(self, group: str, key: str, value: Value, *, ttl_ms: int | None = None) -> int:
        """See :meth:`Writes.set`; with fewer steps while there is no listener, for it is called most of all."""
        name, expires_at_ms = self._checked(group, key, value, ttl_ms)
        revision = self._commits.set_unheard(name, key, value, expires_at_ms)
        return super().set(group, key, value, ttl_ms=ttl_ms) if revision is None else revision

    def get(self, group: str, key: str, default: D | None = None) -> Value | D | None:
        """See :meth:`Reads.get`; the same without its detours, for it is called most of all."""
        if type(group) is not str or type(key) is not str:
            raise TypeError(f"group and key must be str, not {type(group).__name__} and {type(key).__name__}")
        readers = self._engine.readers
        try:
            cursor = readers.idle.pop()
        except IndexError:
            cursor = readers.take()
        try:
            rows = cursor.execute(GET, (group, key)).fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            self._engine.health.explain(error)
            raise
        finally:
            readers.give_back(cursor)
        found = self._found(group, key, rows)
        return default if found is None else found[0]


class _CommittedSource(Source):
    """Each statement reads the last commit, on a connection that no other thread uses meanwhile."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.limits)
        self._engine = engine

    def now(self) -> int:
        return self._engine.clock()

    def rows(self, sql: str, params: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        readers = self._engine.readers
        cursor, whole = readers.take(), True
        try:
            rows, whole = fetched(cursor.execute(sql, params), max_bytes)
            return rows
        except (sqlite3.Error, UnicodeError) as error:
            self._engine.health.explain(error)
            raise
        finally:
            (readers.give_back if whole else readers.give_back_unfinished)(cursor)

    def each(self, sql: str, each: Iterable[tuple[object, ...]]) -> list[Any]:
        return self._engine.readers.run_on_snapshot(lambda cursor: fetched_each(cursor, sql, each))

    def report(self, group: str, key: str) -> NoReturn:
        self._engine.health.report(group, key)

    def expired(self, group: str, key: str) -> None:
        drop_key(self._engine, group, key)
