"""Protobuf schemas: values in their JSON form, and what is no schema or could take long."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import time
from typing import Any

import pytest
from google.protobuf import descriptor_pb2 as pb
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from hypothesis import given
from hypothesis import strategies as st
from ringcast_testkit import attempt
from ringcast_testkit.protoc import descriptor_set
from ringcast_wire import InvalidInputError, SchemaKind, limits
from ringcast_wire._schemas.protobuf import MAX_CHAIN, MAX_MEMBERS, MAX_NESTED, MAX_TYPES
from ringcast_wire._schemas.protobuf_values import MAX_COST, MAX_DEPTH, MAX_VALUE_BYTES
from ringcast_wire.schemas import ValueSchema, protobuf_definition

F = pb.FieldDescriptorProto
IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto"; '
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)
EVERY_TYPE = (
    'syntax = "proto3"; package acme; '
    + IMPORTS
    + """
enum State { UNKNOWN = 0; ON = 1; }
message Rule {
  int32 i = 1; int64 l = 2; uint32 u = 3; uint64 ul = 4; sint32 si = 5; fixed64 fl = 6; float f = 7; double d = 8;
  bool ok = 9; string text = 10; bytes raw = 11; State state = 12; optional int32 maybe_one = 13;
  repeated Rule kids = 14; repeated int32 many = 15; map<string, int32> caps = 16; map<bool, Rule> sides = 17;
  oneof which { string a = 18; Rule b = 19; }
  google.protobuf.Timestamp at = 20; google.protobuf.Duration dur = 21; google.protobuf.FieldMask mask = 22;
  google.protobuf.Struct s = 23; google.protobuf.Value v = 24; google.protobuf.ListValue lv = 25;
  google.protobuf.Any any = 26; google.protobuf.Empty e = 27; google.protobuf.Int64Value w = 28;
  google.protobuf.NullValue n = 29; repeated google.protobuf.Value vs = 30; map<int32, string> by = 31;
  google.protobuf.BytesValue wb = 32; string renamed = 33 [json_name = "other"];
}
"""
)


def made(text: str = EVERY_TYPE, message: str = "acme.Rule", *others: tuple[str, str]) -> ValueSchema:
    return ValueSchema(SchemaKind.PROTOBUF, protobuf_definition(descriptor_set(text, *others), message))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {
            "i": -(2**31),
            "l": "-9223372036854775808",
            "u": 4294967295,
            "ul": "18446744073709551615",
            "si": -1,
            "fl": "7",
        },
        {"i": "5", "l": 5, "u": 1e2, "f": "NaN", "d": "-Infinity"},
        {"f": 3.4e38, "d": 1.7e308, "ok": True, "text": "é\0", "raw": "AAEC", "state": "ON"},
        {"raw": "_-8", "state": 1},
        {"state": 7, "maybeOne": 0},
        {"maybe_one": 3, "kids": [{"kids": [{}]}], "many": [1, "2"], "caps": {"": 1}, "sides": {"true": {"i": 1}}},
        {"a": "", "b": None, "renamed": "by its own name"},
        {"other": "by its name in JSON", "by": {"-5": "x"}},
        {"at": "2026-11-27T09:30:00.5Z", "dur": "-1.5s", "mask": "text,kids.i", "e": {}, "w": "3", "wb": "AA=="},
        {"s": {"a": [1, None, {"b": "x"}]}, "v": None, "lv": [None, True], "n": None, "vs": [None, 1, {}]},
        {"any": {}, "n": "NULL_VALUE"},
        {"any": {"@type": "type.googleapis.com/acme.Rule", "i": 3, "kids": [{}]}},
        {"any": {"@type": "type.googleapis.com/google.protobuf.Timestamp", "value": "2026-11-27T09:30:00Z"}},
        {"any": {"@type": "t/google.protobuf.Empty"}},
        {"any": {"@type": "t/google.protobuf.Any", "value": {"@type": "t/google.protobuf.Int64Value", "value": "1"}}},
    ],
)
def test_what_is_the_json_form_of_the_message_is_accepted(value: dict[str, Any]) -> None:
    schema = made()
    assert schema.problem(json.dumps(value)) is None
    assert schema.accepts(json.dumps(value))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"i": 2147483648}', "at /i (rule acme.Rule.i): the value is no int32: 2147483648"),
        ('{"i": 1.5}', "at /i (rule acme.Rule.i): the value is no int32: 1.5"),
        ('{"i": true}', "at /i (rule acme.Rule.i): the value is no int32: True"),
        ('{"i": "1_0"}', "at /i (rule acme.Rule.i): the value is no int32: '1_0'"),
        ('{"i": "٣"}', "at /i (rule acme.Rule.i): the value is no int32: "),
        ('{"u": -1}', "at /u (rule acme.Rule.u): the value is no uint32: -1"),
        ('{"ul": "18446744073709551616"}', "at /ul (rule acme.Rule.ul): the value is no uint64"),
        ('{"f": 1e39}', "at /f (rule acme.Rule.f): the value is no float: it is too large: 1e+39"),
        ('{"d": "inf"}', "at /d (rule acme.Rule.d): the value is no double: 'inf'"),
        ('{"d": NaN}', "as a whole: the value is no JSON (NaN is no number)"),
        ('{"v": 1e400}', "as a whole: the value is no JSON (1e400 is larger than any double)"),
        ('{"ok": "true"}', "at /ok (rule acme.Rule.ok): the value is neither true nor false: 'true'"),
        ('{"text": 1}', "at /text (rule acme.Rule.text): the value is no string: 1"),
        (r'{"text": "\ud800"}', "at /text (rule acme.Rule.text): the value is no Unicode"),
        ('{"raw": "!!!!"}', "at /raw (rule acme.Rule.raw): the value is no base64: '!!!!'"),
        ('{"raw": "AAA=="}', "at /raw (rule acme.Rule.raw): the value is no base64"),
        ('{"state": "OFF"}', "at /state (rule acme.Rule.state): the value is none of acme.State: 'OFF'"),
        ('{"state": "1"}', "at /state (rule acme.Rule.state): the value is none of acme.State: '1'"),
        ('{"state": 1.0}', "at /state (rule acme.Rule.state): the value is no name or number of acme.State: 1.0"),
        ('{"no": 1}', "at /no (rule acme.Rule): there is no such field: 1"),
        ('{"[acme.x]": 1}', "at /[acme.x] (rule acme.Rule): there is no such field: 1"),
        ('{"kids": [{"a/b~": 1}]}', "at /kids/0/a~1b~0 (rule acme.Rule): there is no such field: 1"),
        ('{"i": 1, "i": 1}', "as a whole: the value is no JSON (an object has 'i' twice)"),
        (
            '{"maybeOne": 1, "maybe_one": 1}',
            "at /maybe_one (rule acme.Rule): the field is there already, as 'maybeOne'",
        ),
        ('{"a": "", "b": {}}', "at /b (rule acme.Rule.b): 'a' of the oneof 'which' is there too: {}"),
        ('{"kids": {}}', "at /kids (rule acme.Rule.kids): the value is no list: {}"),
        ('{"many": [1, null]}', "at /many/1 (rule acme.Rule.many): null can't be in a list or a map: None"),
        ('{"caps": []}', "at /caps (rule acme.Rule.caps): the value is no object, as a map is: []"),
        ('{"sides": {"yes": {}}}', "at /sides/yes (rule acme.Rule.sides): the key is neither true nor false: 'yes'"),
        ('{"by": {"01": ""}}', "at /by/01 (rule acme.Rule.by): the value is no int32: '01'"),
        ('{"sides": {"true": {"i": ""}}}', "at /sides/true/i (rule acme.Rule.i): the value is no int32: ''"),
        (
            '{"at": "yesterday"}',
            "at /at (rule acme.Rule.at): the value is no time as 2026-11-27T09:30:00Z: 'yesterday'",
        ),
        ('{"at": 1}', "at /at (rule acme.Rule.at): the value is no time"),
        ('{"dur": "1"}', "at /dur (rule acme.Rule.dur): the value is no duration as 1.5s: '1'"),
        ('{"mask": "a b"}', "at /mask (rule acme.Rule.mask): the value is no field mask"),
        ('{"s": []}', "at /s (rule acme.Rule.s): the value is no object: []"),
        (r'{"s": {"a": ["\ud800"]}}', "at /s/a/0 (rule acme.Rule.s): the value is no Unicode"),
        ('{"lv": {}}', "at /lv (rule acme.Rule.lv): the value is no list: {}"),
        ('{"e": {"a": 1}}', "at /e (rule acme.Rule.e): the value is no empty object: {'a': 1}"),
        ('{"w": {"value": 1}}', "at /w (rule acme.Rule.w): the value is no int64: {'value': 1}"),
        ('{"n": 0}', "at /n (rule acme.Rule.n): the value is not null: 0"),
        ('{"any": {"i": 1}}', 'at /any (rule acme.Rule.any): the value has no "@type"'),
        ('{"any": {"@type": "acme.Rule"}}', 'at /any (rule acme.Rule.any): the value has no "@type"'),
        (
            '{"any": {"@type": "t/acme.No"}}',
            "at /any/@type (rule acme.Rule.any): there is no such message: 't/acme.No'",
        ),
        ('{"any": {"@type": "t/acme.Rule", "i": ""}}', "at /any/i (rule acme.Rule.i): the value is no int32: ''"),
        ('{"any": {"@type": "t/google.protobuf.Duration"}}', 'the value has not "@type" and "value" alone'),
        (
            '{"any": {"@type": "t/google.protobuf.Duration", "value": 1}}',
            "at /any/value (rule acme.Rule.any): the value",
        ),
        ("[]", "as a whole (rule acme.Rule): the value is no object: '[]'"),
        ("", "as a whole: the value is no JSON (Expecting value"),
        ("[" * 100_000, "as a whole: the value is nested too deeply"),
        (
            '{"s":' + '{"a":' * MAX_DEPTH + "1" + "}" * (MAX_DEPTH + 1),
            f"the value is nested more than {MAX_DEPTH} deep",
        ),
        ('{"v":' + "[" * 60 + "]" * 60 + "}", "Message too deep"),
    ],
)
def test_what_is_no_json_of_the_message_is_refused_by_its_place(value: str, said: str) -> None:
    schema = made()
    problem = schema.problem(value)
    assert problem is not None
    assert said in str(problem)
    assert not schema.accepts(value)


def test_a_closed_enum_has_no_other_numbers() -> None:
    schema = made('syntax = "proto2"; message M { enum E { A = 3; B = 5; } optional E e = 1 [default = B]; }', "M")
    assert [schema.accepts(f'{{"e": {value}}}') for value in ("3", '"B"', "4")] == [True, True, False]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**33)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["1", "AA"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["i", "l", "kids", "caps", "s", "v", "any", "@type", "a", "b", "maybe_one"]), inner
        )
    ),
    max_leaves=8,
)


@given(VALUES)
def test_whatever_is_accepted_the_library_reads_and_what_it_writes_is_accepted(value: Any) -> None:
    schema, text = made(), json.dumps(value)
    pool = DescriptorPool()
    for file in pb.FileDescriptorSet.FromString(descriptor_set(EVERY_TYPE)).file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("acme.Rule"))()
    assert schema.accepts(text) is (schema.problem(text) is None)
    if schema.accepts(text):
        json_format.Parse(text, message, descriptor_pool=pool)
        for fields in ({}, {"preserving_proto_field_name": True}, {"use_integers_for_enums": True}):
            assert schema.problem(json_format.MessageToJson(message, descriptor_pool=pool, **fields)) is None


def test_a_definition_has_what_the_message_needs_and_no_more() -> None:
    part = 'syntax = "proto3"; package acme.part; message Part { int32 n = 1; }'
    hints = (
        'syntax = "proto2"; package hints; import "google/protobuf/descriptor.proto"; '
        "message Hint { extensions 100 to max; } extend google.protobuf.FieldOptions { optional Hint hint = 50000; }"
    )
    text = (
        'syntax = "proto3"; package acme; import "part.proto"; import "hints.proto"; '
        'import "google/protobuf/duration.proto";'
        "// said of it\nmessage Rule { part.Part p = 1 [(hints.hint) = {}]; google.protobuf.Duration d = 2; }"
    )
    found = descriptor_set(text, ("part.proto", part), ("hints.proto", hints))
    definition = protobuf_definition(found, "acme.Rule")
    kept = pb.FileDescriptorSet.FromString(base64.b64decode(json.loads(definition)["descriptors"]))
    assert [(file.name, [*file.dependency]) for file in kept.file] == [
        ("part.proto", []),
        ("main.proto", ["google/protobuf/duration.proto", "part.proto"]),
    ]
    assert (len(found) > 10_000, len(definition) < 600, b"said of it" in kept.SerializeToString()) == (
        True,
        True,
        False,
    )
    assert protobuf_definition(kept.SerializeToString(), "acme.Rule") == definition
    whole = json.dumps({"message": "acme.Rule", "descriptors": base64.b64encode(found).decode()})
    for each in (definition, whole):
        if len(each) <= limits.MAX_SCHEMA_BYTES:
            schema = ValueSchema(SchemaKind.PROTOBUF, each)
            assert schema.accepts('{"p": {"n": 1}, "d": "1s"}')


def test_an_any_may_have_each_message_of_the_set() -> None:
    part = 'syntax = "proto3"; package acme; message Part { int32 n = 1; }'
    text = (
        'syntax = "proto3"; package acme; import "part.proto"; import "google/protobuf/any.proto";'
        "message Rule { google.protobuf.Any any = 1; }"
    )
    assert made(text, "acme.Rule", ("part.proto", part)).accepts('{"any": {"@type": "t/acme.Part", "n": 1}}')


def test_two_schemas_have_other_messages_of_the_same_name_and_well_known_types_are_the_true_ones() -> None:
    one = made('syntax = "proto3"; message M { int32 a = 1; }', "M")
    other = made('syntax = "proto3"; message M { string a = 1; }', "M")
    assert [each.accepts('{"a": "x"}') for each in (one, other)] == [False, True]
    liar = file(pb.DescriptorProto(name="Timestamp"), name="google/protobuf/timestamp.proto", package="google.protobuf")
    found = definition(liar, file(message(field("at", type_name=".google.protobuf.Timestamp", type=F.TYPE_MESSAGE))))
    schema = ValueSchema(SchemaKind.PROTOBUF, found)
    assert [schema.accepts(f'{{"at": {value}}}') for value in ('"2026-11-27T09:30:00Z"', "{}")] == [True, False]


def test_large_values_are_checked_as_far_as_it_takes_no_long() -> None:
    schema = made('syntax = "proto3"; message M { repeated M m = 1; string s = 2; }', "M")
    assert schema.accepts(json.dumps({"s": "x" * (MAX_VALUE_BYTES - 20)}))
    problem = schema.problem(json.dumps({"s": "x" * MAX_VALUE_BYTES}))
    assert f"this schema checks up to {MAX_VALUE_BYTES}" in str(problem)
    many = "".join(f"int32 f{number} = {number};" for number in range(2, 1_001))
    schema = made(f'syntax = "proto3"; message M {{ repeated M m = 1; {many} }}', "M")
    most = MAX_COST // 1_020
    worst = '{"m":[' + ",".join(["{}"] * (most // 3 - 5)) + "]}"
    began_s = time.process_time()
    assert schema.accepts(worst)
    assert time.process_time() - began_s < 5
    assert f"this schema checks up to {most}" in str(schema.problem(worst + " " * 20))


def message(*fields: F, name: str = "M", **more: Any) -> pb.DescriptorProto:
    return pb.DescriptorProto(name=name, field=fields, **more)


def field(name: str, number: int = 1, **more: Any) -> F:
    words: dict[str, Any] = {"name": name, "number": number, "type": F.TYPE_INT32, "label": F.LABEL_OPTIONAL}
    return F(**words | more)


def of(name: str, number: int = 1, **more: Any) -> F:
    return field("m", number, type=F.TYPE_MESSAGE, type_name=name, **more)


def file(*messages: pb.DescriptorProto, name: str = "a.proto", **more: Any) -> pb.FileDescriptorProto:
    words: dict[str, Any] = {"name": name, "syntax": "proto3", "message_type": messages}
    return pb.FileDescriptorProto(**words | more)


def definition(*files: pb.FileDescriptorProto, message: str = "M") -> str:
    return words(pb.FileDescriptorSet(file=files).SerializeToString(), message)


def words(data: bytes, message: str = "M") -> str:
    return json.dumps({"message": message, "descriptors": base64.b64encode(data).decode()})


def nested(levels: int) -> pb.DescriptorProto:
    made = message()
    for _ in range(levels):
        made = message(nested_type=[made])
    return made


def chained(count: int) -> pb.FileDescriptorProto:
    return file(
        message(of(".M0")),
        *(message(of(f".M{number + 1}"), name=f"M{number}") for number in range(count)),
        message(name=f"M{count}"),
    )


def enum(*numbers: int, **more: Any) -> pb.EnumDescriptorProto:
    values = [pb.EnumValueDescriptorProto(name=f"V{place}", number=number) for place, number in enumerate(numbers)]
    return pb.EnumDescriptorProto(name="E", value=values, **more)


ENTRY = message(field("key"), field("value", 2), name="E", options=pb.MessageOptions(map_entry=True))
RANGE = pb.DescriptorProto.ExtensionRange(start=100, end=200)
RESERVED = [pb.DescriptorProto.ReservedRange(start=n * 3 + 9, end=n * 3 + 10) for n in range(2_200)]
SMALL_ENUM = enum(*range(2_000))


@attempt(
    "an administrator of a store",
    "register a descriptor set that is garbage, lacks files, refers to itself or grows without end",
    "refused before it is stored; what a check of a value costs is bounded",
)
@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("{", "it is no JSON (Input data was truncated)"),
        ("[]", 'it is {"message": …, "descriptors": …}'),
        ('{"message": "M"}', 'it is {"message": …, "descriptors": …}'),
        ('{"message": 1, "descriptors": ""}', "message and descriptors are texts"),
        ('{"message": "M", "descriptors": "é"}', "descriptors are no base64"),
        ('{"message": "M", "descriptors": "A"}', "descriptors are no base64"),
        (words(b"\xff\xff"), "descriptors are no descriptor set, as protoc --descriptor_set_out writes it"),
        (words(b"\x0a\x7f" * 60), "descriptors are no descriptor set"),
        (words(b""), "it has no message 'M'"),
        (words(b"\x0a\x00"), "a file has no name"),
        (words(b"\x0a\x04\x0a\x02\xff\xfe"), "it has no message 'M'"),
        (words(b'\x0a\x12\x0a\x01a"\x06\x0a\x01M:\x01\xff'), "descriptors are no descriptor set"),
        (definition(file(message(name="N"), message(name="O"))), "it has no message 'M', but 'N', 'O'"),
        (definition(file(message()), file()), "the descriptor set has the file 'a.proto' twice"),
        (
            definition(file(message()), file(message(), name="b.proto")),
            "it defines 'M' twice, in 'a.proto' and 'b.proto'",
        ),
        (definition(file(message(), enum_type=[enum(0)]), file(message(name="E"), name="b")), "it defines 'E' twice"),
        (
            definition(file(message(), dependency=["b.proto"])),
            "'a.proto' imports 'b.proto', which is not there: use protoc",
        ),
        (
            definition(
                file(message(of(".N")), dependency=["b"]), file(message(name="N"), name="b", dependency=["a.proto"])
            ),
            "files import each other in a circle: ",
        ),
        (
            definition(file(message(of(".N"))), file(message(of(".M"), name="N"), name="b")),
            "files import each other in a circle: ",
        ),
        (definition(file(message(), syntax="editions", edition=1_000)), "'a.proto' is written in an edition"),
        (
            definition(file(message(), package="google.protobuf"), message="google.protobuf.M"),
            "of the package google.proto",
        ),
        (
            definition(file(message(of(".N")))),
            "'m' is of the type 'N', which is not there: use protoc --include_imports",
        ),
        (
            definition(file(message(of(".google.protobuf.Type")))),
            "is of the type 'google.protobuf.Type', which is not th",
        ),
        (definition(file(message(of("M")))), "'m' does not say in full of which type it is, as protoc has it"),
        (definition(file(message(F(name="m", number=1, type_name=".M")))), "'m' does not say of which type it is"),
        (definition(file(message(field("m", type=F.TYPE_GROUP, type_name=".M")))), "'m' is a group: make it a message"),
        (definition(file(message(of(".E")), enum_type=[enum(0)])), "'m' takes 'E' for a message"),
        (definition(file(message(field("m", type=F.TYPE_ENUM, type_name=".M")))), "'m' takes 'M' for an enum"),
        (
            definition(file(message(field("a", label=F.LABEL_REQUIRED)), syntax="proto2")),
            "'M.a' is required: a JSON Schema",
        ),
        (
            definition(file(message(extension_range=[RANGE]), syntax="proto2")),
            "'M' has a range for extensions: JSON has no",
        ),
        (definition(file(message(field("a"), field("b")))), "'M' has two fields of the same number"),
        (definition(file(message(field("a_b"), field("aB", 2)))), "'M' has two fields that are 'aB' in JSON"),
        (definition(file(message(field("a", 0)))), "'M.a' has the number 0: 1 to 536870911 are allowed"),
        (definition(file(message(field("a", 1 << 29)))), "'M.a' has the number 536870912: 1 to 536870911 are allowed"),
        (definition(file(message(field("a", json_name="")))), "'M.a' has no name in JSON"),
        (definition(file(message(field("a b")))), "protobuf does not take it: "),
        (definition(file(message(field("a", oneof_index=3)))), "'M.a' is in a oneof that is not there"),
        (definition(file(message(of(".M.E"), nested_type=[ENTRY]))), "'M.m' is of a type that is the entry of a map"),
        (
            definition(
                file(
                    message(
                        of(".M.E", label=F.LABEL_REPEATED),
                        nested_type=[message(field("key"), name="E", options=ENTRY.options)],
                    )
                )
            ),
            "'M.m' is no map that protoc makes",
        ),
        (definition(file(message(), enum_type=[enum()])), "'E' has no value, or two of the same name"),
        (definition(file(message(), enum_type=[enum(1)])), "'E' does not begin with the number 0"),
        (
            definition(file(message(reserved_range=[pb.DescriptorProto.ReservedRange(start=5, end=5)]))),
            "'M' reserves numbers that end before they begin",
        ),
        (definition(file(nested(MAX_NESTED + 1))), f"messages are defined in each other more than {MAX_NESTED} deep"),
        (definition(chained(900)), f"over {MAX_CHAIN} messages have each a field of the next one, down to 'M99'"),
        (
            definition(file(message(), *(message(name=f"N{n}") for n in range(MAX_TYPES)))),
            f"it has {MAX_TYPES + 1} messages and enums: {MAX_TYPES} are allowed",
        ),
        (
            definition(file(*(message(name=f"M{n or ''}", reserved_name=[""] * 20) for n in range(600)))),
            f"it has over {MAX_MEMBERS} fields, values of enums and reserved ones",
        ),
        (definition(file(*(message(name=f"N{n}") for n in range(9_000)))), "bytes: 1 to 65536 are allowed"),
    ],
)
def test_what_is_no_schema_or_could_take_long_is_refused(definition: str, said: str) -> None:
    began_s = time.process_time()
    with pytest.raises(InvalidInputError) as caught:
        ValueSchema(SchemaKind.PROTOBUF, definition)
    assert str(caught.value).startswith("definition is no schema that can be used: ")
    assert said in str(caught.value)
    assert caught.value.field == "definition"
    assert len(str(caught.value)) < 400
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize("found", [chained(MAX_CHAIN - 2), file(*reversed(chained(900).message_type))])
def test_long_chains_of_messages_are_no_burden(found: pb.FileDescriptorProto) -> None:
    assert ValueSchema(SchemaKind.PROTOBUF, definition(found)).accepts('{"m": {"m": {}}}')


def test_whatever_is_no_schema_is_refused_as_such() -> None:
    """Sets that are broken somewhere, from a seed."""
    kept, chance = protobuf_definition(descriptor_set(EVERY_TYPE), "acme.Rule"), random.Random(18)
    good = base64.b64decode(json.loads(kept)["descriptors"])
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(len(data))
            data[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        try:
            schema = ValueSchema(SchemaKind.PROTOBUF, words(bytes(data), "acme.Rule"))
        except InvalidInputError:
            refused += 1
            continue
        for value in ("{}", '{"i": 1, "kids": [{}], "caps": {"a": 1}, "any": {"@type": "t/acme.Rule"}}'):
            assert schema.accepts(value) is (schema.problem(value) is None)
    assert 300 < refused < 600


def test_only_those_who_have_a_protobuf_schema_load_the_library() -> None:
    code = "import sys, ringcast_wire.schemas; assert 'google.protobuf.json_format' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
