"""``ringcast release rollback``: back to a release over several that came after it, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ManagedProcess, until
from ringcast_wire import ConditionFailedError, InvalidInputError, ReleaseState

from tests.integration.cli_process import Cli, Servers

MANY: Final = 6_000
"""Rows of a release that takes several transactions."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def servers(database: Path) -> Iterator[Servers]:
    with Servers(database) as started:
        yield started


@pytest.fixture
async def client(servers: Servers) -> AsyncIterator[ConfigServiceClient]:
    async with ConfigServiceClient(servers.service.address) as made:
        yield made


def _release(cli: Cli, store: str, directory: Path, rows: dict[str, str], *words: object) -> None:
    """Stages what makes the key `list` equal to these rows, and publishes it."""
    file = directory / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"{row_id},{value}\n" for row_id, value in rows.items()))
    staged = cli.ok("release", "stage", store, "--key", f"list={file}", "--max-delete-share", 1, "--json")
    cli.ok("release", "publish", store, staged.document["release"]["number"], *words)


def _waits(cli: Cli, store: str, number: int) -> bool:
    return "waits for its gate" in cli.ok("release", "show", store, number).out


def _three(cli: Cli, store: str, directory: Path) -> None:
    """The releases 1 to 3, each of which adds, changes and deletes rows of the one before."""
    _release(cli, store, directory, {"a": "1", "b": "1", "c": "1"})
    _release(cli, store, directory, {"a": "2", "c": "1", "d": "2"})
    _release(cli, store, directory, {"b": "3", "c": "3", "d": "3"})


def test_everything_after_a_release_is_undone(cli: Cli, store: str, tmp_path: Path) -> None:
    _three(cli, store, tmp_path)
    planned = cli.ok("release", "rollback", store, "--to", 1, "--dry-run")
    assert planned.out == (
        "would undo release 3: published, 4 of 4 rows published\n"
        "would undo release 2: published, 3 of 3 rows published\n"
    )
    assert cli.rows(store) == {"b": "3", "c": "3", "d": "3"}, "nothing is undone"
    said = cli.ok("release", "rollback", store, "--to", 1, "--reason", "checkout is down")
    assert said.out == (
        f"release 3 of {store} is undone: 4 rows, 4 published, 4 undone\n"
        f"release 2 of {store} is undone: 3 rows, 3 published, 3 undone\n"
    )
    assert cli.rows(store) == {"a": "1", "b": "1", "c": "1"}
    entries = cli.ok("audit", "list", store, "--json").documents
    undone = [entry for entry in entries if entry["action"] == "UndoRelease"]
    assert {entry["reason"] for entry in undone} == {"rollback to release 1: checkout is down"}
    assert len(undone) == 2
    again = cli.ok("release", "rollback", store, "--to", 1)
    assert again.out == f"nothing of {store} is published after release 1\n"
    document = cli.ok("release", "rollback", store, "--to", 0, "--json").document
    assert [(each["number"], each["state"]) for each in document["releases"]] == [(1, "undone")]
    assert cli.rows(store) == {}
    assert cli.refused("release", "rollback", store, "--to", 1) == (
        f"release 1 of store '{store}' is undone: go back to one that is published"
    )
    assert cli.refused("release", "rollback", store, "--to", 9) == f"store '{store}' has no release 9"


def test_rows_that_others_have_written_since_stay_and_are_reported(cli: Cli, store: str, tmp_path: Path) -> None:
    _three(cli, store, tmp_path)
    cli.ok("put", store, "list", "c", "by hand")
    said = cli("release", "rollback", store, "--to", 1)
    assert said.code == 1
    assert said.err == (
        "ringcast: 1 rows of release 3 were written by another client, and stay as they are: "
        f"`ringcast release diff {store} 3 --conflicts` names them\n"
    )
    assert cli.rows(store) == {"a": "1", "b": "1", "c": "by hand"}
    assert "list/c" in cli.ok("release", "diff", store, 3, "--conflicts").out


