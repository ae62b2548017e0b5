"""Avro schemas, as JSON Schemas that accept what is their JSON encoding. So one engine checks values of both kinds, in
bounded time. It needs ``avro``: the extra ``schemas`` of ``ringcast-wire``. Only who has such a schema loads it.

A field with a default may be left out of a value: a schema that got one more field accepts the values that are there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

import avro.errors
import avro.schema
import msgspec

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DRAFT: Final = "http://json-schema.org/draft-04/schema#"
"""The last one for which 1.0 is no integer: nor does Avro's JSON take it for one."""
_BYTES: Final = {"type": "string", "pattern": r"^[\u0000-\u00ff]*$"}
_FLOAT_MAX: Final = 3.4028234663852886e38
_PRIMITIVES: Final[dict[str, dict[str, Any]]] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "int": {"type": "integer", "minimum": -(1 << 31), "maximum": (1 << 31) - 1},
    "long": {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
    "float": {"type": "number", "minimum": -_FLOAT_MAX, "maximum": _FLOAT_MAX},
    "double": {"type": "number"},
    "bytes": _BYTES,
    "string": {"type": "string"},
}
_NAMED: Final = frozenset({"record", "enum", "fixed"})

Compile = Callable[[dict[str, Any]], Any]
"""Makes a validator of ``jsonschema-rs`` of a JSON Schema, if that may be used."""


def parse(definition: str, max_depth: int) -> avro.schema.Schema:
    """An Avro schema, without its logical types, which change nothing of what a value may be.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    try:
        decoded = msgspec.json.decode(definition)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {max_depth} deep") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from error
    plain = _plain(decoded, max_depth, max_depth)
    if isinstance(plain, str) and plain not in _PRIMITIVES:
        raise ValueError(f"{plain!r} is no type of Avro")
    try:
        return avro.schema.make_avsc_object(plain)
    except (avro.errors.AvroException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(str(error) or "it is no Avro schema") from error


def to_json_schema(schema: avro.schema.Schema, compiled: Compile) -> dict[str, Any]:
    """What accepts the JSON encoding of an Avro schema.

    Raises:
        ValueError: it is recursive, or is no Avro schema after all.
    """
    found = _Translator(tagged=True).document(schema)
    _check_defaults(schema, compiled)
    return found


def _plain(node: Any, max_depth: int, left: int) -> Any:
    """A part of a definition without its logical types."""
    if left < 0:
        raise ValueError(f"it is nested more than {max_depth} deep")
    if isinstance(node, list):
        return [_plain(each, max_depth, left - 1) for each in node]
    if not isinstance(node, dict):
        return node
    aliases = node.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ValueError("aliases are a list of names")
    return {
        name: each if name == "default" else _plain(each, max_depth, left - 1)
        for name, each in node.items()
        if name != "logicalType"
    }


class _Translator:
    """Makes JSON Schemas of the types of one Avro schema, each named one once, which others refer to.

    ``tagged``: of values, where what is of a union names its branch; else of defaults, where it does not.
    """

    def __init__(self, *, tagged: bool) -> None:
        self._tagged = tagged
        self._types: dict[str, dict[str, Any] | None] = {}
        self.defaults: list[tuple[str, dict[str, Any], Any]] = []
        """Those that were met: of what, its type as a JSON Schema, the default."""

    def document(self, schema: avro.schema.Schema) -> dict[str, Any]:
        """The JSON Schema of all."""
        return self.with_types(self._type(schema))

    def with_types(self, node: dict[str, Any]) -> dict[str, Any]:
        """A part with all that it may refer to."""
        return {"$schema": _DRAFT, **node, "definitions": dict(self._types)}

    def _type(self, schema: Any) -> dict[str, Any]:
        kind = schema.type
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kind in _NAMED:
            return self._named(schema)
        if kind == "array":
            return {"type": "array", "items": self._type(schema.items)}
        if kind == "map":
            return {"type": "object", "additionalProperties": self._type(schema.values)}
        if kind == "union" and not isinstance(schema, avro.schema.ErrorUnionSchema):
            return self._union(schema)
        raise ValueError(f"the type {kind!r} is not for values")

    def _named(self, schema: Any) -> dict[str, Any]:
        name = schema.fullname
        if not all(map(_NAME.fullmatch, name.split("."))):
            raise ValueError(f"{name!r} is no name")
        if name not in self._types:
            self._types[name] = None
            self._types[name] = {"record": self._record, "enum": self._enum, "fixed": self._fixed}[schema.type](schema)
        elif self._types[name] is None:
            raise ValueError(f"{name!r} contains itself")
        return {"$ref": f"#/definitions/{name}"}

    def _record(self, schema: Any) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for field in schema.fields:
            if not _NAME.fullmatch(field.name):
                raise ValueError(f"{field.name!r} is no name of a field")
            properties[field.name] = found = self._type(field.type)
            if field.has_default:
                self.defaults.append((f"{schema.fullname}.{field.name}", found, field.default))
        required = [field.name for field in schema.fields if not field.has_default]
        found = {"type": "object", "properties": properties, "additionalProperties": False}
        return found | ({"required": required} if required else {})

    def _enum(self, schema: Any) -> dict[str, Any]:
        symbols = schema.symbols
        if not isinstance(symbols, list) or not symbols or not all(map(_NAME.fullmatch, symbols)):
            raise ValueError(f"the symbols of {schema.fullname!r} are no list of names")
        return {"enum": symbols}

    def _fixed(self, schema: Any) -> dict[str, Any]:
        return {**_BYTES, "minLength": schema.size, "maxLength": schema.size}

    def _union(self, schema: Any) -> dict[str, Any]:
        branches = {
            branch.fullname if branch.type in _NAMED else branch.type: self._type(branch) for branch in schema.schemas
        }
        if len(branches) != len(schema.schemas) or not branches:
            raise ValueError("a union has no branch, or two that are the same")
        if not self._tagged:
            return {"anyOf": [*branches.values()]}
        types = ["null"] if branches.pop("null", None) is not None else []
        if not branches:
            return {"type": "null"}
        one = {"properties": branches, "additionalProperties": False, "minProperties": 1, "maxProperties": 1}
        return {"type": [*types, "object"], **one}


def _check_defaults(schema: avro.schema.Schema, compiled: Compile) -> None:
    """Looks whether the defaults of fields fit their types: all of them as properties of one object.

    Raises:
        ValueError: one does not.
    """
    translator = _Translator(tagged=False)
    translator.document(schema)
    if not (found := translator.defaults):
        return
    types = {str(number): kind for number, (_, kind, _) in enumerate(found)}
    values = {str(number): default for number, (_, _, default) in enumerate(found)}
    validator = compiled(translator.with_types({"properties": types}))
    for error in validator.iter_errors(values):
        name = found[int(cast(str, error.instance_path[0]))][0]
        raise ValueError(f"the default of {name!r} does not fit its type: {error.message}")
