"""Protobuf schemas: a message and the descriptor set that it is in, read without trust. Only who has such a schema
loads it.

What is kept of a set is what JSON and the wire can tell: the files whose types the message uses, without comments,
options, services and extensions. The well-known types are those of the library, whatever a set says that they are. All
of it goes into a pool of its own: two schemas may have other messages of the same name.
"""

from __future__ import annotations

import base64
import binascii
import graphlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import (
    any_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf import descriptor_pb2 as pb
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from ringcast_wire._schemas.protobuf_files import json_name_of, plain_file

MAX_TYPES: Final = 1_000
"""Messages and enums of a schema."""
MAX_MEMBERS: Final = 10_000
"""Fields, values of enums and what is reserved, of all of them."""
MAX_NESTED: Final = 32
"""How deep one message may be defined in another."""
MAX_CHAIN: Final = 100
"""Messages of which each has a field of the next one: the library goes down such a chain call by call."""
_MAX_READ_BYTES: Final = 16 << 20
"""Of a set that is on this machine, before what is not needed is left out."""
_MAX_NUMBER: Final = (1 << 29) - 1

_WELL_KNOWN_FILES: Final = tuple(
    module.DESCRIPTOR
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
)
_WELL_KNOWN_NAMES: Final = frozenset(each.name for each in _WELL_KNOWN_FILES)
WELL_KNOWN: Final = {
    f"google.protobuf.{name}": each.name for each in _WELL_KNOWN_FILES for name in each.message_types_by_name
}
"""The messages that JSON has a form of its own for, and the file of each."""
ANY: Final = "google.protobuf.Any"
NULL_VALUE: Final = "google.protobuf.NullValue"
_BUNDLED: Final = WELL_KNOWN | {NULL_VALUE: struct_pb2.DESCRIPTOR.name}
_PACKAGE: Final = "google.protobuf"
_LIBRARY: Final = "google/protobuf/"

_SCALARS: Final = {
    getattr(FieldDescriptorProto, f"TYPE_{name.upper()}"): name
    for name in (
        *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32"),
        *("sfixed32", "sfixed64", "sint32", "sint64"),
    )
}
_KEYS: Final = frozenset(_SCALARS.values()) - {"double", "float", "bytes"}


class Reserved(NamedTuple):
    """What may not be used again: numbers, from … to (without) in order, and names."""

    numbers: tuple[tuple[int, int], ...]
    names: frozenset[str]

    def has(self, number: int) -> bool:
        """Whether a number is."""
        return self.covers(number, number + 1)

    def covers(self, start: int, end: int) -> bool:
        """Whether all of these numbers are."""
        found = bisect_right(self.numbers, start, key=lambda each: each[0])
        return found > 0 and end <= self.numbers[found - 1][1]


@dataclass(frozen=True, slots=True)
class Field:
    """A field. ``type``: of its values, as in a .proto file, or ``message`` or ``enum``, whose name is ``type_name``.

    ``key``: the type of the keys of a map. ``oneof``: the one that it is in, but not that of an ``optional`` alone.
    ``default``: as it is written, if it is. ``place``: its full name.
    """

    name: str
    json_name: str
    number: int
    type: str
    type_name: str
    repeated: bool
    key: str
    oneof: str
    default: str
    place: str


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message. ``spelled``: its fields by each name that JSON may give them."""

    name: str
    fields: tuple[Field, ...]
    reserved: Reserved
    spelled: dict[str, Field]


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum. ``closed``: it has no other numbers than those of its values, which begin with the ``default``."""

    name: str
    values: dict[str, int]
    numbers: frozenset[int]
    closed: bool
    reserved: Reserved

    @property
    def default(self) -> str:
        """The value of a field that is left out."""
        return next(iter(self.values))


@dataclass(slots=True)
class ProtobufSchema:
    """A schema that was read: its messages and enums by full name, without the well-known ones."""

    message: str
    files: list[pb.FileDescriptorProto]
    """Those that are needed, each after those that it needs."""
    messages: dict[str, MessageType] = field(default_factory=dict)
    enums: dict[str, EnumType] = field(default_factory=dict)
    uses_any: bool = False

    def pool(self) -> DescriptorPool:
        """All of it, for nothing else.

        Raises:
            ValueError: the library does not take it.
        """
        made = DescriptorPool()
        try:
            for each in _WELL_KNOWN_FILES:
                made.AddSerializedFile(each.serialized_pb)
            for file in self.files:
                made.AddSerializedFile(file.SerializeToString())
        except (TypeError, KeyError, DecodeError) as error:
            raise ValueError(f"protobuf does not take it: {error}") from error
        return made

    def definition(self) -> str:
        """The text that a service takes, which is the same for the same schema."""
        found = pb.FileDescriptorSet(file=self.files).SerializeToString(deterministic=True)
        words = {"message": self.message, "descriptors": base64.b64encode(found).decode()}
        return msgspec.json.encode(words).decode()


def parse(definition: str) -> ProtobufSchema:
    """A schema as it is stored: JSON with the name of the message and a descriptor set in base64.

    Raises:
        ValueError: it is none, or is none that can be used.
    """
    try:
        found = msgspec.json.decode(definition)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from error
    if not isinstance(found, dict) or {*found} != {"message", "descriptors"}:
        raise ValueError(
            'it is {"message": …, "descriptors": …} with the name of a message and a descriptor set in base64'
        )
    message, text = found["message"], found["descriptors"]
    if not isinstance(message, str) or not isinstance(text, str):
        raise ValueError("message and descriptors are texts")  # noqa: TRY004  # of what a user has written
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"descriptors are no base64 ({error})") from error
    return read(data, message)


