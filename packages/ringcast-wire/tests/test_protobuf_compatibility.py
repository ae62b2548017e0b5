"""Which versions of a Protobuf schema go with which: each rule, in both directions."""

from __future__ import annotations

import time

import pytest
from ringcast_testkit import attempt
from ringcast_testkit.protoc import descriptor_set
from ringcast_wire import SchemaKind
from ringcast_wire.schemas import Budget, ValueSchema, incompatibility, protobuf_definition

HEAD = 'import "google/protobuf/any.proto"; import "google/protobuf/timestamp.proto"; '
HEAD += 'import "google/protobuf/duration.proto"; '
KEEP_2 = 'reserved 2; reserved "b";'


def made(body: str, others: str = "", syntax: str = "proto3") -> str:
    text = f'syntax = "{syntax}"; {HEAD} message M {{ {body} }} {others}'
    return protobuf_definition(descriptor_set(text), "M")


def both(old: str, new: str) -> tuple[str | None, str | None]:
    """Why the new one can't read the values of the old one, and the other way round."""
    return (
        incompatibility(SchemaKind.PROTOBUF, new, old, Budget()),
        incompatibility(SchemaKind.PROTOBUF, old, new, Budget(), writer_is_newer=True),
    )


NOT_THERE = "at M.b: there is no such field in the schema that reads"


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        # fields that come and go
        ("int32 a = 1;", "int32 a = 1; int32 b = 2;", None, NOT_THERE),
        ("int32 a = 1; int32 b = 2;", f"int32 a = 1; {KEEP_2}", NOT_THERE, None),
        ("int32 b = 2;", "", NOT_THERE, "at M.b: it was taken away, and its number 2 is not reserved"),
        ("int32 b = 2;", 'reserved "b";', NOT_THERE, "at M.b: it was taken away, and its number 2 is not reserved"),
        ("int32 b = 2;", "reserved 1 to 9;", NOT_THERE, "at M.b: it was taken away, and its name is not reserved"),
        (KEEP_2, "", *["at M: number 2 was reserved, and has to stay so"] * 2),
        ("reserved 2 to 5;", "reserved 2 to 4;", *["at M: numbers 2 to 5 were reserved, and have to stay so"] * 2),
        ("reserved 2 to 5;", "reserved 2, 3 to 9;", None, None),
        (KEEP_2, "reserved 2;", *["at M: the name 'b' was reserved, and has to stay so"] * 2),
        # numbers and names
        (
            "int32 a = 1;",
            "int32 a = 2;",
            "at M.a: its number is 1, and 2 in the schema that reads",
            "at M.a: its number is 2, and 1 in the schema that reads",
        ),
        (
            "int32 a = 1;",
            "int32 b = 1;",
            "at M.a: its number 1 is that of 'b' in the schema that reads",
            "at M.b: its number 1 is that of 'a' in the schema that reads",
        ),
        (
            "int32 a = 1;",
            'int32 a = 1 [json_name = "x"];',
            "at M.a: it is 'a' in JSON, and 'x' in the schema that reads",
            "at M.a: it is 'x' in JSON, and 'a' in the schema that reads",
        ),
        ("int32 a_b = 1;", 'int32 a_b = 1 [json_name = "aB"];', None, None),
        # types
        ("int32 a = 1;", "int64 a = 1;", None, "at M.a: int64 can't be read as int32"),
        ("uint32 a = 1;", "uint64 a = 1;", None, "at M.a: uint64 can't be read as uint32"),
        ("uint32 a = 1;", "int64 a = 1;", None, "at M.a: int64 can't be read as uint32"),
        ("sint32 a = 1;", "sint64 a = 1;", None, "at M.a: sint64 can't be read as sint32"),
        ("repeated int32 a = 1;", "repeated int64 a = 1;", None, "at M.a: int64 can't be read as int32"),
        *(
            (
                f"{one} a = 1;",
                f"{two} a = 1;",
                f"M.a: {one} can't be read as {two}",
                f"M.a: {two} can't be read as {one}",
            )
            for one, two in (
                *(("int32", "uint32"), ("int32", "sint32"), ("int32", "bool"), ("int32", "fixed32"), ("int32", "E")),
                *(("fixed32", "sfixed32"), ("fixed32", "fixed64"), ("uint64", "int64"), ("float", "double")),
                *(("string", "bytes"), ("bytes", "N"), ("string", "google.protobuf.Timestamp"), ("N", "E")),
                *(("google.protobuf.Duration", "google.protobuf.Timestamp"), ("N", "google.protobuf.Any")),
            )
        ),
        ("N a = 1;", "L a = 1;", None, None),
        ("N a = 1;", "P a = 1;", None, "at P.t: there is no such field in the schema that reads"),
        ("N a = 1;", "O a = 1;", "at N.s: string can't be read as bytes", "at O.s: bytes can't be read as string"),
        # one value, a list, a map
        (
            "int32 a = 1;",
            "repeated int32 a = 1;",
            "one value can't be read as a list",
            "a list can't be read as one value",
        ),
        (
            "repeated Entry a = 1;",
            "map<string, int32> a = 1;",
            "at M.a: a list can't be read as a map",
            "at M.a: a map can't be read as a list",
        ),
        ("map<string, int32> a = 1;", "map<string, int64> a = 1;", None, "at M.a: int64 can't be read as int32"),
        ("map<int32, N> a = 1;", "map<int64, N> a = 1;", None, "at M.a: keys of the type int64 can't be read as int32"),
        ("map<string, N> a = 1;", "map<int32, N> a = 1;", *["at M.a: keys of the type "] * 2),
        ("int32 a = 1;", "optional int32 a = 1;", None, None),
        ("repeated int32 a = 1;", "repeated int32 a = 1 [packed = false];", None, None),
        # oneofs
        ("int32 a = 1;", "oneof x { int32 a = 1; }", None, None),
        ("oneof x { int32 a = 1; int32 b = 2; }", "oneof y { int32 a = 1; int32 b = 2; }", None, None),
        (
            "int32 a = 1; int32 b = 2;",
            "oneof x { int32 a = 1; int32 b = 2; }",
            "at M.b: it may be there beside 'a', and not in the oneof of the schema that reads",
            None,
        ),
        (
            "oneof x { int32 a = 1; int32 b = 2; }",
            "oneof x { int32 a = 1; } oneof y { int32 b = 2; }",
            None,
            "at M.b: it may be there beside 'a', and not in the oneof of the schema that reads",
        ),
        ("oneof x { int32 a = 1; }", "oneof x { int32 a = 1; int32 b = 2; }", None, NOT_THERE),
        # nothing that is in a value
        ("message A { int32 x = 1; } A a = 1;", "message B { int32 x = 1; } B a = 1;", None, None),
        ("int32 a = 1; message A {}", "int32 a = 1; enum F { FZ = 0; }", None, None),
        ("M a = 1;", "M a = 1; int32 b = 2;", None, NOT_THERE),
    ],
)
def test_what_becomes_of_fields(old: str, new: str, backward: str | None, forward: str | None) -> None:
    others = (
        "enum E { Z = 0; } message N { string s = 1; } message L { string s = 1; } message O { bytes s = 1; }"
        "message P { string s = 1; string t = 2; } message Entry { string key = 1; int32 value = 2; }"
    )
    check(both(made(old, others), made(new, others)), backward, forward)


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        ("Z = 0;", "Z = 0; A = 1;", None, "at E.A: the enum that reads has no such value"),
        ("Z = 0; A = 1;", 'Z = 0; reserved 1; reserved "A";', "at E.A: the enum that reads has no such value", None),
        (
            "Z = 0; A = 1;",
            "Z = 0;",
            "at E.A: the enum that",
            "at E.A: it was taken away, and its number 1 is not reserved",
        ),
        (
            "Z = 0; A = 1;",
            "Z = 0; reserved 1;",
            "at E.A: the enum that",
            "at E.A: it was taken away, and its name is not",
        ),
        (
            "Z = 0; A = 1;",
            "Z = 0; A = 2;",
            "at E.A: its number is 1, and 2 in the enum that reads",
            "at E.A: its number is 2",
        ),
        ("Z = 0; A = 1;", "Z = 0; B = 1;", "at E.A: the enum that reads has no", "at E.B: the enum that reads has no"),
        (
            "option allow_alias = true; Z = 0; A = 1; B = 1;",
            'Z = 0; A = 1; reserved "B";',
            "at E.B: the enum that reads has no such value",
            None,
        ),
        (
            "Z = 0; reserved 5 to max;",
            "Z = 0;",
            *["at E: numbers 5 to 2147483647 were reserved, and have to stay so"] * 2,
        ),
    ],
)
def test_what_becomes_of_enums(old: str, new: str, backward: str | None, forward: str | None) -> None:
    found = both(*(made("E e = 1;", f"enum E {{ {each} }}") for each in (old, new)))
    check(found, backward, forward)


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"),
    [
        (("optional int32 a = 1;", "", "proto2"), ("int32 a = 1;",), None, None),
        (
            ("optional E a = 1;", "enum E { Z = 0; }", "proto2"),
            ("E a = 1;", "enum E { Z = 0; }"),
            None,
            "at E: it is open",
        ),
        (
            ("optional E a = 1;", "enum E { Z = 0; Y = 1; }", "proto2"),
            ("optional E a = 1;", "enum E { Y = 1; Z = 0; }", "proto2"),
            "at M.a: left out it is Z, and Y in the schema that reads",
            "at M.a: left out it is Y, and Z in the schema that reads",
        ),
        (
            ("optional int32 a = 1 [default = 5];", "", "proto2"),
            ("optional int32 a = 1;", "", "proto2"),
            "at M.a: left out it is 5, and empty in the schema that reads",
            "at M.a: left out it is empty, and 5 in the schema that reads",
        ),
        (
            ("google.protobuf.Any a = 1;", "message N { int32 x = 1; }"),
            ("google.protobuf.Any a = 1;", "message N { int64 x = 1; }"),
            None,
            "at N.x: int64 can't be read as int32",
        ),
        (
            ("google.protobuf.Any a = 1;", "message N {}"),
            ("google.protobuf.Any a = 1;", "message O {}"),
            "at N: an Any may have it, and it is not there in the schema that reads",
            "at O: an Any may have it, and it is not there in the schema that reads",
        ),
    ],
)
def test_what_becomes_of_the_rest(
    old: tuple[str, ...], new: tuple[str, ...], backward: str | None, forward: str | None
) -> None:
    check(both(made(*old), made(*new)), backward, forward)


