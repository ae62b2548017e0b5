"""What publishes, pauses, stops and undoes a release is killed behind every statement that it has the database run.

Nothing of the transaction may be left then, and the next instance goes on. One that was killed behind its COMMIT has
done it without knowing.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from ringcast_config_service.repository import (
    Authorship,
    ListFilter,
    Repository,
    RowWrite,
    StageBatch,
    StagedRow,
    release_steps,
)
from ringcast_core import row_partition
from ringcast_wire import ReleaseState, StoreSettings, check_row

Bench = Any  # of conftest.py

BY: Final = Authorship("alice", "new list")
DAY_MS: Final = 86_400_000
KEYS: Final = ("k", "k2")
PARTITIONS: Final = 2
OLD: Final = {f"r{number}": "old" for number in range(4)}
NEW: Final = {"r0": "new", "r1": None, "r2": "new", "r4": "new", "r5": "new"}
PUBLISHED: Final = {
    (key, row_id): (value, {"by": "me"} if row_id == "r3" else None)
    for key in KEYS
    for row_id, value in {**OLD, **NEW}.items()
    if value is not None
}
SETTINGS: Final = StoreSettings(partition_count=PARTITIONS)


class Killed(Exception):
    """The process ends here."""


class Deaths:
    """Counts the statements of a call, and ends the process behind one of them."""

    def __init__(self) -> None:
        self.due: int | None = None
        """Behind which statement the process that runs now is killed; ``None``: none is."""
        self.task: asyncio.Task[Any] | None = None
        """What it runs in, where that is no thread: an instance of PostgreSQL looks after its connections beside it."""
        self.run: list[str] = []
        self.kills = 0

    def ran(self, text: str) -> bool:
        """A statement has run; whether the process ends with it. What a new connection asks first does not count."""
        if self.run or text.startswith("BEGIN"):
            self.run.append(text)
        return len(self.run) == self.due


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Deaths:
    """At each connection that a repository opens from now on."""
    deaths = Deaths()

    def watched(name: str) -> None:
        method = getattr(asyncpg.Connection, name)

        async def call(self: Any, query: str, *args: Any, **words: Any) -> Any:
            if asyncio.current_task() is not deaths.task or (
                name == "execute" and args
            ):  # that one calls another of these
                return await method(self, query, *args, **words)
            if len(deaths.run) == deaths.due:
                raise Killed  # a dead process has no more statements run, of what it would tidy up neither
            found = await method(self, query, *args, **words)
            if deaths.ran(query):
                self.terminate()
                raise Killed
            return found

        monkeypatch.setattr(asyncpg.Connection, name, call)

    for name in ("execute", "_execute", "_executemany", "_copy_in"):
        watched(name)
    return deaths


@pytest.fixture
def images(tmp_path: Path, deaths: Deaths, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file of SQLite is copied to as it is when the process dies."""
    folder = tmp_path / "image"
    folder.mkdir()

    class Watched(sqlite3.Connection):
        def execute(self, text: str, *args: Any) -> sqlite3.Cursor:
            return self._done(text, super().execute(text, *args))

        def executemany(self, text: str, *args: Any) -> sqlite3.Cursor:
            return self._done(text, super().executemany(text, *args))

        def _done(self, text: str, cursor: sqlite3.Cursor) -> sqlite3.Cursor:
            if deaths.due is not None and text != "ROLLBACK" and deaths.ran(text):
                for file in tmp_path.glob("ringcast.db*"):
                    shutil.copy(file, folder / file.name)
                cursor.close()
                if self.in_transaction:
                    super().execute("ROLLBACK")  # as the next one does that opens the file
                raise Killed
            return cursor

    connect = sqlite3.connect
    monkeypatch.setattr(
        "ringcast_sqlite._connection.sqlite3.connect", lambda *args, **words: connect(*args, **words, factory=Watched)
    )
    return folder


