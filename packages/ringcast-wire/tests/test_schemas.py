"""Schemas check values: what they accept, how they say what is wrong, and what a hostile one can't do."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_testkit import attempt
from ringcast_wire import InvalidInputError, RowRule, SchemaKind, limits, schemas
from ringcast_wire.schemas import MAX_COST, MAX_DEPTH, MAX_PARTS, ValueSchema, broken, is_sealed, value_schema

LIMIT = {
    "type": "object",
    "required": ["limit"],
    "properties": {
        "limit": {"type": "integer", "minimum": 3},
        "a/b~": {"format": "email"},
        "list": {"items": {"$ref": "#/$defs/word"}},
    },
    "additionalProperties": False,
    "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}},
}


def made(schema: Any) -> ValueSchema:
    return ValueSchema(SchemaKind.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"limit": 3, "list": ["a", "b"], "a/b~": "a@b.example"}', None),
        ('{"limit": 2}', "at /limit (rule /properties/limit/minimum): the value is less than the minimum of 3: 2"),
        ("{}", "as a whole (rule /required): \"limit\" is a required property: '{}'"),
        ('{"limit": 3, "a/b~": "x"}', "at /a~1b~0 (rule /properties/a~1b~0/format): the value is not a \"email\": 'x'"),
        (
            '{"limit": 3, "list": ["a", "B"]}',
            "at /list/1 (rule /$defs/word/pattern): the value does not match \"^[a-z]+$\": 'B'",
        ),
        ("", "as a whole: the value is no JSON (Input data was truncated): ''"),
        (
            '{"limit": 1e999}',
            "as a whole: the value is no JSON (Number out of range - at `$[...]`): '{\"limit\": 1e999}'",
        ),
        ("[" * 3_000, "as a whole: the value is nested too deeply: '" + "[" * 78 + "…"),
    ],
)
def test_a_value_is_accepted_or_the_first_rule_is_named_that_it_breaks(value: str, said: str | None) -> None:
    schema = made(LIMIT)
    problem = schema.problem(value)
    assert (None if problem is None else str(problem)) == said
    assert schema.accepts(value) is (said is None)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=8))
def test_whether_a_value_is_accepted_does_not_depend_on_how_it_is_asked(value: Any) -> None:
    for schema in ({"type": "array", "maxItems": 2}, {"not": {"type": ["null", "string"]}}, {"uniqueItems": True}):
        found = made(schema)
        text = json.dumps(value)
        assert found.accepts(text) is (found.problem(text) is None) is jsonschema_rs.is_valid(schema, value)


@pytest.mark.parametrize(
    ("value", "accepted"), [("abc", True), ("12", True), ("abc1", False), ("a\n", False), ("", False)]
)
def test_a_regular_expression_has_to_match_the_whole_value(value: str, accepted: bool) -> None:
    assert ValueSchema(SchemaKind.REGEX, r"[a-z]+|\d+").accepts(value) is accepted


def chained(count: int, times: int) -> dict[str, Any]:
    """Each definition refers so often to the next."""
    steps = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * times} for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": steps | {f"d{count}": {"type": "null"}}}


def unevaluated(count: int, name: str, between: int = 0) -> dict[str, Any]:
    """So many schemas, one in the other under this keyword, each of which asks what the inner ones have evaluated; and
    so many ``allOf`` from one to the next."""
    word = "unevaluatedItems" if name == "contains" else "unevaluatedProperties"
    steps: dict[str, Any] = {}
    schema: dict[str, Any] = {"additionalProperties": True}
    for number in range(count):
        for _ in range(between):
            schema = {"allOf": [schema]}
        if name == "$ref":
            steps[f"d{number}"] = schema
            schema = {name: f"#/$defs/d{number}", word: False}
        else:
            schema = {name: [schema] if name.endswith("Of") else schema, word: False}
    return schema | ({"$defs": steps} if steps else {})


@attempt(
    "an administrator of a store",
    "register a schema that has something fetched, refers to itself, backtracks or grows without end",
    "refused before it is stored; what a check of a value costs is bounded",
)
@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("", f"it has 0 bytes: 1 to {limits.MAX_SCHEMA_BYTES} are allowed"),
        ('"' + "x" * limits.MAX_SCHEMA_BYTES + '"', f"it has {limits.MAX_SCHEMA_BYTES + 2} bytes: 1 to"),
        ("{", "it is no JSON (Input data was truncated)"),
        ("true", "a JSON Schema is an object"),
        ({"type": "strin"}, "at /type: "),
        ({"format": "emial"}, "at /format: Unknown format: 'emial'"),
        ({"$schema": "https://schemas.example/mine"}, "Unknown meta-schema: 'https://schemas.example/mine'"),
        ({"$ref": "https://schemas.example/x"}, "it refers to 'https://schemas.example/x': only references within it"),
        ({"$ref": "file:///etc/passwd"}, "it refers to 'file:///etc/passwd': only references within it"),
        ({"$ref": "other.json"}, "it refers to 'other.json': only references within it"),
        ({"$ref": "#/$defs/none"}, "it refers to '#/$defs/none', which is not there"),
        ({"items": {"$ref": "#"}}, "it refers to '#' in a circle"),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, "it refers to '#/$defs/a' in a circle"),
        ({"$defs": {"a": {"items": {"$ref": "#/%24defs/a"}}}}, "it refers to '#/%24defs/a' in a circle"),
        ({"properties": {"a": {"$id": "https://x.example/"}}}, "$id is not taken"),
        ({"$dynamicRef": "#x"}, "$dynamicRef is not taken"),
        ({"pattern": "(?=a)b"}, "at /pattern: '(?=a)b' is no regular expression that is matched in linear time"),
        ({"pattern": r"(a)\1"}, "is no regular expression that is matched in linear time"),
        ({"pattern": "(a{1,100}){100}"}, "is no regular expression that is matched in linear time and has up to 65536"),
        ("[" * 3_000, f"it is nested more than {MAX_DEPTH} deep"),
        ('{"not":' * 70 + "{}" + "}" * 70, f"it is nested more than {MAX_DEPTH} deep"),
        (chained(40, 1), f"it is nested more than {MAX_DEPTH} deep, with what it refers to"),
        (chained(14, 2), f"it has over {MAX_PARTS} parts, with what it refers to as often as it does"),
        ({"allOf": [{"pattern": f"a{n}"} for n in range(100)]}, f"it has over {MAX_PARTS} parts"),
        ({"patternProperties": {f"a{n}": {} for n in range(100)}}, f"it has over {MAX_PARTS} parts"),
        *((unevaluated(20, name), f"it has over {MAX_PARTS} parts") for name in ("allOf", "anyOf", "oneOf")),
        *((unevaluated(20, name), f"it has over {MAX_PARTS} parts") for name in ("not", "if", "contains", "$ref")),
        (unevaluated(8, "allOf", 2), f"it has over {MAX_PARTS} parts"),
    ],
)
def test_what_is_no_schema_or_could_take_long_is_refused(definition: Any, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        made(definition)
    assert str(caught.value).startswith("definition is no schema that can be used: ")
    assert said in str(caught.value)
    assert caught.value.field == "definition"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("pattern", ["(?=a)", "a)|(b", "(", "[a-z]{1,300}{1,300}"])
def test_what_is_no_regular_expression_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInputError, match="is no regular expression that is matched in linear time"):
        ValueSchema(SchemaKind.REGEX, pattern)


@pytest.mark.parametrize(("count", "between"), [(7, 0), (4, 2)])
@pytest.mark.parametrize("name", ["allOf", "anyOf", "oneOf", "if", "$ref"])
def test_what_is_unevaluated_takes_no_more_than_is_counted(name: str, count: int, between: int) -> None:
    schema = made(unevaluated(count, name, between))
    began_s = time.process_time()
    assert schema.accepts('{"a": 1}')
    assert time.process_time() - began_s < 1


def test_objects_in_objects_may_all_be_closed_with_unevaluated_properties() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    value = "1"
    for _ in range(20):
        schema = {"type": "object", "properties": {"a": schema}, "unevaluatedProperties": False}
        value = f'{{"a": {value}}}'
    assert made(schema).accepts(value)
    assert not made(schema).accepts(value.replace("1", "null"))


def test_a_name_of_a_property_is_no_keyword() -> None:
    names = {"$ref": {"type": "null"}, "$id": {"type": "null"}, "pattern": {"type": "string"}, "id": {"minimum": 1}}
    assert made({"properties": names}).accepts('{"$ref": null, "pattern": "(", "id": 2}')


def test_a_value_that_would_cost_too_much_is_refused_unseen() -> None:
    schema = made({"items": {"allOf": [{"minimum": number} for number in range(1_000)]}})
    small, large = json.dumps([1_000] * 100), json.dumps([1_000] * 10_000)
    assert schema.accepts(small)
    problem = schema.problem(large)
    assert problem is not None
    assert "characters, and this schema checks up to" in problem.message
    assert not schema.accepts(large)


@pytest.mark.parametrize("pattern", ["[ab]*a[ab]{300}c", "(a*)*b", "(a|b|ab)*c", "([ab]*a[ab]{300})$"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """Far below what a backtracking engine takes; what one costs a second is said where the limits are."""
    schema = ValueSchema(SchemaKind.REGEX, pattern)
    draw = random.Random(1)
    text = "".join(draw.choice("ab") for _ in range(MAX_COST // 200))
    began_s = time.process_time()
    schema.accepts(text)
    assert time.process_time() - began_s < 10


def test_what_is_shown_of_a_value_and_a_schema_is_bounded() -> None:
    schema = made({"properties": {"x" * 5_000: {"enum": ["y" * 5_000] * 3}}, "additionalProperties": False})
    for value in ({"x" * 5_000: "z" * 5_000}, {"w" * 5_000: 1}, {"\x07\n": 1}):
        problem = schema.problem(json.dumps(value))
        assert problem is not None
        error = broken("s/k", 7, "r" * 5_000, problem)
        assert len(str(error)) < 800
        assert str(error).isprintable()
        assert str(error).startswith("row 'rrr")
        assert "of s/k breaks version 7 of its schema" in str(error)
        assert (error.rule, error.field) == (RowRule.SCHEMA, "value")


def test_nothing_is_said_of_an_encrypted_value() -> None:
    assert not is_sealed(None)
    assert not is_sealed({"source": "x"})
    assert is_sealed({"enc-alg": "A256GCM-HS256", "enc-kid": "k1"})
    assert str(schemas.SEALED) == "as a whole: the value is encrypted, so it can't be checked: (encrypted)"


def test_schemas_are_kept_by_the_length_of_their_definitions() -> None:
    kept = schemas.KeptSchemas[str, int](20_000)
    for number, name in enumerate("abc"):
        kept.put(name, number, " " * 5_000)
    assert [kept.get(name) for name in "abc"] == [0, 1, 2]
    assert kept.get("a") == 0
    kept.put("d", 3, " " * 8_000)
    assert [kept.get(name) for name in "abcd"] == [0, None, None, 3], "those that were not used for longest are gone"
    kept.put("d", 4, " " * 12_000)
    assert [kept.get(name) for name in "ad"] == [0, 4]
    kept.put("e", 5, " " * 64_000)
    assert [kept.get(name) for name in "ade"] == [None, None, 5], "what came last is kept however large it is"
    for number in range(100):
        kept.put(str(number), number, "")
    assert sum(kept.get(str(number)) is not None for number in range(100)) == 19, "none is for nothing"


def test_a_schema_is_compiled_once() -> None:
    definition = json.dumps(LIMIT)
    assert value_schema(SchemaKind.JSON_SCHEMA, definition) is value_schema(SchemaKind.JSON_SCHEMA, definition)
