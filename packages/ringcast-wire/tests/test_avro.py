"""Avro schemas: values in their JSON encoding, and what is no schema or could take long."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_testkit import attempt
from ringcast_wire import InvalidInputError, SchemaKind
from ringcast_wire.schemas import MAX_DEPTH, MAX_PARTS, ValueSchema


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields], **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def made(schema: Any) -> ValueSchema:
    return ValueSchema(SchemaKind.AVRO, schema if isinstance(schema, str) else json.dumps(schema))


CURRENCY = {"type": "enum", "name": "Currency", "symbols": ["EUR", "USD"]}
PAIR = record(field("a", "float"), name="Pair")
BRANCHES = ["null", "string", "Currency", {"type": "array", "items": "int"}, {"type": "map", "values": "long"}, PAIR]
EVERY_TYPE = record(
    field("n", "int"),
    field("l", "long"),
    field("d", "double"),
    field("ok", "boolean"),
    field("raw", "bytes"),
    field("tag", {"type": "fixed", "name": "Tag", "size": 2}),
    field("cur", CURRENCY),
    field("alt", BRANCHES),
    namespace="shop",
)
WRITTEN = (
    r'{"n": -2147483648, "l": 9223372036854775807, "d": 0.5, "ok": true, "raw": "\u0000\u00ff\n", '
    r'"tag": "\u00fe\u0001", "cur": "USD", "alt": ALT}'
)
"""With each of the branches, what fastavro 1.13.1 writes (``json_writer``)."""
BRANCHES_WRITTEN = [
    "null",
    '{"string": "x"}',
    '{"shop.Currency": "EUR"}',
    '{"array": [1, 2]}',
    '{"map": {"k": 7}}',
    '{"shop.Pair": {"a": 1.5}}',
]


@pytest.mark.parametrize("branch", BRANCHES_WRITTEN)
def test_what_another_implementation_writes_is_accepted(branch: str) -> None:
    assert made(EVERY_TYPE).problem(WRITTEN.replace("ALT", branch)) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n", 2**31, "at /n: the value is greater than the maximum of 2147483647: 2147483648"),
        ("n", 1.0, 'at /n: the value is not of type "integer": 1.0'),
        ("l", -(2**63) - 1, "at /l: the value is less than the minimum of -9223372036854775808: -9223372036854775809"),
        ("d", "1", "at /d: the value is not of type \"number\": '1'"),
        ("ok", None, 'at /ok: the value is not of type "boolean": None'),
        ("raw", "Ā", "at /raw: the value does not match"),
        ("tag", "abc", "at /tag: the value is longer than 2 characters: 'abc'"),
        ("cur", "GBP", 'at /cur: the value is not one of "EUR" or "USD"'),
        ("alt", "x", 'at /alt: the value is not of types "null", "object": \'x\''),
        ("alt", {"Currency": "EUR"}, "at /alt: Additional properties are not allowed ('Currency' was unexpected)"),
        ("alt", {"string": "x", "array": []}, "at /alt: the value has more than 1 property"),
        ("alt", {"array": ["x"]}, "at /alt/array/0: the value is not of type \"integer\": 'x'"),
        ("alt", {"shop.Pair": {"a": 1e39}}, "at /alt/shop.Pair/a: the value is greater than the maximum of"),
        ("alt", {"shop.Pair": {}}, 'at /alt/shop.Pair: "a" is a required property'),
        ("other", 1, "as a whole: Additional properties are not allowed ('other' was unexpected)"),
    ],
)
def test_a_value_that_is_none_of_the_schema_is_refused_by_its_place(name: str, value: Any, said: str) -> None:
    schema = made(EVERY_TYPE)
    text = json.dumps(json.loads(WRITTEN.replace("ALT", "null")) | {name: value})
    problem = schema.problem(text)
    assert problem is not None
    assert str(problem).startswith(said)
    assert not schema.accepts(text)


def test_fields_with_defaults_may_be_left_out_and_no_others() -> None:
    schema = made(record(field("a", "int"), field("b", ["null", "int"], default=None), field("c", "int", default=3)))
    assert schema.accepts('{"a": 1}')
    assert schema.accepts('{"a": 1, "b": {"int": 2}, "c": 4}')
    assert not schema.accepts('{"b": null, "c": 4}')


def test_logical_types_change_nothing_of_what_a_value_may_be(recwarn: pytest.WarningsRecorder) -> None:
    money = {"type": "fixed", "name": "Money", "size": 2, "logicalType": "decimal", "precision": 99}
    schema = made(record(field("at", {"type": "long", "logicalType": "nanosecond"}), field("m", money)))
    assert schema.accepts('{"at": 1, "m": "ab"}')
    assert not schema.accepts('{"at": "2026-01-01", "m": "ab"}')
    assert not recwarn.list


def test_a_default_may_have_what_looks_like_a_part_of_a_schema() -> None:
    words = {"type": "map", "values": "string"}
    assert made(record(field("m", words, default={"logicalType": "x", "aliases": "y"}))).accepts("{}")


def chained(count: int, times: int) -> dict[str, Any]:
    """Each record has so many fields of the next one."""
    schema: Any = "int"
    for number in range(count):
        name = f"R{number}"
        fields = [
            field("f0", schema),
            *(field(f"f{n}", f"R{number - 1}" if number else "int") for n in range(1, times)),
        ]
        schema = record(*fields, name=name)
    return dict(schema)


@attempt(
    "an administrator of a store",
    "register an Avro schema that contains itself, refers to another one or grows without end",
    "refused before it is stored; what a check of a value costs is bounded",
)
@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("{", "it is no JSON (Input data was truncated)"),
        ("1", "Could not make an Avro Schema object from 1"),
        ('"strin"', "'strin' is no type of Avro"),
        ([], "a union has no branch, or two that are the same"),
        (["int", "int"], "int type already in Union"),
        ([CURRENCY, "Currency"], "a union has no branch, or two that are the same"),
        ({"type": "enum", "name": "E", "symbols": []}, "the symbols of 'E' are no list of names"),
        ({"type": "enum", "name": "E", "symbols": "AB"}, "the symbols of 'E' are no list of names"),
        ({"type": "enum", "name": "E", "symbols": ["a\n"]}, "the symbols of 'E' are no list of names"),
        ({"type": "fixed", "name": "F", "size": -1}, "requires a valid positive integer for size"),
        ({"type": "error", "name": "E", "fields": []}, "the type 'error' is not for values"),
        ({"type": "error_union", "declared_errors": []}, "is not for values"),
        (record(field("a", "Other")), "Could not make an Avro Schema object from Other"),
        (record(field("a\n", "int")), "'a\\n' is no name of a field"),
        (record(field("a", "int"), name="R\n"), "is no name"),
        (record(field("a", "int", aliases="b")), "aliases are a list of names"),
        (record(field("a", "int", default="x")), "the default of 'R.a' does not fit its type"),
        (record(field("a", ["null", "int"], default={"int": 1})), "the default of 'R.a' does not fit its type"),
        (record(field("next", ["null", "R"], default=None)), "'R' contains itself"),
        (record(field("a", record(field("b", "R"), name="S"))), "'R' contains itself"),
        ("[" * 3_000, f"it is nested more than {MAX_DEPTH} deep"),
        ('{"type":"array","items":' * 70 + '"int"' + "}" * 70, f"it is nested more than {MAX_DEPTH} deep"),
        (chained(14, 2), f"it has over {MAX_PARTS} parts, with what it refers to as often as it does"),
        (record(*(field(f"f{n}", "bytes") for n in range(100))), f"it has over {MAX_PARTS} parts"),
    ],
)
def test_what_is_no_schema_or_could_take_long_is_refused(definition: Any, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        made(definition)
    assert str(caught.value).startswith("definition is no schema that can be used: ")
    assert str(caught.value).count("definition is no schema") == 1
    assert said in str(caught.value)
    assert caught.value.field == "definition"
    assert len(str(caught.value)) < 400


WORDS = (
    "type",
    "name",
    "fields",
    "items",
    "values",
    "symbols",
    "size",
    "default",
    "aliases",
    "namespace",
    "logicalType",
)
DEFINITIONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["int", "record", "enum", "R", "a", "map", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=12,
)


@given(DEFINITIONS)
def test_whatever_is_no_schema_is_refused_as_such(definition: Any) -> None:
    refused = None
    try:
        schema = made(definition)
    except InvalidInputError as error:
        refused = str(error)
    assert refused is None or refused.startswith("definition is no schema that can be used: ")
    assert refused is not None or schema.accepts("{}") is (schema.problem("{}") is None)


def test_only_those_who_have_an_avro_schema_load_the_library() -> None:
    code = "import sys, ringcast_wire.schemas; assert 'avro' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
