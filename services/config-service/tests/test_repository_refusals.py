"""What a database that takes no writes now means to a client: UNAVAILABLE with a sentence, and nothing written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from ringcast_config_service.repository import make_repository
from ringcast_wire import UnavailableError

Bench = Any  # of conftest.py

_REFUSE = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger AS
$$ BEGIN RAISE EXCEPTION 'as the database says it' USING ERRCODE = '{state}'; END $$ LANGUAGE plpgsql;
CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.fixture
async def admin(postgres_bench: Bench) -> AsyncIterator[Any]:
    """The database's operator."""
    connection = await asyncpg.connect(postgres_bench.address)
    await connection.execute("SET default_transaction_read_only = off")
    yield connection
    connection.terminate()


async def set_for_all(bench: Bench, admin: Any, setting: str) -> None:
    """Changes the settings of the database, for the sessions that begin from now on: so all must."""
    name = await admin.fetchval("SELECT current_database()")
    await admin.execute(f"ALTER DATABASE {name} {setting}")
    await bench.repo.close()
    bench.repo = make_repository(bench.address)
    await bench.repo.open()


async def write_again(bench: Bench, rows: dict[str, str]) -> Any:
    """Writes once the database takes writes again.

    The pools open sessions on their own, to keep one ready. One that began just before the change is refused once, and
    ends all that are older.
    """
    try:
        await bench.repo.check_writable()
        return await bench.write(rows)
    except UnavailableError:
        await bench.repo.check_writable()
        return await bench.write(rows)


async def test_a_database_takes_writes(bench: Bench) -> None:
    await bench.repo.check_writable()
    await bench.write({"a": "1"})
    await bench.repo.check_writable()
    await bench.check_gap_free()


async def test_a_read_only_database(postgres_bench: Bench, admin: Any) -> None:
    """A primary that became a standby, as sessions see it: reads go on, and writes once it is a primary again."""
    bench = postgres_bench
    await bench.write({"a": "1"})
    await set_for_all(bench, admin, "SET default_transaction_read_only = on")
    await bench.repo.ping()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="takes no writes now, it is read-only: nothing was written: cannot"):
            await bench.write({"a": "2"})
        with pytest.raises(UnavailableError, match="the database takes no writes now, it is read-only"):
            await bench.repo.check_writable()
    with pytest.raises(UnavailableError, match="read-only"):
        await bench.repo.events.delete_events([1])
    assert await bench.live() == {"a": "1"}
    await admin.execute(f"ALTER DATABASE {await admin.fetchval('SELECT current_database()')} RESET ALL")
    assert (await write_again(bench, {"a": "2"})).versions == [2]
    await bench.check_gap_free()


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("25006", "the database takes no writes now, it is read-only: nothing was written: as the database"),
        ("53100", "the disk of the database is full: nothing was written: as the database"),
        ("53200", "the database does not answer: as the database"),
        ("55P03", "another transaction holds a lock that this one needs, .*: nothing was written, try again: as"),
        ("57014", "the database cancelled a statement that took too long: nothing was written, try again: as"),
        ("57P03", "the database does not answer: as"),
        ("58030", "the database does not answer: as"),
        ("25P04", "the transaction took longer than the database allows: nothing was written, try again: as"),
    ],
)
async def test_a_write_that_the_database_refuses(postgres_bench: Bench, admin: Any, state: str, sentence: str) -> None:
    bench = postgres_bench
    await bench.write({"a": "1"})
    await admin.execute(_REFUSE.format(state=state))
    for rows in ({"a": "2"}, {f"r{number}": "2" for number in range(500)}):
        with pytest.raises(UnavailableError, match=sentence):
            await bench.write(rows)
    await admin.execute("DROP TRIGGER refuse ON outbox")
    assert await bench.live() == {"a": "1"}
    assert (await bench.write({"a": "2"})).versions == [2]
    await bench.check_gap_free()


async def test_what_is_a_bug_stays_one(postgres_bench: Bench, admin: Any) -> None:
    await admin.execute(_REFUSE.format(state="22012"))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await postgres_bench.write({"a": "1"})


async def test_a_statement_that_the_operator_gives_less_time(postgres_bench: Bench, admin: Any) -> None:
    bench = postgres_bench
    await bench.write({"a": "1"})
    await set_for_all(bench, admin, "SET statement_timeout = '100ms'")
    async with admin.transaction():
        await admin.execute("LOCK TABLE outbox IN EXCLUSIVE MODE")
        with pytest.raises(UnavailableError, match="cancelled a statement that took too long: nothing was written"):
            await bench.write({"a": "2"})
    assert (await bench.write({"a": "3"})).versions == [2]
    await bench.check_gap_free()


@pytest.mark.parametrize(
    ("pragma", "sentence"),
    [("max_page_count = 1", "can't grow: the disk is full"), ("query_only = ON", "is read-only")],
)
async def test_a_file_that_takes_no_writes(sqlite_bench: Bench, pragma: str, sentence: str) -> None:
    """A full disk, and a file system that has become read-only."""
    bench = sqlite_bench
    await bench.write({"a": "1"})
    writer = await bench.repo._database.write(lambda connection: connection)
    writer.execute(f"PRAGMA {pragma}").fetchall()
    with pytest.raises(UnavailableError, match=sentence):
        await bench.write({f"r{number}": "x" * 10_000 for number in range(100)})
    if pragma.startswith("query_only"):
        with pytest.raises(UnavailableError, match=sentence):
            await bench.repo.check_writable()
    assert await bench.live() == {"a": "1"}
    for undo in ("query_only = OFF", "max_page_count = 1000000"):
        writer.execute(f"PRAGMA {undo}").fetchall()
    assert (await bench.write({"a": "2"})).versions == [2]
    await bench.check_gap_free()