def test_a_release_in_waves_that_is_stopped_or_paused_is_undone_too(cli: Cli, store: str, tmp_path: Path) -> None:
    _release(cli, store, tmp_path, {f"row{number}": "1" for number in range(40)})
    before = cli.rows(store)
    for number, end in ((2, "stop"), (3, "pause")):
        file = tmp_path / "rows.csv"
        file.write_text("row_id,value\n" + "".join(f"row{each},{number}\n" for each in range(40)))
        cli.ok("release", "stage", store, "--key", f"list={file}")
        publishing = cli.start("release", "publish", store, number, "--waves", "20,100", "--patience", 3_600)
        try:
            publishing.wait_until(partial(_waits, cli, store, number))
            cli.ok("release", end, store, number)
        finally:
            publishing.kill()
    planned = cli.ok("release", "rollback", store, "--to", 1, "--dry-run").out.splitlines()
    assert planned[0].startswith("would undo release 3: paused, wave 1 of 2 (20 %), ")
    assert planned[1].startswith("would undo release 2: stopped in wave 1 of 2 (20 %), ")
    cli.ok("release", "rollback", store, "--to", 1)
    assert cli.rows(store) == before


async def test_nothing_is_undone_if_one_of_them_can_not_be(
    client: ConfigServiceClient, cli: Cli, store: str, tmp_path: Path, database: Path
) -> None:
    await asyncio.to_thread(_three, cli, store, tmp_path)
    with closing(sqlite3.connect(database / "ringcast.db", timeout=30)) as db, db:
        db.execute("UPDATE releases SET kept = false WHERE store = ? AND number = 2", (store,))
    for call in (client.rollback_plan, client.rollback_releases):
        with pytest.raises(ConditionFailedError) as refused:
            await call(store, 1)
        assert str(refused.value) == (
            f"store '{store}' can't go back to release 1: release 2 was published so long ago that what it replaced is "
            "not kept, nothing is undone"
        )
    assert (await client.release(store, 3)).state is ReleaseState.PUBLISHED
    with closing(sqlite3.connect(database / "ringcast.db", timeout=30)) as db, db:
        db.execute("UPDATE releases SET kept = true WHERE store = ? AND number = 2", (store,))
        db.execute("UPDATE releases SET number = number + 1000 WHERE store = ? AND number = 3", (store,))
        db.execute("DELETE FROM releases WHERE store = ? AND number = 2", (store,))
    with pytest.raises(ConditionFailedError, match="release 2 is forgotten, nothing is undone"):
        await client.rollback_plan(store, 1)
    with pytest.raises(InvalidInputError, match="to -1 is out of range"):
        await client.rollback_plan(store, -1)


async def test_a_rollback_that_is_killed_goes_on_with_the_next_one(
    client: ConfigServiceClient, servers: Servers, cli: Cli, store: str, tmp_path: Path
) -> None:
    """The command and the service are killed between and within the undos."""
    for number in range(1, 5):
        rows = {f"row{each}": str(number) for each in range(number, MANY + number)}
        await asyncio.to_thread(_release, cli, store, tmp_path, rows)
    before = {f"row{each}": "1" for each in range(1, MANY + 1)}

    async def undoing(command: ManagedProcess, number: int) -> bool:
        assert command.returncode is None, command.describe("has ended")
        release = await client.release(store, number)
        return release.state is ReleaseState.UNDONE or (release.state is ReleaseState.UNDOING and release.undone > 0)

    for number, killed in ((4, "command"), (3, "service"), (2, "both")):
        command = cli.start("release", "rollback", store, "--to", 1)
        try:
            await until(partial(undoing, command, number))
            if killed != "service":
                command.kill()
            if killed != "command":
                servers.service.kill()
        finally:
            command.kill()
            if servers.service.process.returncode is not None:
                await asyncio.to_thread(servers.service.restart)
    await asyncio.to_thread(cli.ok, "release", "rollback", store, "--to", 1)
    assert await asyncio.to_thread(cli.rows, store) == before
    releases = {release.number: release async for release in client.releases(store)}
    assert [releases[number].state for number in (2, 3, 4)] == [ReleaseState.UNDONE] * 3
    assert [releases[number].skipped for number in (2, 3, 4)] == [0] * 3
    assert releases[1].state is ReleaseState.PUBLISHED