class Drivers:
    """Two instances that do in turns what is to be done with the releases of a store."""

    def __init__(self, bench: Bench, repos: list[Repository], deaths: Deaths, images: Path, postgres: Any) -> None:
        self.bench, self.deaths = bench, deaths
        self._postgres = postgres
        self._turns: Iterator[Repository] = itertools.cycle(repos)
        self._images = images
        self._staged = 0

    async def state(self, *, image: bool = False) -> dict[str, list[str]]:
        """All that is committed. ``image``: as the killed process has left the file of SQLite."""
        if self._postgres is not None:
            tables = await self._postgres.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            texts = [f"SELECT '{name}', array_agg(t::text ORDER BY t::text) FROM {name} t" for (name,) in tables]
            return dict(map(tuple, await self._postgres.fetch(" UNION ALL ".join(texts))))
        path = Path(self.bench.address.removeprefix("sqlite:"))
        with closing(sqlite3.connect(self._images / path.name if image else path)) as db:
            names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            return {name: sorted(map(repr, db.execute(f"SELECT * FROM {name}"))) for (name,) in names}

    async def do(self, call: Callable[[Repository], Awaitable[object]]) -> None:
        """Each instance is killed one statement later than the other one was, up to the COMMIT that stores something.

        Before that nothing is stored.
        """
        before = await self.state()
        is_file = self._postgres is None
        for due in itertools.count(1):
            self.deaths.due, self.deaths.run = due, []
            self.deaths.task = asyncio.current_task()
            try:
                await call(next(self._turns))
            except Exception:  # or another one, on the connection that has been closed
                self.deaths.kills += 1
                if len(self.deaths.run) < due:
                    raise
            finally:
                self.deaths.due = self.deaths.task = None
            assert len(self.deaths.run) == due, "it ended sooner than the call before"
            if await self.state(image=is_file) != before:
                assert self.deaths.run[-1].startswith("COMMIT")
                return

    async def work(self, number: int, most: int = 100) -> None:
        """Takes steps until there is nothing to do, or so many."""
        for _ in range(most):
            release = await self.bench.repo.releases.get("t", number)
            if not release.work or release.at_gate:
                return
            await self.do(lambda repo: repo.releases.step("t", number, repo.histories.generation))

    async def rows(self) -> dict[tuple[str, str], tuple[str, object]]:
        """What the rows of both keys hold."""
        return {
            (key, found.row.row_id): (found.row.value, found.row.metadata)
            for key in KEYS
            async for page in self.bench.repo.reader.list_rows("t", key, ListFilter())
            for found in page
        }

    async def stage(self) -> int:
        """A release that adds, changes and deletes rows of both keys in both partitions."""
        rows = []
        for key in KEYS:
            versions = {
                found.row.row_id: found.row.version
                async for page in self.bench.repo.reader.list_rows("t", key, ListFilter())
                for found in page
            }
            for row_id, value in sorted(NEW.items(), key=lambda row: (row_partition(row[0], PARTITIONS), row[0])):
                size = check_row(row_id, value or "", None)
                write = RowWrite(row_partition(row_id, PARTITIONS), row_id, value, None, size, versions.get(row_id, 0))
                rows.append(StagedRow(key, write))
        self._staged += 1
        batch = StageBatch(f"stage-{self._staged}", 0, rows, True)
        release = await self.bench.repo.releases.stage(self.bench.store, batch, BY)
        return int(release.number)

    async def check(self, number: int, state: ReleaseState, rows: object) -> None:
        """All rows are as they must be, and each revision is in the history and in an event once."""
        release = await self.bench.repo.releases.get("t", number)
        assert (release.state, release.work, release.skipped) == (state, "", 0)
        assert await self.rows() == rows
        for key in KEYS:
            await self.bench.check_gap_free(key)


@pytest.fixture
async def drivers(deaths: Deaths, images: Path, bench: Bench) -> AsyncIterator[Drivers]:
    bench.store = await bench.repo.stores.create_store(replace(bench.store, name="t", settings=SETTINGS))
    for key in KEYS:
        await bench.write(OLD, key, metadata={"by": "me"})
    other = await bench.another()
    postgres = None if bench.address.startswith("sqlite:") else await asyncpg.connect(bench.address)
    yield Drivers(bench, [bench.repo, other], deaths, images, postgres)
    await other.close()
    if postgres is not None:
        await postgres.close()


async def test_a_release_that_is_published_and_undone(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_steps, "STEP_ROWS", 6)  # a step has rows of both keys
    before = await drivers.rows()
    number = await drivers.stage()
    await drivers.do(lambda repo: repo.releases.publish("t", number, DAY_MS, BY))
    await drivers.work(number)
    await drivers.check(number, ReleaseState.PUBLISHED, PUBLISHED)
    await drivers.do(lambda repo: repo.releases.undo("t", number, BY))
    await drivers.work(number)
    await drivers.check(number, ReleaseState.UNDONE, before)
    assert drivers.deaths.kills > 60


async def test_one_in_waves_that_is_paused_and_resumed_and_passes_its_gates(drivers: Drivers) -> None:
    number = await drivers.stage()
    await drivers.do(lambda repo: repo.releases.publish("t", number, DAY_MS, BY, (50, 100)))
    await drivers.work(number, 1)
    await drivers.do(lambda repo: repo.releases.pause("t", number, BY))
    await drivers.do(lambda repo: repo.releases.resume("t", number, BY))
    for wave in (1, 2):
        await drivers.work(number)
        await drivers.do(lambda repo, wave=wave: repo.releases.pass_gate("t", number, wave))  # type: ignore[misc]
    await drivers.check(number, ReleaseState.PUBLISHED, PUBLISHED)
    assert drivers.deaths.kills > 60


async def test_one_that_is_stopped_in_the_middle_of_a_wave_and_undone(drivers: Drivers) -> None:
    before = await drivers.rows()
    number = await drivers.stage()
    await drivers.do(lambda repo: repo.releases.publish("t", number, DAY_MS, BY, (50, 100)))
    await drivers.work(number, 1)
    await drivers.do(lambda repo: repo.releases.stop("t", number, BY))
    await drivers.do(lambda repo: repo.releases.undo("t", number, BY))
    await drivers.work(number)
    await drivers.check(number, ReleaseState.UNDONE, before)
    assert drivers.deaths.kills > 60
