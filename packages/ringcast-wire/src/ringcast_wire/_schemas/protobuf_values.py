"""Values of a Protobuf message in its JSON form. Only who has such a schema loads it.

The library is the judge: what it can't read is refused. Before that a look of our own says where in the value something
is wrong, and is stricter in what libraries of other languages are stricter in: each name once, numbers and base64 as
they are written, no numbers where an enum does not have them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from google.protobuf import json_format

from ringcast_wire._schemas.protobuf import (
    ANY,
    NULL_VALUE,
    WELL_KNOWN,
    EnumType,
    Field,
    MessageType,
    ProtobufSchema,
    message_class,
)

MAX_VALUE_BYTES: Final = 256 << 10
"""Of a value. The library spells out where in a value it is for each part of it, so the longest names that fit cost
the square of it: half a second."""
MAX_COST: Final = 1 << 24
"""Bytes of a value times fields of the largest message, and twenty: the library looks at all fields of a message for
each ``{}`` of a value. A second at the very worst."""
_FIELDS_ALWAYS: Final = 20
MAX_DEPTH: Final = 64
"""Objects and lists in each other."""

_INTEGERS: Final = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(1 << 31), (1 << 31) - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, (1 << 32) - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(1 << 63), (1 << 63) - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, (1 << 64) - 1)),
}
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_FLOAT_MAX: Final = 3.4028234663852886e38
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*")
_WRAPPED: Final = {
    f"google.protobuf.{name}Value": kind
    for name, kind in (
        *(("Double", "double"), ("Float", "float"), ("Int64", "int64"), ("UInt64", "uint64"), ("Int32", "int32")),
        *(("UInt32", "uint32"), ("Bool", "bool"), ("String", "string"), ("Bytes", "bytes")),
    )
}
_MASK: Final = re.compile(r"(?:[A-Za-z0-9.]+(?:,[A-Za-z0-9.]+)*)?")
_FIELD_MASK: Final = "google.protobuf.FieldMask"
_TEXTS: Final = {
    "google.protobuf.Timestamp": "time as 2026-11-27T09:30:00Z",
    "google.protobuf.Duration": "duration as 1.5s",
    _FIELD_MASK: "field mask as user.name,limit",
}
_VALUE: Final = "google.protobuf.Value"
_FREE: Final = {_VALUE: object, "google.protobuf.Struct": dict, "google.protobuf.ListValue": list}


class BrokenValueError(ValueError):
    """A value is no JSON of the message: where, what of the schema says so, why, and what is there."""

    def __init__(self, rule: str, message: str, found: Any, *path: str | int) -> None:
        super().__init__(message)
        self.path = [*path]
        self.rule = rule
        self.message = message
        self.found = found


class ProtobufValues:
    """Checks values; any number of threads may.

    Raises:
        ValueError: the library does not take the schema.
    """

    def __init__(self, schema: ProtobufSchema) -> None:
        self._schema = schema
        self._pool = schema.pool()
        names = (*schema.messages, *_TEXTS)  # all of them now, in the order for which chains were checked
        self._classes: dict[str, Any] = {name: message_class(self._pool, name) for name in names}
        largest = max((len(each.fields) for each in schema.messages.values()), default=0)
        self.most_bytes = min(MAX_VALUE_BYTES, MAX_COST // (largest + _FIELDS_ALWAYS))

    def check(self, value: str) -> None:
        """Refuses what is no JSON of the message.

        Raises:
            BrokenValueError: it is JSON, but of something else.
            ValueError, RecursionError: it is no JSON, or nested too deeply.
        """
        found = json.loads(value, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_float)
        self._message(self._schema.messages[self._schema.message], found, 1)
        try:
            json_format.ParseDict(found, self._classes[self._schema.message](), descriptor_pool=self._pool)
        except (json_format.ParseError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise BrokenValueError(self._schema.message, str(error), found) from error

    def _message(self, message: MessageType, value: Any, depth: int, skip: str | None = None) -> None:
        if not isinstance(value, dict):
            raise BrokenValueError(message.name, "the value is no object", value)
        _check_depth(message.name, value, depth)
        seen: dict[str, str] = {}
        for name, each in value.items():
            if name == skip:
                continue
            field = message.spelled.get(name)
            if field is None:
                raise BrokenValueError(message.name, "there is no such field", each, name)
            if (before := seen.setdefault(field.name, name)) is not name:
                raise BrokenValueError(message.name, f"the field is there already, as {before!r}", each, name)
            rule = field.place
            try:
                if each is None:
                    continue  # as if it were not there
                if field.oneof and (other := seen.setdefault(f"oneof {field.oneof}", name)) is not name:
                    _broken(rule, f"{other!r} of the oneof {field.oneof!r} is there too", each)
                self._field(field, rule, each, depth + 1)
            except BrokenValueError as error:
                error.path.insert(0, name)
                raise

    def _field(self, field: Field, rule: str, value: Any, depth: int) -> None:
        if field.key:
            if not isinstance(value, dict):
                _broken(rule, "the value is no object, as a map is", value)
            for key, each in value.items():
                self._at(key, self._entry, field, rule, key, each, depth)
        elif field.repeated:
            if not isinstance(value, list):
                _broken(rule, "the value is no list", value)
            for number, each in enumerate(value):
                self._at(number, self._element, field, rule, each, depth)
        else:
            self._one(field, rule, value, depth)

    def _at(self, step: str | int, check: Callable[..., None], *words: Any) -> None:
        try:
            check(*words)
        except BrokenValueError as error:
            error.path.insert(0, step)
            raise

    def _entry(self, field: Field, rule: str, key: str, value: Any, depth: int) -> None:
        if field.key == "bool":
            if key not in ("true", "false"):
                _broken(rule, "the key is neither true nor false", key)
        else:
            _SCALARS[field.key](rule, key)
        self._element(field, rule, value, depth)

    def _element(self, field: Field, rule: str, value: Any, depth: int) -> None:
        if value is None and field.type_name not in (_VALUE, NULL_VALUE):
            _broken(rule, "null can't be in a list or a map", value)
        self._one(field, rule, value, depth + 1)

    def _one(self, field: Field, rule: str, value: Any, depth: int) -> None:
        if field.type == "message":
            self._of_type(field.type_name, rule, value, depth)
        elif field.type == "enum":
            self._enum(field.type_name, rule, value)
        else:
            _SCALARS[field.type](rule, value)

    def _of_type(self, name: str, rule: str, value: Any, depth: int) -> None:
        if (message := self._schema.messages.get(name)) is not None:
            self._message(message, value, depth)
        elif (kind := _WRAPPED.get(name)) is not None:
            _SCALARS[kind](rule, value)
        elif name in _FREE:
            if not isinstance(value, _FREE[name]):
                _broken(rule, f"the value is no {'object' if _FREE[name] is dict else 'list'}", value)
            _free(rule, value, depth)
        elif name == ANY:
            self._any(rule, value, depth)
        elif name in _TEXTS:
            self._text(name, rule, value)
        elif value != {}:
            _broken(rule, "the value is no empty object", value)

    def _text(self, name: str, rule: str, value: Any) -> None:
        try:
            if isinstance(value, str) and value.isascii() and (name != _FIELD_MASK or _MASK.fullmatch(value)):
                self._classes[name]().FromJsonString(value)
                return
        except (ValueError, OverflowError):
            pass
        _broken(rule, f"the value is no {_TEXTS[name]}", value)

    def _any(self, rule: str, value: Any, depth: int) -> None:
        if not isinstance(value, dict):
            _broken(rule, "the value is no object", value)
        _check_depth(rule, value, depth)
        if not value:
            return
        url = value.get("@type")
        _, slash, name = url.rpartition("/") if isinstance(url, str) else ("", "", "")
        if not slash:
            _broken(rule, 'the value has no "@type" as type.googleapis.com/acme.Rule', url)
        if (message := self._schema.messages.get(name)) is not None:
            self._message(message, value, depth, skip="@type")
        elif name not in WELL_KNOWN:
            raise BrokenValueError(rule, "there is no such message", url, "@type")
        elif name == "google.protobuf.Empty":
            self._of_type(name, rule, {each: found for each, found in value.items() if each != "@type"}, depth)
        elif value.keys() != {"@type", "value"}:
            _broken(rule, 'the value has not "@type" and "value" alone', value)
        else:
            self._at("value", self._of_type, name, rule, value["value"], depth + 1)

    def _enum(self, name: str, rule: str, value: Any) -> None:
        if name == NULL_VALUE:
            if value not in (None, "NULL_VALUE"):
                _broken(rule, "the value is not null", value)
            return
        enum: EnumType = self._schema.enums[name]
        if isinstance(value, str):
            if value not in enum.values:
                _broken(rule, f"the value is none of {name}", value)
        elif not isinstance(value, int) or isinstance(value, bool):
            _broken(rule, f"the value is no name or number of {name}", value)
        elif enum.closed and value not in enum.numbers:
            _broken(rule, f"the value is no number of {name}", value)
        else:
            _SCALARS["int32"](rule, value)


def _broken(rule: str, message: str, found: Any) -> NoReturn:
    raise BrokenValueError(rule, message, found)


def _check_depth(rule: str, value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        _broken(rule, f"the value is nested more than {MAX_DEPTH} deep", value)


def _free(rule: str, value: Any, depth: int) -> None:
    """Any JSON."""
    if isinstance(value, str):
        _string(rule, value)
    elif isinstance(value, dict | list):
        _check_depth(rule, value, depth)
        steps = value.items() if isinstance(value, dict) else enumerate(value)
        for step, each in steps:
            try:
                _free(rule, step, depth)
                _free(rule, each, depth + 1)
            except BrokenValueError as error:
                error.path.insert(0, step)
                raise


def _string(rule: str, value: Any) -> None:
    if not isinstance(value, str):
        _broken(rule, "the value is no string", value)
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        _broken(rule, "the value is no Unicode: it has half a surrogate pair", value)


def _bytes(rule: str, value: Any) -> None:
    if isinstance(value, str):
        text = value.rstrip("=")
        padding = len(value) - len(text)
        if _BASE64.fullmatch(text) and len(text) % 4 != 1 and padding in (0, -len(text) % 4):
            return
    _broken(rule, "the value is no base64", value)


def _bool(rule: str, value: Any) -> None:
    if not isinstance(value, bool):
        _broken(rule, "the value is neither true nor false", value)


def _integer(kind: str) -> Callable[[str, Any], None]:
    least, most = _INTEGERS[kind]

    def check(rule: str, value: Any) -> None:
        if isinstance(value, str):
            number = int(value) if _INTEGER.fullmatch(value) else None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            number = None
        else:
            number = int(value) if value == math.floor(value) else None
        if number is None or not least <= number <= most:
            _broken(rule, f"the value is no {kind}", value)

    return check


def _floating(kind: str) -> Callable[[str, Any], None]:
    def check(rule: str, value: Any) -> None:
        number: Any = value
        if isinstance(value, str):
            if value in _NO_NUMBERS:
                return
            number = float(value) if _NUMBER.fullmatch(value) else None
        if isinstance(number, bool) or not isinstance(number, int | float):
            _broken(rule, f"the value is no {kind}", value)
        try:
            fits = math.isfinite(number) and (kind == "double" or abs(number) <= _FLOAT_MAX)
        except OverflowError:
            fits = False
        if not fits:
            _broken(rule, f"the value is no {kind}: it is too large", value)

    return check


_SCALARS: Final[Mapping[str, Callable[[str, Any], None]]] = {
    **{kind: _integer(kind) for kind in _INTEGERS},
    **{kind: _floating(kind) for kind in ("double", "float")},
    "bool": _bool,
    "string": _string,
    "bytes": _bytes,
}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        last = {name: place for place, (name, _) in enumerate(pairs)}
        twice = next(name for place, (name, _) in enumerate(pairs) if last[name] != place)
        raise ValueError(f"an object has {twice[:20]!r} twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _float(text: str) -> float:
    if not math.isfinite(found := float(text)):
        raise ValueError(f"{text[:20]} is larger than any double")
    return found
