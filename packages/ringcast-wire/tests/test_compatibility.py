"""Which versions of a schema go with which: nothing is called compatible that is not."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ringcast_testkit import attempt
from ringcast_wire import SchemaKind
from ringcast_wire._schemas.compatibility import Budget, IncompatibleError, compare_json
from ringcast_wire.schemas import ValueSchema, incompatibility

JSON, AVRO = SchemaKind.JSON_SCHEMA, SchemaKind.AVRO
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


def problem(narrow: Any, wide: Any) -> str | None:
    """Why the wide schema does not accept all that the narrow one accepts."""
    try:
        compare_json(narrow, wide, Budget())
    except IncompatibleError as error:
        return str(error)
    return None


NAMES = st.sampled_from(["a", "b"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 4) | st.sampled_from(["", "x", "xyz", 1.0, 2.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=6,
)
TYPES = st.sampled_from(["null", "boolean", "object", "array", "string", "number", "integer"])


def schemas(inner: Any) -> Any:
    parts = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=json.dumps),
        "properties": st.dictionaries(NAMES, inner, max_size=2),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "contains": inner,
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "not": inner,
        "if": inner,
        "then": inner,
        "$defs": st.fixed_dictionaries({"d": inner}),
    }
    numbers = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
    sizes = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "minContains", "maxContains"]
    parts |= dict.fromkeys(numbers, st.integers(-2, 4)) | dict.fromkeys(sizes, st.integers(0, 3))
    parts |= {"unevaluatedProperties": st.booleans(), "multipleOf": st.integers(1, 2), "pattern": st.just("^x")}
    return st.fixed_dictionaries({}, optional=parts)


SCHEMAS = st.recursive(st.booleans() | schemas(st.booleans()), schemas, max_leaves=3)


@st.composite
def pairs(draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two schemas that are similar: those drawn at random are hardly ever compatible."""
    one, changed = draw(schemas(SCHEMAS)), draw(schemas(st.booleans()))
    dropped = draw(st.lists(st.sampled_from(sorted({**one, "type": 0})), max_size=2))
    other = {name: each for name, each in one.items() if name not in dropped} | changed
    return (one, other) if draw(st.booleans()) else (other, one)


@settings(max_examples=100)
@given(pairs(), st.lists(VALUES, min_size=1, max_size=10))
def test_what_is_called_compatible_accepts_all_that_the_other_accepts(
    schemas: tuple[dict[str, Any], dict[str, Any]], values: list[Any]
) -> None:
    narrow, wide = schemas
    if problem(narrow, wide) is None:
        for value in values:
            assert jsonschema_rs.is_valid(wide, value) or not jsonschema_rs.is_valid(narrow, value), value


@settings(max_examples=30)
@given(schemas(SCHEMAS))
def test_a_schema_is_compatible_with_itself(schema: dict[str, Any]) -> None:
    assert problem(schema, json.loads(json.dumps(schema))) is None


def with_property(schema: dict[str, Any], name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return schema | {"properties": schema["properties"] | {name: kind}} | more


@pytest.mark.parametrize(
    ("narrow", "wide", "said"),
    [
        ({"title": "a"}, {"title": "b", "description": "c"}, None),
        (CLOSED, with_property(CLOSED, "b", {"type": "string"}), None),
        (with_property(CLOSED, "b", {"type": "string"}), CLOSED, "at /properties/b: it is not accepted"),
        (CLOSED, CLOSED | {"additionalProperties": True}, None),
        (CLOSED | {"additionalProperties": True}, CLOSED, "at /additionalProperties: it is not accepted"),
        ({}, {"properties": {"b": {"type": "null"}}}, "at /properties/b/type: array is not accepted"),
        (CLOSED, CLOSED | {"required": ["a"]}, 'at /required: "a" is not optional any more'),
        (CLOSED | {"required": ["a"]}, CLOSED, None),
        ({"type": "integer"}, {"type": "number"}, None),
        ({"type": "number"}, {"type": ["integer", "null"]}, "at /type: number is not accepted"),
        ({"enum": ["a"]}, {"enum": ["a", "b"], "type": "string"}, None),
        ({"enum": ["a", "b"]}, {"enum": ["b"]}, 'at /enum: "a" is not accepted'),
        ({"type": "string"}, {"enum": ["b"]}, "at /enum: values that it does not have are not accepted"),
        ({"enum": [True]}, {"enum": [1]}, "at /enum: true is not accepted"),
        ({"minimum": 3}, {"minimum": 2}, None),
        ({"minimum": 2}, {"minimum": 3}, "at /minimum: 3 is stricter"),
        ({"maxLength": 2}, {"maxLength": 1}, "at /maxLength: 1 is stricter"),
        ({}, {"maxItems": 1}, "at /maxItems: 1 is stricter"),
        ({"type": "null"}, {"maxItems": 1, "pattern": "x", "required": ["a"]}, None),
        ({"items": {"type": "integer"}}, {"items": {"type": "string"}}, "at /items/type: integer is not accepted"),
        ({"pattern": "a"}, {"pattern": "a"}, None),
        ({"pattern": "a"}, {}, None),
        ({}, {"pattern": "a"}, "at /pattern: it differs, and how is not compared"),
        ({"oneOf": [{}]}, {"oneOf": [{"type": "null"}]}, "at /oneOf: it differs, and how is not compared"),
        ({"contains": {}, "minContains": 0}, {"contains": {}}, "at /contains: it differs, and how is not compared"),
        ({"items": True, "prefixItems": [{}]}, {"items": {}}, "at /items: it differs, and how is not compared"),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, {"unevaluatedProperties": False}, "how is not"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, {}, "$schema is another one"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, {"type": ["null", "string"]}, None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"type": "null"}, "at /type: array is not accepted"),
        ({"$ref": "#/$defs/a", "minimum": 1, "$defs": {"a": {}}}, {}, "minimum beside a $ref is not compared"),
        (
            {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}},
            {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "null"}}},
            "at /allOf: it differs, and how is not compared",
        ),
    ],
)
def test_what_keeps_json_schemas_from_being_compatible(narrow: Any, wide: Any, said: str | None) -> None:
    found = problem(narrow, wide)
    assert found == said or (said is not None and found is not None and found.endswith(f"{said} compared"))


