"""The statements in ``queries.sql``: each is used and each use exists, in both databases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from ringcast_config_service.repository import connect
from ringcast_config_service.repository.postgres import repository as postgres
from ringcast_config_service.repository.sql import loader
from ringcast_config_service.repository.sql.statements import (
    AT_ONCE,
    PATHS,
    SCHEMA_VERSION,
    Postgres,
    Sqlite,
    Statements,
)
from ringcast_config_service.repository.sqlite import repository as sqlite

REPOSITORIES = (postgres.PostgresRepository, sqlite.SqliteRepository)
"""What uses the statements: under Pants a test sees the modules that it depends on."""
STATEMENTS = "ringcast_config_service.repository.sql.statements"
DATABASES = {
    "Postgres": (Postgres, PATHS["postgres"]),
    "Sqlite": (Sqlite, PATHS["sqlite"]),
}
LEAST = 60
"""Statements of a database; fewer means that they have moved, and nothing would be compared."""
KEYWORDS = r"\s*(SELECT|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE (TABLE|INDEX)|ALTER TABLE|SHOW|WITH \w+ AS)\b"


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """The modules of the repository."""
    for path in sorted(Path(connect.__file__).parent.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def uses(database: str) -> set[str]:
    """The statements of a database that the modules name, under whichever name they import it."""
    found = set()
    for _, module in modules():
        nodes = list(ast.walk(module))
        imported = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module == STATEMENTS
            for alias in node.names
            if alias.name == database
        }
        found |= {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
        }
    return found


@pytest.mark.parametrize("database", DATABASES)
def test_every_statement_is_used_and_every_use_exists(database: str) -> None:
    statements, _ = DATABASES[database]
    parts = {part for name in AT_ONCE.keys() & vars(statements).keys() for part in AT_ONCE[name]}
    kinds = ("", "COCKROACH_") if statements is Postgres else ("",)
    # Statements.upgrade uses them.
    upgrades = {f"{kind}UPGRADE_{number}" for kind in kinds for number in range(2, SCHEMA_VERSION + 1)}
    assert (uses(database) - {"upgrade"}) | parts | upgrades == set(vars(statements))
    assert len(vars(statements)) >= LEAST


@pytest.mark.parametrize("database", DATABASES)
def test_every_fragment_is_inserted(database: str) -> None:
    _, paths = DATABASES[database]
    blocks = loader.read_blocks(*paths)
    fragments = {name for name, block in blocks.items() if not block.is_statement}
    inserted = {name for block in blocks.values() for name in loader.INSERTED.findall(block.text)}
    assert fragments
    assert fragments <= inserted <= set(blocks)


@pytest.mark.parametrize("statements", [Postgres, Sqlite])
def test_nothing_is_left_to_insert(statements: Statements) -> None:
    texts = [text for value in vars(statements).values() for text in ([value] if isinstance(value, str) else value)]
    assert not [text for text in texts if "{" in text or "--" in text or ";" in text]


def test_sqlite_has_no_parameters_or_casts_of_postgresql() -> None:
    assert not [name for name, text in vars(Sqlite).items() if "$" in text or "::" in text]


def test_no_statement_stands_in_python() -> None:
    found = list(modules())
    assert len(found) >= 20
    assert not [
        f"{path.name}:{node.lineno}: {node.value[:40]}"
        for path, module in found
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(KEYWORDS, node.value)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "-- GET_STORE --\nSELECT 1\n",
        "-- GET_STORE --\n-- A store.\n",
        "-- GET_STORE --\n-- A store.\nSELECT 1\n-- GET_STORE --\n-- A store.\nSELECT 2\n",
    ],
    ids=["no description", "no text", "twice"],
)
def test_a_block_that_is_not_whole_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queries.sql").write_text(text)
    monkeypatch.setattr(loader, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match="GET_STORE"):
        loader.read_blocks("queries.sql")


def test_a_block_has_a_name_a_description_and_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queries.sql").write_text(
        "-- Of the file.\n\n---- Clocks ----\n\n-- now --\n-- The time.\n-- In ms.\nclock()\n\n"
        "-- NOW --\n-- Alone.\n\nSELECT {now},\n    {now}\n"
    )
    monkeypatch.setattr(loader, "_FOLDER", tmp_path)
    blocks = loader.read_blocks("queries.sql")
    assert blocks == {
        "now": loader.Block("now", "The time.\nIn ms.", "clock()"),
        "NOW": loader.Block("NOW", "Alone.", "SELECT {now},\n    {now}"),
    }
    texts = {name: block.text for name, block in blocks.items()}
    assert loader.insert(texts["NOW"], texts) == "SELECT clock(),\n    clock()"
    with pytest.raises(KeyError, match="later"):
        loader.insert("{later}", texts)


async def test_cockroachdb_gets_no_order_of_text_that_it_does_not_know(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty database: its tables, and the upgrades before the version is written."""
    done: list[str] = []
    execute = asyncpg.Connection.execute

    async def noted(self: asyncpg.Connection, query: str, *args: Any, **words: Any) -> Any:
        done.append(query)
        return await execute(self, query, *args, **words)

    monkeypatch.setattr(asyncpg.Connection, "execute", noted)
    monkeypatch.setattr(Postgres, "SERVER", "SELECT 'CockroachDB CCL v25.2.1'")
    monkeypatch.setattr(Postgres, "CLUSTER_IDENTITY", Postgres.SERVER_IDENTITY)
    repo = postgres.PostgresRepository(postgres_url)
    await repo.open()
    await repo.close()
    assert any("role_grants" in statement for statement in done)
    assert not [statement for statement in done if "COLLATE" in statement]