def check(found: tuple[str | None, str | None], backward: str | None, forward: str | None) -> None:
    for got, wanted in zip(found, (backward, forward), strict=True):
        assert got == wanted or (wanted is not None and got is not None and wanted in got)


@attempt(
    "an administrator of a store",
    "register versions of a Protobuf schema that take long to compare",
    "refused: they have too many parts; a comparison ends within about a second",
)
def test_schemas_that_were_made_to_take_long_are_not_compared() -> None:
    """Each pair of messages is another one: those of the reader in turn with those of the writer."""

    def ring(count: int, width: int) -> str:
        parts = [
            f"message R{n} {{ R{(n + 1) % count} r = 1; " + " ".join(f"bool f{i}=2{i:02};" for i in range(width)) + " }"
            for n in range(count)
        ]
        return made("R0 r = 1;", "".join(parts))

    one, other = ring(47, 30), ring(43, 30)
    for definition in (one, other):
        ValueSchema(SchemaKind.PROTOBUF, definition)
    began_s = time.process_time()
    assert incompatibility(SchemaKind.PROTOBUF, one, other, Budget()) == "they have too many parts to be compared"
    assert time.process_time() - began_s < 5


@attempt(
    "an administrator of a store",
    "register a Protobuf schema that is compared with a hundred large versions, of which little is compared",
    "refused: their text is counted; each is read once, and a comparison ends within a few seconds",
)
def test_versions_that_take_long_to_read_are_not_all_compared() -> None:
    """Messages that nothing refers to take no steps, and have to be read all the same."""

    def version(number: int) -> str:
        return made("bool a = 1;", "".join(f"message M{number}x{each} {{ bool a = 1; }}" for each in range(700)))

    new, *versions = map(version, range(4))
    budget, read = Budget(), 0
    began_s = time.process_time()
    found = None
    while found is None:
        found = incompatibility(SchemaKind.PROTOBUF, new, versions[read % 3], budget)
        read += 1
    assert found == "the definitions to compare have over 4194304 characters together"
    assert read == 4_194_304 // (2 * len(new)) + 1
    assert time.process_time() - began_s < 60
