"""A release whose keys have many schemas."""

from __future__ import annotations

import json
import weakref
from typing import Any

import pytest
from ringcast_config_service.repository import Authorship, RowWrite, StageBatch, StagedRow, release_checks
from ringcast_config_service.repository.schemas import SchemaChange, Seen
from ringcast_config_service.repository.value_checks import to_value_schema
from ringcast_core import row_partition
from ringcast_wire import ReleaseState, SchemaKind, check_row, schemas

Bench = Any  # of conftest.py
BY = Authorship("alice")


async def test_not_all_schemas_of_a_release_are_in_memory(any_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read before it is published, since all are newer: a thousand may take gigabytes."""
    keys = [f"k{number:02}" for number in range(30)]
    row = RowWrite(row_partition("a", 8), "a", "1", None, check_row("a", "1", None), 0)
    staged = [StagedRow(key, row) for key in keys]
    repo = any_bench.repo
    await repo.releases.stage(any_bench.store, StageBatch("stage", 0, staged, True), BY)
    for number, key in enumerate(keys):
        definition = json.dumps({"type": "integer", "maximum": 100 + number})
        await repo.schemas.change("s", SchemaChange(key, SchemaKind.JSON_SCHEMA, definition, None, 0), Seen())
    read: list[weakref.ref[Any]] = []
    most = 0

    def noted(kind: str, definition: str) -> Any:
        nonlocal most
        found = to_value_schema(kind, definition)
        read.append(weakref.ref(found))
        most = max(most, sum(each() is not None for each in read))
        return found

    monkeypatch.setattr(schemas, "_kept", schemas.KeptSchemas(4 * 1_100))
    monkeypatch.setattr(release_checks, "to_value_schema", noted)
    begun = await repo.releases.publish("s", 1, 86_400_000, BY)
    assert begun.state is ReleaseState.PUBLISHING
    assert len(read) == 30
    assert most <= 5
