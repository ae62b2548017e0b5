"""Protobuf schemas in the service: on the ways in, as versions, and what old builds make of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import grpc
import pytest
from ringcast_config_service.repository import KeySchema
from ringcast_config_service.repository.schemas import PROTOBUF_KNOWN_FROM, SchemaChange, Seen
from ringcast_config_service.value_schemas import _break
from ringcast_testkit.protoc import descriptor_set
from ringcast_wire import SchemaCompatibility, SchemaKind
from ringcast_wire.grpc import SCHEMA_COMPATIBILITIES, error_from_rpc, pb
from ringcast_wire.schemas import Budget, protobuf_definition

Bench = Any  # of conftest.py
Running = Any


def made(body: str) -> str:
    text = f'syntax = "proto3"; package acme; message Rule {{ {body} }} enum State {{ UNKNOWN = 0; ON = 1; }}'
    return protobuf_definition(descriptor_set(text), "acme.Rule")


LIMIT = made("int32 limit = 1; State state = 2;")


async def registered(service: Running, store: str, definition: str, compatibility: Any = None) -> Any:
    """The version, or what it was refused with."""
    number = None if compatibility is None else SCHEMA_COMPATIBILITIES[compatibility]
    words: Any = {"definition": definition, "kind": pb.SCHEMA_KIND_PROTOBUF, "compatibility": number}
    try:
        return (await service.stub.RegisterSchema(pb.RegisterSchemaRequest(store=store, key="k", **words))).version
    except grpc.aio.AioRpcError as error:
        return str(error_from_rpc(error))


async def refusal(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return str(error_from_rpc(caught.value))


async def test_values_are_held_to_the_message(service: Running, store_name: str) -> None:
    await service.create(store_name)
    assert await registered(service, store_name, LIMIT) == 1
    await service.put(store_name, "a", '{"limit": 5, "state": "ON"}')
    said = f"row 'a' of {store_name}/k breaks version 1 of its schema"
    assert await refusal(service.put(store_name, "a", '{"limit": "x"}')) == (
        f"{said} at /limit (rule acme.Rule.limit): the value is no int32: 'x'"
    )
    assert await refusal(service.put(store_name, "a", '{"cap": 5}')) == (
        f"{said} at /cap (rule acme.Rule): there is no such field: 5"
    )
    rows = [pb.RowWrite(row_id=row_id, value=value) for row_id, value in (("b", '{"state": 3}'), ("c", "no"))]
    (result,) = await service.write(store_name, rows, on_invalid=pb.ON_INVALID_SKIP_ROW)
    assert (result.written, [(each.row_id, each.code) for each in result.rejected]) == (1, [("c", "SCHEMA")])
    found = await service.stub.GetSchema(pb.GetSchemaRequest(store=store_name, key="k"))
    assert (found.kind, found.definition) == (pb.SCHEMA_KIND_PROTOBUF, LIMIT)
    assert await registered(service, store_name, LIMIT) == 1


async def test_rows_that_are_there_are_looked_at(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "a", '{"limit": 5}')
    await service.put(store_name, "b", '{"limit": 5, "note": ""}')
    asked = pb.CheckSchemaRequest(store=store_name, key="k", kind=pb.SCHEMA_KIND_PROTOBUF, definition=LIMIT)
    report = await service.stub.CheckSchema(asked)
    (row,) = report.first
    assert (report.rows, report.broken, row.row_id, row.where, row.rule) == (2, 1, "b", "/note", "acme.Rule")
    assert "1 row breaks the schema" in await registered(service, store_name, LIMIT)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("{}", 'it is {"message": …, "descriptors": …}'),
        (
            json.dumps({"message": "acme.No", "descriptors": json.loads(LIMIT)["descriptors"]}),
            "it has no message 'acme.No'",
        ),
        (json.dumps({"message": "M", "descriptors": base64.b64encode(b"\xff" * 99).decode()}), "are no descriptor set"),
    ],
)
async def test_what_is_no_schema_is_refused(service: Running, store_name: str, definition: str, said: str) -> None:
    await service.create(store_name)
    found = await registered(service, store_name, definition)
    assert found.startswith("definition is no schema that can be used: ")
    assert said in found
    assert not (await service.stub.ListSchemas(pb.ListSchemasRequest(store=store_name))).schemas


BACKWARD, FORWARD, BOTH, NEITHER = (True, False), (False, True), (True, True), (False, False)
A = "int32 a = 1;"
RULES = [
    ("a new field", A, A + "int32 b = 2;", BACKWARD),
    ("a field that is gone", A + "int32 b = 2;", A + 'reserved 2; reserved "b";', FORWARD),
    ("gone, its number not reserved", A + "int32 b = 2;", A + 'reserved "b";', NEITHER),
    ("gone, its name not reserved", A + "int32 b = 2;", A + "reserved 2;", NEITHER),
    ("no longer reserved", "reserved 2;", "", NEITHER),
    ("used again", "reserved 2;", "int32 b = 2;", NEITHER),
    ("another number", A, "int32 a = 2;", NEITHER),
    ("another name", A, "int32 b = 1;", NEITHER),
    ("another name in JSON", A, 'int32 a = 1 [json_name = "b"];', NEITHER),
    ("a wider type", A, "int64 a = 1;", BACKWARD),
    ("a type that only the wire takes for the same", A, "bool a = 1;", NEITHER),
    ("a text for bytes", "string a = 1;", "bytes a = 1;", NEITHER),
    ("a list for one value", A, "repeated int32 a = 1;", NEITHER),
    ("optional", A, "optional int32 a = 1;", BOTH),
    ("into a oneof alone", A, "oneof x { int32 a = 1; }", BOTH),
    ("into one oneof", A + "int32 b = 2;", "oneof x { int32 a = 1; int32 b = 2; }", FORWARD),
    ("out of one oneof", "oneof x { int32 a = 1; int32 b = 2; }", A + "int32 b = 2;", BACKWARD),
    ("a new value of an enum", "enum E { Z = 0; } E e = 1;", "enum E { Z = 0; Y = 1; } E e = 1;", BACKWARD),
    (
        "a value of an enum that is gone",
        "enum E { Z = 0; Y = 1; } E e = 1;",
        'enum E { Z = 0; reserved 1; reserved "Y"; } E e = 1;',
        FORWARD,
    ),
    ("gone, not reserved", "enum E { Z = 0; Y = 1; } E e = 1;", "enum E { Z = 0; } E e = 1;", NEITHER),
    ("another number in an enum", "enum E { Z = 0; Y = 1; } E e = 1;", "enum E { Z = 0; Y = 2; } E e = 1;", NEITHER),
    ("another name in an enum", "enum E { Z = 0; Y = 1; } E e = 1;", "enum E { Z = 0; X = 1; } E e = 1;", NEITHER),
    ("another name of a message", "message P {} P p = 1;", "message Q {} Q p = 1;", BOTH),
]


@pytest.mark.parametrize("wanted", SchemaCompatibility)
@pytest.mark.parametrize(("what", "old", "new", "good"), RULES, ids=[each[0] for each in RULES])
def test_each_rule_in_each_mode(
    what: str, old: str, new: str, good: tuple[bool, bool], wanted: SchemaCompatibility
) -> None:
    before = KeySchema("k", 4, "protobuf", "", "", 0, None, None, None, made(old))
    said = _break(wanted, SchemaKind.PROTOBUF, made(new), before, Budget())
    backward, forward = good
    assert (said is None) is ((backward or not wanted.is_backward) and (forward or not wanted.is_forward)), what
    if said is not None:
        begins = "it can't read all values of version 4: at ", "version 4 can't read all of its values: at "
        assert said.startswith(begins)


async def test_versions_are_held_to_a_compatibility(service: Running, store_name: str) -> None:
    await service.create(store_name)
    assert await registered(service, store_name, made(A), SchemaCompatibility.BACKWARD_TRANSITIVE) == 1
    assert await registered(service, store_name, made("int64 a = 1;")) == 2
    found = await registered(service, store_name, made("sint64 a = 1;"))
    assert found == (
        f"definition can't be version 3 of the schema of {store_name}/k, which has the compatibility "
        "backward-transitive: it can't read all values of version 2: at acme.Rule.a: int64 can't be read as sint64"
    )
    asked = pb.CheckSchemaRequest(
        store=store_name, key="k", kind=pb.SCHEMA_KIND_PROTOBUF, definition=made("sint64 a = 1;")
    )
    assert (await service.stub.CheckSchema(asked)).incompatible == found
    json_schema = pb.RegisterSchemaRequest(store=store_name, key="k", definition="{}")
    assert "version 2 is of the kind protobuf" in await refusal(service.stub.RegisterSchema(json_schema))


@pytest.mark.parametrize("compatibility", [None, SchemaCompatibility.FULL])
async def test_a_build_that_does_not_know_the_kind_is_kept_away(any_bench: Bench, compatibility: Any) -> None:
    change = SchemaChange("k", SchemaKind.PROTOBUF, LIMIT, None, 0, compatibility)
    await any_bench.repo.schemas.change("s", change, Seen())
    assert await any_bench.ask("SELECT usable_from FROM schema_version") == [(PROTOBUF_KNOWN_FROM,)]
    assert (await any_bench.repo.schemas.newest("s", "k"))[0].definition == LIMIT