@lru_cache(2)
def parsed(definition: str) -> ProtobufSchema:
    """The same, of which the last two are kept: one that is new is compared with many, in both directions."""
    return parse(definition)


def read(data: bytes, message: str) -> ProtobufSchema:
    """The same of a set as ``protoc --include_imports --descriptor_set_out`` writes it.

    Raises:
        ValueError: it is none, or is none that can be used.
    """
    if len(data) > _MAX_READ_BYTES:
        raise ValueError(f"the descriptor set has {len(data)} bytes: {_MAX_READ_BYTES} are allowed")
    try:
        given = pb.FileDescriptorSet.FromString(data)
    except DecodeError as error:
        raise ValueError("descriptors are no descriptor set, as protoc --descriptor_set_out writes it") from error
    try:
        return _Reader(given, message).schema()
    except (UnicodeDecodeError, TypeError) as error:  # the library has bytes for a text that is none
        raise ValueError("a name in the descriptor set is no UTF-8") from error


class _Type(NamedTuple):
    """Where a type is defined: its file; and whether it is the entry of a map of ``parent``."""

    file: str
    proto: Any
    parent: str = ""


class _Reader:
    """Finds what is needed of a set, and checks it."""

    def __init__(self, given: pb.FileDescriptorSet, message: str) -> None:
        self._message = message
        self._files: dict[str, pb.FileDescriptorProto] = {}
        self._types: dict[str, _Type] = {}
        for file in given.file:
            if not file.name or file.name in self._files:
                raise ValueError(
                    f"the descriptor set has the file {file.name!r} twice" if file.name else "a file has no name"
                )
            self._files[file.name] = file
        for name, file in self._files.items():
            if name in _WELL_KNOWN_NAMES:
                continue
            for proto in (*file.message_type, *file.enum_type):
                self._index(name, proto, file.package, 0)
        self._members = 0

    def _index(self, file: str, proto: Any, scope: str, depth: int, parent: str = "") -> None:
        full = f"{scope}.{proto.name}" if scope else proto.name
        if depth > MAX_NESTED:
            raise ValueError(f"messages are defined in each other more than {MAX_NESTED} deep")
        if (known := self._types.get(full)) is not None:
            raise ValueError(f"it defines {full!r} twice, in {known.file!r} and {file!r}")
        self._types[full] = _Type(file, proto, parent)
        if isinstance(proto, pb.DescriptorProto):
            for each in (*proto.nested_type, *proto.enum_type):
                self._index(file, each, full, depth + 1, full)

    def schema(self) -> ProtobufSchema:
        message = self._message
        found = self._types.get(message)
        if found is None or not isinstance(found.proto, pb.DescriptorProto) or found.proto.options.map_entry:
            known = [n for n, t in self._types.items() if isinstance(t.proto, pb.DescriptorProto) and not t.parent]
            raise ValueError(
                f"it has no message {message!r}" + (f", but {', '.join(map(repr, known))}" if known else "")
            )
        needed, uses_any = self._needed(found.file)
        schema = ProtobufSchema(message, [], uses_any=uses_any)
        for name in self._in_order(needed):
            schema.files.append(plain_file(self._files[name], needed[name]))
        types = [(name, each) for name, each in self._types.items() if each.file in needed]
        if len(types) > MAX_TYPES:
            raise ValueError(f"it has {len(types)} messages and enums: {MAX_TYPES} are allowed")
        for name, each in types:
            if isinstance(each.proto, pb.EnumDescriptorProto):
                schema.enums[name] = self._enum(name, each)
            elif not each.proto.options.map_entry:
                schema.messages[name] = self._of_message(name, each)
        _check_chains(schema.messages)
        return schema

    # Which files

    def _needed(self, first: str) -> tuple[dict[str, list[str]], bool]:
        """The files whose types are used, and which each of them needs; and whether a value may have any message."""
        needed: dict[str, list[str]] = {}
        pending, uses_any = [first], False
        while pending:
            name = pending.pop()
            if name in needed:
                continue
            self._check_file(self._files[name])
            used = {self._file_of(each) for each in self._used(name)} - {name}
            uses_any = uses_any or any_pb2.DESCRIPTOR.name in used
            needed[name] = sorted(used)
            pending += used - _WELL_KNOWN_NAMES
            if uses_any:
                pending += (each for each in self._files if not each.startswith(_LIBRARY))
        return needed, uses_any

    def _check_file(self, file: pb.FileDescriptorProto) -> None:
        if file.syntax not in ("", "proto2", "proto3") or file.edition:
            raise ValueError(f"{file.name!r} is written in an edition: proto3 and proto2 are read")
        if file.package == _PACKAGE or file.package.startswith(f"{_PACKAGE}."):
            raise ValueError(f"{file.name!r} is of the package {_PACKAGE}, and none of the well-known types")
        for each in file.dependency:
            if each not in self._files and not each.startswith(_LIBRARY):
                raise ValueError(f"{file.name!r} imports {each!r}, which is not there: use protoc --include_imports")

    def _used(self, file: str) -> Iterator[FieldDescriptorProto]:
        """The fields of a file whose types are messages or enums."""
        pending = [*self._files[file].message_type]
        while pending:
            proto = pending.pop()
            pending += proto.nested_type
            for each in proto.field:
                if not each.HasField("type"):
                    raise ValueError(f"{each.name!r} does not say of which type it is, as protoc has it")
                if each.type not in _SCALARS:
                    yield each

    def _file_of(self, each: FieldDescriptorProto) -> str:
        name = self._type_name(each)
        return _BUNDLED[name] if name in _BUNDLED else self._types[name].file

    def _type_name(self, each: FieldDescriptorProto) -> str:
        """The full name of the message or enum that a field has."""
        if each.type == FieldDescriptorProto.TYPE_GROUP:
            raise ValueError(f"{each.name!r} is a group: make it a message")
        name = each.type_name
        if not name.startswith("."):
            raise ValueError(f"{each.name!r} does not say in full of which type it is, as protoc has it")
        name = name[1:]
        if name not in _BUNDLED and name not in self._types:
            raise ValueError(f"{each.name!r} is of the type {name!r}, which is not there: use protoc --include_imports")
        is_enum = name == NULL_VALUE or (
            name in self._types and isinstance(self._types[name].proto, pb.EnumDescriptorProto)
        )
        taken_for = "an enum" if each.type == FieldDescriptorProto.TYPE_ENUM else "a message"
        if is_enum != (taken_for == "an enum"):
            raise ValueError(f"{each.name!r} takes {name!r} for {taken_for}")
        return name

    def _in_order(self, needed: dict[str, list[str]]) -> list[str]:
        """Those files, each after those that it uses or imports."""
        imports = {
            name: [*used, *(i for i in self._files[name].dependency if i in needed)] for name, used in needed.items()
        }
        try:
            found = graphlib.TopologicalSorter({name: sorted({*each}) for name, each in imports.items()}).static_order()
            return [name for name in found if name in needed]
        except graphlib.CycleError as error:
            raise ValueError(f"files import each other in a circle: {' '.join(map(repr, error.args[1]))}") from error

    # What is in them

    def _count(self, members: int) -> None:
        self._members += members
        if self._members > MAX_MEMBERS:
            raise ValueError(f"it has over {MAX_MEMBERS} fields, values of enums and reserved ones")

    def _of_message(self, name: str, found: _Type) -> MessageType:
        proto: pb.DescriptorProto = found.proto
        self._count(len(proto.field) + len(proto.reserved_range) + len(proto.reserved_name))
        if proto.extension_range:
            raise ValueError(f"{name!r} has a range for extensions: JSON has no names for them")
        fields = tuple(self._field(name, proto, each) for each in proto.field)
        if len({each.number for each in fields}) != len(fields):
            raise ValueError(f"{name!r} has two fields of the same number")
        spelled: dict[str, Field] = {}
        for each in fields:
            for text in {each.name, each.json_name}:
                if text in spelled:
                    raise ValueError(f"{name!r} has two fields that are {text!r} in JSON")
                spelled[text] = each
        ranges = [(each.start, each.end) for each in proto.reserved_range]
        return MessageType(name, fields, _reserved(name, ranges, proto.reserved_name), spelled)

    def _field(self, message: str, proto: pb.DescriptorProto, each: FieldDescriptorProto) -> Field:
        place = f"{message}.{each.name}"
        if not 1 <= each.number <= _MAX_NUMBER:
            raise ValueError(f"{place!r} has the number {each.number}: 1 to {_MAX_NUMBER} are allowed")
        if each.label == FieldDescriptorProto.LABEL_REQUIRED:
            raise ValueError(
                f"{place!r} is required: a JSON Schema says what has to be there, Protobuf's JSON does not"
            )
        oneof = ""
        if each.HasField("oneof_index"):
            if not 0 <= each.oneof_index < len(proto.oneof_decl):
                raise ValueError(f"{place!r} is in a oneof that is not there")
            oneof = "" if each.proto3_optional else proto.oneof_decl[each.oneof_index].name
        repeated, key, of = each.label == FieldDescriptorProto.LABEL_REPEATED, "", each
        if each.type == FieldDescriptorProto.TYPE_MESSAGE and each.type_name[1:] in self._types:
            entry = self._types[each.type_name[1:]]
            if entry.proto.options.map_entry:
                if not repeated or entry.parent != message:
                    raise ValueError(f"{place!r} is of a type that is the entry of a map")
                key, of = self._entry(place, entry.proto)
        kind = _SCALARS.get(of.type) or ("enum" if of.type == FieldDescriptorProto.TYPE_ENUM else "message")
        type_name = "" if of.type in _SCALARS else self._type_name(of)
        if each.HasField("json_name") and not each.json_name:
            raise ValueError(f"{place!r} has no name in JSON")
        json_name = each.json_name or json_name_of(each.name)
        return Field(
            each.name, json_name, each.number, kind, type_name, repeated, key, oneof, each.default_value, place
        )

    def _entry(self, place: str, proto: pb.DescriptorProto) -> tuple[str, FieldDescriptorProto]:
        """The type of the keys of a map, and the field of its values."""
        shape = [(each.name, each.number, each.label) for each in proto.field]
        if (
            shape
            == [("key", 1, FieldDescriptorProto.LABEL_OPTIONAL), ("value", 2, FieldDescriptorProto.LABEL_OPTIONAL)]
            and not proto.nested_type
        ):
            key, value = proto.field
            of = self._types.get(value.type_name[1:])
            nested = isinstance(of and of.proto, pb.DescriptorProto) and of is not None and of.proto.options.map_entry
            if _SCALARS.get(key.type) in _KEYS and not nested:
                return _SCALARS[key.type], value
        raise ValueError(f"{place!r} is no map that protoc makes")

    def _enum(self, name: str, found: _Type) -> EnumType:
        proto: pb.EnumDescriptorProto = found.proto
        self._count(len(proto.value) + len(proto.reserved_range) + len(proto.reserved_name))
        values = {each.name: each.number for each in proto.value}
        if not values or len(values) != len(proto.value):
            raise ValueError(f"{name!r} has no value, or two of the same name")
        closed = self._files[found.file].syntax != "proto3"
        if not closed and proto.value[0].number:
            raise ValueError(f"{name!r} does not begin with the number 0")
        ranges = [(each.start, each.end + 1) for each in proto.reserved_range]
        return EnumType(name, values, frozenset(values.values()), closed, _reserved(name, ranges, proto.reserved_name))


def _check_chains(messages: dict[str, MessageType]) -> None:
    """Goes the way of the library, which makes the classes of a message's fields while it makes that of the message."""
    seen: set[str] = set()
    for first in messages:
        chain: list[Iterator[str]] = [iter((first,))]
        while chain:
            name = next(chain[-1], None)
            if name is None:
                chain.pop()
            elif name in messages and name not in seen:
                seen.add(name)
                if len(chain) > MAX_CHAIN:
                    raise ValueError(f"over {MAX_CHAIN} messages have each a field of the next one, down to {name!r}")
                chain.append(each.type_name for each in messages[name].fields)


def _reserved(name: str, ranges: list[tuple[int, int]], names: Iterable[str]) -> Reserved:
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if start >= end:
            raise ValueError(f"{name!r} reserves numbers that end before they begin")
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return Reserved(tuple(found), frozenset(names))


def message_class(pool: DescriptorPool, name: str) -> type[Message]:
    """The class of a message of a pool."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