def record(*fields: Any, name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields})


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": symbols, **more}


A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}


@pytest.mark.parametrize(
    ("reader", "writer", "said"),
    [
        (record(A), record(A, B), None),
        (record(A, B | {"default": ""}), record(A), None),
        (record(A, B), record(A), "at /fields/1: reader field missing default value (b)"),
        (record(A | {"type": "long"}), record(A), None),
        (record(A), record(A | {"type": "long"}), "reader type: int not compatible with writer type: long"),
        (record({"name": "n", "aliases": ["a"], "type": "int"}), record(A), None),
        (record(A, name="S"), record(A), "at /name: name mismatch (expected: R)"),
        ('["null", "int"]', '"int"', None),
        ('"int"', '["null", "int"]', "reader type: int not compatible with writer type: null"),
        (json.dumps(enum("A", "B")), json.dumps(enum("A")), None),
        (json.dumps(enum("A")), json.dumps(enum("A", "B")), "at /symbols: missing enum symbols ({'B'})"),
        (json.dumps(enum("A", default="A")), json.dumps(enum("A", "B")), None),
    ],
)
def test_what_keeps_avro_schemas_from_being_compatible(reader: str, writer: str, said: str | None) -> None:
    found = incompatibility(AVRO, reader, writer, Budget())
    assert found == said or (said is not None and found is not None and said in found)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (
            {"properties": {f"p{number}": {"enum": [1]} for number in range(2_000)}, "additionalProperties": False},
            {"additionalProperties": {"enum": [*range(5_000)]}},
        ),
        (
            {"additionalProperties": {"enum": [*range(5_000)]}},
            {"properties": {f"p{number}": {"type": "integer"} for number in range(2_000)}},
        ),
    ],
    ids=["enum", "types of an enum"],
)
def test_a_long_list_is_read_once_however_many_parts_are_compared_with_it(narrow: Any, wide: Any) -> None:
    steps = 0

    def count(_frame: Any, event: str, function: Any) -> None:
        nonlocal steps
        steps += event == "call" or (event == "c_call" and function.__name__ == "encode")

    sys.setprofile(count)
    try:
        assert problem(narrow, wide) is None
    finally:
        sys.setprofile(None)
    assert steps < 150_000


@attempt(
    "an administrator of a store",
    "register versions of a schema that take long to compare",
    "refused: they have too many parts; a comparison ends within about a second",
)
def test_schemas_that_were_made_to_take_long_are_not_compared() -> None:
    records = [json.loads(record(A, name=f"R{number}")) for number in range(300)]
    many = json.dumps(records)
    other = many.replace('"R', '"S')
    for definition in (many, other):
        ValueSchema(AVRO, definition)
    began_s = time.process_time()
    assert incompatibility(AVRO, many, other, Budget()) == "they have too many parts to be compared"
    values = {f"p{number}": {"enum": [*range(100)]} for number in range(50)}
    fewer = {name: {"enum": [*range(99)]} for name in values}
    assert problem({"properties": fewer}, {"properties": values}) is None
    with pytest.raises(IncompatibleError, match="too many parts"):
        compare_json({"properties": fewer}, {"properties": values}, Budget(1_000))
    assert time.process_time() - began_s < 5
