"""Kinds of schemas: one that this build does not know."""

from __future__ import annotations

from typing import Any

import pytest
from ringcast_config_service.repository.schemas import SchemaChange, Seen
from ringcast_wire import SchemaKind, UnavailableError

Bench = Any  # of conftest.py


async def test_a_kind_that_only_a_newer_build_knows_is_not_taken_for_another(any_bench: Bench) -> None:
    await any_bench.write({"a": "1"})
    heads = await any_bench.repo.reader.heads("s", "k")
    change = SchemaChange("k", SchemaKind.REGEX, "[0-9]", None, 0)
    await any_bench.repo.schemas.change("s", change, Seen(heads.history, heads.heads))
    await any_bench.execute("UPDATE value_schemas SET kind = 'newer'")
    with pytest.raises(UnavailableError, match="can't check values against a schema of the kind 'newer'"):
        await any_bench.write({"a": "2"})
    assert await any_bench.live() == {"a": "1"}
