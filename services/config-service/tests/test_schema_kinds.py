"""Kinds and versions of schemas: what may follow what, and what this build does not know."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import grpc
import pytest
from ringcast_config_service import value_schemas
from ringcast_config_service.repository.schemas import KNOWN_FROM as FIRST_KNOWN_FROM
from ringcast_config_service.repository.schemas import NEWER_KNOWN_FROM, SchemaChange, Seen
from ringcast_testkit import attempt, until
from ringcast_wire import (
    InvalidInputError,
    SchemaCompatibility,
    SchemaKind,
    SchemaMode,
    UnavailableError,
)
from ringcast_wire.grpc import SCHEMA_COMPATIBILITIES, error_from_rpc, pb

Bench = Any  # of conftest.py
Running = Any

USABLE_FROM = "SELECT usable_from FROM schema_version"
A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}
B_OR_NOT = B | {"default": ""}


def record(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": fields})


async def test_a_kind_that_only_a_newer_build_knows_is_not_taken_for_another(any_bench: Bench) -> None:
    await any_bench.write({"a": "1"})
    heads = await any_bench.repo.reader.heads("s", "k")
    change = SchemaChange("k", SchemaKind.REGEX, "[0-9]", None, 0)
    await any_bench.repo.schemas.change("s", change, Seen(heads.history, heads.heads))
    await any_bench.execute("UPDATE value_schemas SET kind = 'newer'")
    with pytest.raises(UnavailableError, match="can't check values against a schema of the kind 'newer'"):
        await any_bench.write({"a": "2"})
    assert await any_bench.live() == {"a": "1"}


@pytest.mark.parametrize(
    ("kind", "definition", "compatibility", "known_from"),
    [
        (SchemaKind.JSON_SCHEMA, "{}", None, FIRST_KNOWN_FROM),
        (SchemaKind.JSON_SCHEMA, "{}", SchemaCompatibility.FULL, NEWER_KNOWN_FROM),
        (SchemaKind.AVRO, '"int"', None, NEWER_KNOWN_FROM),
    ],
)
async def test_a_build_that_would_not_hold_to_it_is_kept_away(
    sqlite_bench: Bench, kind: SchemaKind, definition: str, compatibility: SchemaCompatibility | None, known_from: int
) -> None:
    change = SchemaChange("k", kind, definition, None, 0, compatibility)
    await sqlite_bench.repo.schemas.change("s", change, Seen())
    assert await sqlite_bench.ask(USABLE_FROM) == [(known_from,)]


async def test_a_version_is_stored_only_as_what_it_was_compared_as(any_bench: Bench) -> None:
    schemas = any_bench.repo.schemas
    first = SchemaChange("k", SchemaKind.JSON_SCHEMA, "{}", None, 0, SchemaCompatibility.FULL)
    found = await schemas.change("s", first, Seen())
    assert (found.mode, found.compatibility) == (SchemaMode.ENFORCE, SchemaCompatibility.FULL)
    second = SchemaChange("k", SchemaKind.JSON_SCHEMA, '{"title": "x"}', None, 1)
    with pytest.raises(UnavailableError, match="changed too often while they were checked"):
        await schemas.change("s", second, Seen())
    found = await schemas.change("s", second._replace(compared=SchemaCompatibility.FULL), Seen())
    assert (found.version, found.compatibility) == (2, SchemaCompatibility.FULL)
    assert [each.compatibility for each in await schemas.versions("s", "k")] == [SchemaCompatibility.FULL, None]
    regex = SchemaChange("k", SchemaKind.REGEX, "x", None, 2, compared=SchemaCompatibility.FULL)
    with pytest.raises(InvalidInputError, match="compatibility full is not possible for s/k: regular expressions"):
        await schemas.change("s", regex, Seen())


async def registered(service: Running, store: str, definition: str, compatibility: Any = None, kind: Any = None) -> Any:
    """The version, or what it was refused with."""
    number = None if compatibility is None else SCHEMA_COMPATIBILITIES[compatibility]
    kind = kind or pb.SCHEMA_KIND_AVRO
    words = {"store": store, "key": "k", "definition": definition, "kind": kind, "compatibility": number}
    try:
        return (await service.stub.RegisterSchema(pb.RegisterSchemaRequest(**words))).version
    except grpc.aio.AioRpcError as error:
        return str(error_from_rpc(error))


@pytest.mark.parametrize(
    ("compatibility", "definition", "said"),
    [
        ("none", record(B), None),
        ("backward", record(A, B_OR_NOT), None),
        ("backward", record(A, B), "it can't read all values of version 1: at /fields/1: reader field missing default"),
        ("forward", record(A, B), None),
        ("forward", record(B), "version 1 can't read all of its values: at /fields/0: reader field missing default"),
        ("full", record(A, B_OR_NOT), None),
        ("full", record(A, B), "it can't read all values of version 1: at /fields/1"),
        ("full-transitive", record(B_OR_NOT), "version 1 can't read all of its values: at /fields/0"),
    ],
)
async def test_the_next_version_is_as_compatible_as_it_has_to_be(
    service: Running, store_name: str, compatibility: str, definition: str, said: str | None
) -> None:
    await service.create(store_name)
    assert await registered(service, store_name, record(A), SchemaCompatibility(compatibility)) == 1
    found = await registered(service, store_name, definition)
    if said is None:
        assert found == 2
    else:
        begin = f"definition can't be version 2 of the schema of {store_name}/k, which has the compatibility"
        assert found.startswith(f"{begin} {compatibility}: {said}")
        asked = pb.CheckSchemaRequest(store=store_name, key="k", kind=pb.SCHEMA_KIND_AVRO, definition=definition)
        assert (await service.stub.CheckSchema(asked)).incompatible == found


async def test_transitive_is_of_all_versions_and_the_others_of_the_newest(service: Running, store_name: str) -> None:
    await service.create(store_name)
    none, one, all_ = map(SchemaCompatibility, ("none", "backward", "backward-transitive"))
    for number, fields in enumerate([(A,), (A, B), (A, B_OR_NOT)], 1):
        assert await registered(service, store_name, record(*fields), none) == number
    last = record(A, B, {"name": "c", "type": "int", "default": 1})
    found = await registered(service, store_name, last, all_)
    assert "backward-transitive: it can't read all values of version 1: at /fields/1" in found
    assert await registered(service, store_name, last, one) == 4
    other = await registered(service, store_name, "{}", kind=pb.SCHEMA_KIND_JSON_SCHEMA)
    assert other.endswith("which has the compatibility backward: version 4 is of the kind avro")


async def test_versions_that_are_registered_at_once_are_compared_with_each_other(
    service: Running, store_name: str
) -> None:
    await service.create(store_name)
    await registered(service, store_name, record(A), SchemaCompatibility.BACKWARD)
    both = [
        record(A, {"name": "c", "type": kind, "default": default}) for kind, default in (("int", 1), ("string", ""))
    ]
    results = await asyncio.gather(*(registered(service, store_name, each) for each in both))
    (refused,) = [each for each in results if isinstance(each, str)]
    assert (2 in results, "it can't read all values of version 2: at /fields/1" in refused) == (True, True)


async def test_what_changes_nothing_is_refused(service: Running, store_name: str) -> None:
    await service.create(store_name)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.SetSchemaMode(pb.SetSchemaModeRequest(store=store_name, key="k"))
    assert str(error_from_rpc(caught.value)) == "one of mode and compatibility is needed"


@attempt(
    "an administrator of a store",
    "register schemas that take long to read and to compare",
    "others are served meanwhile",
)
@pytest.mark.parametrize("step", ["value_schema", "_break"])
async def test_others_are_served_while_schemas_are_read_and_compared(
    service: Running, store_name: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.create(store_name)
    await registered(service, store_name, record(A), SchemaCompatibility.BACKWARD)
    began, served, works = threading.Event(), threading.Event(), getattr(value_schemas, step)
    in_time: list[bool] = []

    def slow(*words: Any) -> Any:
        began.set()
        in_time.append(served.wait(10))
        return works(*words)

    monkeypatch.setattr(value_schemas, step, slow)
    registering = asyncio.create_task(registered(service, store_name, record(A, B_OR_NOT)))
    await until(began.is_set)
    await service.stub.ListSchemas(pb.ListSchemasRequest(store=store_name))
    served.set()
    assert await registering == 2
    assert in_time == [True]
