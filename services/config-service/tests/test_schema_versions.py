"""Databases of other versions of the schema: older ones are raised, newer ones are used where they allow it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from ringcast_config_service.repository import PolicyChange, make_repository
from ringcast_config_service.repository.sql.statements import SCHEMA_VERSION, USABLE_FROM
from ringcast_service import ConfigError
from ringcast_wire import StorePolicy

Bench = Any  # of conftest.py

VERSIONS = "SELECT version, usable_from FROM schema_version"


async def columns(bench: Bench) -> set[tuple[Any, ...]]:
    """Table, name and type of every column."""
    if bench.address.startswith("sqlite:"):
        query = "SELECT t.name, c.name, c.type FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    else:
        query = (
            "SELECT table_name, column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = current_schema()"
        )
    return set(await bench.ask(query))


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
async def test_a_database_that_was_raised_is_like_a_new_one(bench: Bench, version: int) -> None:
    fresh = await columns(bench)
    assert ("schema_version", "usable_from") in {(table, name) for table, name, _ in fresh}
    await bench.repo.close()
    await bench.make_older(version)
    older = await columns(bench)
    assert older < fresh if max(bench.STEPS_BACK) > version else older == fresh
    bench.repo = make_repository(bench.address)
    await bench.repo.open()
    assert await columns(bench) == fresh
    assert await bench.ask(VERSIONS) == [(SCHEMA_VERSION, USABLE_FROM)]


async def test_a_newer_database_that_allows_it_is_used(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.write({"a": "1"})
    await bench.execute(f"UPDATE schema_version SET version = {SCHEMA_VERSION + 2}, usable_from = {SCHEMA_VERSION}")
    older = make_repository(bench.address)
    with caplog.at_level(logging.WARNING):
        await older.open()
    assert f"event=database.newer version={SCHEMA_VERSION + 2} known={SCHEMA_VERSION}" in caplog.text
    first, bench.repo = bench.repo, older
    await bench.write({"b": "1"})
    assert await bench.live() == {"a": "1", "b": "1"}
    assert await bench.ask(VERSIONS) == [(SCHEMA_VERSION + 2, SCHEMA_VERSION)]
    await first.close()


@pytest.mark.parametrize("usable_from", ["NULL", str(SCHEMA_VERSION + 1)])
async def test_a_newer_database_that_newer_builds_alone_may_use_is_left_alone(bench: Bench, usable_from: str) -> None:
    await bench.execute(f"UPDATE schema_version SET version = {SCHEMA_VERSION + 2}, usable_from = {usable_from}")
    refused = make_repository(bench.address)
    least = "" if usable_from == "NULL" else f", which a build must know from version {usable_from} on"
    sentence = f"has schema version {SCHEMA_VERSION + 2}{least}: this build knows {SCHEMA_VERSION}$"
    with pytest.raises(ConfigError, match=sentence):
        await refused.open()
    await refused.close()
    assert (await bench.ask(VERSIONS))[0][0] == SCHEMA_VERSION + 2


async def test_a_policy_that_older_builds_would_leave_out_keeps_them_away(bench: Bench) -> None:
    async def set_policy(lift: frozenset[str] = frozenset(), **policies: Any) -> None:
        change = PolicyChange(StorePolicy(**policies), lift)
        await bench.repo.policies.set_policy(bench.store.name, change)

    await set_policy(max_keys=7)
    assert await bench.ask(VERSIONS) == [(SCHEMA_VERSION, USABLE_FROM)]
    await set_policy(approvals=0, releases_only=False)
    assert await bench.ask(VERSIONS) == [(SCHEMA_VERSION, USABLE_FROM)], "nothing is asked for"
    await set_policy(approvals=1)
    assert await bench.ask(VERSIONS) == [(SCHEMA_VERSION, 12)]
    await set_policy(frozenset({"approvals"}))
    assert await bench.ask(VERSIONS) == [(SCHEMA_VERSION, 12)], "what was set once stays"
    await bench.execute(f"UPDATE schema_version SET usable_from = {SCHEMA_VERSION + 1}")
    await set_policy(releases_only=True)
    assert await bench.ask(VERSIONS) == [(SCHEMA_VERSION, SCHEMA_VERSION + 1)], "never lower"
