"""Checks values against schemas. It needs ``jsonschema-rs`` and ``avro``: the extra ``schemas`` of ``ringcast-wire``.

A schema and a value may both be made to take long. So regular expressions are matched in linear time, references are
followed only within the schema and never in a circle, and what a check may cost, which is the parts of the schema times
the bytes of the value, is bounded: about a second at the very worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from ringcast_wire._common import limits
from ringcast_wire._common.errors import InvalidInputError, RowRule, shown
from ringcast_wire._schemas.compatibility import Budget as Budget
from ringcast_wire._schemas.compatibility import IncompatibleError, compare_avro, compare_json
from ringcast_wire._schemas.kept import KeptSchemas as KeptSchemas
from ringcast_wire._schemas.kinds import SchemaKind
from ringcast_wire.key_ring import ALGORITHM_FIELD

MAX_DEPTH: Final = 64
"""How deep a schema may be nested, with what it refers to."""
MAX_PARTS: Final = 10_000
"""Parts of a schema: what is in its JSON text, and what it refers to as often as it does."""
MAX_COST: Final = 1 << 24
"""Parts of a schema times bytes of a value."""
_PATTERN_PARTS: Final = 100
"""As how many parts a regular expression counts. One of :data:`_PATTERN_BYTES` takes up to 6 µs a byte of the value,
other parts take up to 60 ns."""
_FORMAT_PARTS: Final = 10
_AS_TEXT: Final = frozenset({SchemaKind.REGEX, SchemaKind.PROTOBUF})
"""Kinds that take a value as it is."""
_SAME_PLACE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains", "$ref"}
)
"""Keywords whose schemas say what of a value ``unevaluatedProperties`` and ``unevaluatedItems`` beside them leave."""
_PATTERN_BYTES: Final = 64 * limits.KIB
"""Of a compiled regular expression."""
_MATCHER_BYTES: Final = limits.MIB
"""What matching one may take besides."""
_KEPT_CHARS: Final = 1 * limits.MIB
"""Of schemas that were used last: 150 MB at the very worst."""
_MAX_SAID: Final = 150
_MAX_BREAK: Final = 300
_MAX_POINTER: Final = 100
_REFUSED: Final = ("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_MATCHER_BYTES)
_decode = msgspec.json.Decoder().decode


class Problem(NamedTuple):
    """How a value breaks a schema: where in the value, and which rule, as JSON pointers (empty: as a whole), of a
    Protobuf schema the full name of a field or message; and what is wrong, in words that say nothing of the value.
    ``found``: what is there, cut to 80 characters."""

    where: str
    rule: str
    message: str
    found: str

    @property
    def place(self) -> str:
        """How sentences name where it is, and the rule."""
        where = f"at {_cut(self.where, _MAX_POINTER)}" if self.where else "as a whole"
        return f"{where} (rule {_cut(self.rule, _MAX_POINTER)})" if self.rule else where

    def __str__(self) -> str:
        return f"{self.place}: {self.message}: {self.found}"


class ValueSchema:
    """A schema that is ready to check values; any number of threads may.

    Raises:
        InvalidInputError: the definition is none of its kind, or too large, or could make a check take too long.
    """

    def __init__(self, kind: SchemaKind, definition: str) -> None:
        size = len(definition.encode())
        if not 1 <= size <= limits.MAX_SCHEMA_BYTES:
            raise _wrong(f"it has {size} bytes: 1 to {limits.MAX_SCHEMA_BYTES} are allowed")
        self._kind = kind
        if kind is SchemaKind.PROTOBUF:
            self._validator = _Protobuf(definition)
            self._most_bytes = self._validator.most_bytes
            return
        if kind is SchemaKind.JSON_SCHEMA:
            schema, parts = _checked(definition)
        elif kind is SchemaKind.AVRO:
            schema, parts = _of_avro(definition)
        else:
            _compiled({"pattern": definition})  # alone first: so nothing of it closes the group
            schema, parts = {"pattern": f"^(?:{definition})$"}, _PATTERN_PARTS
        self._validator = _compiled(schema)
        self._most_bytes = MAX_COST // parts

    def accepts(self, value: str) -> bool:
        """Whether a value keeps to the schema."""
        if len(value) > self._most_bytes:
            return False
        try:
            return bool(self._validator.is_valid(self._read(value)))
        except (ValueError, RecursionError):
            return False

    def problem(self, value: str) -> Problem | None:
        """How a value breaks the schema first, or ``None``."""
        if len(value) > self._most_bytes:
            said = f"the value has {len(value)} characters, and this schema checks up to {self._most_bytes}"
            return Problem("", "", said, shown(value))
        if isinstance(self._validator, _Protobuf):
            return self._validator.problem(value)
        try:
            self._validator.validate(self._read(value))
        except jsonschema_rs.ValidationError as error:
            if self._kind is SchemaKind.REGEX:
                return Problem("", "", "the value does not match the regular expression", shown(value))
            found = shown(error.instance) if error.instance_path else shown(value)
            rule = "" if self._kind is SchemaKind.AVRO else _pointer(error.schema_path)
            return Problem(_pointer(error.instance_path), rule, _cut(error.message), found)
        except RecursionError:
            return Problem("", "", "the value is nested too deeply", shown(value))
        except (ValueError, msgspec.DecodeError) as error:
            said = "the value is no JSON" if isinstance(error, msgspec.DecodeError) else "the value can't be checked"
            return Problem("", "", f"{said} ({_cut(str(error))})", shown(value))
        return None

    def _read(self, value: str) -> Any:
        return value if self._kind in _AS_TEXT else _decode(value)


class _Protobuf:
    """What checks values against a Protobuf message, in the place of a validator of ``jsonschema-rs``."""

    def __init__(self, definition: str) -> None:
        from ringcast_wire._schemas import protobuf, protobuf_values  # a library that few need

        try:
            self._values = protobuf_values.ProtobufValues(protobuf.parse(definition))
        except ValueError as error:
            raise _wrong(_cut(str(error))) from error
        self._broken = protobuf_values.BrokenValueError
        self.most_bytes = self._values.most_bytes

    def is_valid(self, value: str) -> bool:
        self._values.check(value)
        return True

    def problem(self, value: str) -> Problem | None:
        try:
            self._values.check(value)
        except self._broken as error:
            found = shown(error.found) if error.path else shown(value)
            return Problem(_pointer(error.path), error.rule, _cut(error.message), found)
        except RecursionError:
            return Problem("", "", "the value is nested too deeply", shown(value))
        except ValueError as error:
            return Problem("", "", f"the value is no JSON ({_cut(str(error))})", shown(value))
        return None


def protobuf_definition(descriptors: bytes, message: str) -> str:
    """The definition of a schema of the kind ``PROTOBUF``: of a descriptor set as
    ``protoc --include_imports --descriptor_set_out`` writes it, and the full name of a message in it.

    The files that the message does not need are left out, and so are comments, options, services and extensions.

    Raises:
        InvalidInputError: it is no such set, or none that can be used.
    """
    from ringcast_wire._schemas import protobuf

    try:
        return protobuf.read(descriptors, message).definition()
    except ValueError as error:
        raise _wrong(_cut(str(error))) from error


_kept: Final = KeptSchemas[tuple[SchemaKind, str], ValueSchema](_KEPT_CHARS)


def value_schema(kind: SchemaKind, definition: str) -> ValueSchema:
    """The same, of which the last ones are kept.

    Raises:
        InvalidInputError: as of :class:`ValueSchema`.
    """
    found = _kept.get((kind, definition))
    if found is None:
        found = ValueSchema(kind, definition)
        _kept.put((kind, definition), found, definition)
    return found


def incompatibility(
    kind: SchemaKind, reader: str, writer: str, budget: Budget, *, writer_is_newer: bool = False
) -> str | None:
    """Why not all values of one schema (``writer``) can be read with another of the same kind (``reader``), or
    ``None``. Both may be registered. Which of them is newer says who has to keep what the other has reserved."""
    try:
        budget.read(reader, writer)
        if kind is SchemaKind.AVRO:
            from ringcast_wire._schemas import avro

            compare_avro(avro.parse(reader, MAX_DEPTH), avro.parse(writer, MAX_DEPTH), budget)
        elif kind is SchemaKind.PROTOBUF:
            from ringcast_wire._schemas import protobuf
            from ringcast_wire._schemas.protobuf_compatibility import compare_protobuf

            both = protobuf.parsed(reader), protobuf.parsed(writer)
            compare_protobuf(*both, budget, writer_is_newer=writer_is_newer)
        elif kind is SchemaKind.JSON_SCHEMA:
            compare_json(narrow=_decode(writer), wide=_decode(reader), budget=budget)
        elif reader != writer:
            return "regular expressions are not compared"
    except IncompatibleError as error:
        return _cut(str(error), _MAX_BREAK)
    return None


def is_sealed(metadata: Mapping[str, str] | None) -> bool:
    """Whether a value is encrypted, so that nobody without its key can check it."""
    return metadata is not None and ALGORITHM_FIELD in metadata


def broken(place: str, version: int, row_id: str, problem: Problem) -> InvalidInputError:
    """What a row is refused with; ``place`` is ``STORE/KEY``."""
    return InvalidInputError(
        f"row {shown(row_id)} of {place} breaks version {version} of its schema {problem}",
        field="value",
        rule=RowRule.SCHEMA,
    )


SEALED: Final = Problem("", "", "the value is encrypted, so it can't be checked", "(encrypted)")
"""Of every encrypted value."""


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError(f"definition is no schema that can be used: {message}", field="definition")


def _compiled(schema: Any) -> Any:
    try:
        return jsonschema_rs.validator_for(
            schema,
            validate_formats=True,
            ignore_unknown_formats=False,
            offline=True,
            mask="the value",
            pattern_options=_PATTERNS,
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        where = _pointer(getattr(error, "instance_path", ()))
        found = getattr(error, "instance", None)
        said = getattr(error, "message", None) or str(error)
        if isinstance(found, str) and said.endswith(' is not a "regex"'):
            said = (
                f"{shown(found)} is no regular expression that is matched in linear time and has up to "
                f"{_PATTERN_BYTES} bytes when it is compiled"
            )
        raise _wrong(f"{f'at {_cut(where)}: ' if where else ''}{_cut(said)}") from error


def _checked(definition: str) -> tuple[Any, int]:
    """A JSON Schema, and how many parts it has.

    Raises:
        InvalidInputError: it is none, refers to another or to itself, or is too large.
    """
    try:
        schema = _decode(definition)
    except RecursionError as error:
        raise _wrong(f"it is nested more than {MAX_DEPTH} deep") from error
    except msgspec.DecodeError as error:
        raise _wrong(f"it is no JSON ({error})") from error
    if not isinstance(schema, dict):
        raise _wrong("a JSON Schema is an object")
    return schema, _parts(schema)


def _of_avro(definition: str) -> tuple[Any, int]:
    """The JSON Schema of an Avro schema, and how many parts it has; raises as :func:`_checked`."""
    from ringcast_wire._schemas import avro  # a library that few need

    def compiled(schema: dict[str, Any]) -> Any:
        _parts(schema)
        return _compiled(schema)

    try:
        schema = avro.to_json_schema(avro.parse(definition, MAX_DEPTH), compiled)
    except InvalidInputError:
        raise
    except ValueError as error:
        raise _wrong(_cut(str(error))) from error
    return schema, _parts(schema)


def _parts(schema: dict[str, Any]) -> int:
    return _Parts(schema).count(schema, 0, root=True).parts


class _Count(NamedTuple):
    """Parts that a check goes through, and those that it takes to find out what of a value they have evaluated: for
    that each schema in another is checked again, level by level."""

    parts: int
    again: int = 0


class _Parts:
    """Counts the parts of a schema, each reference as what it refers to."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._known: dict[str, tuple[_Count, int]] = {}
        self._open: set[str] = set()
        self._deepest = 0

    def count(self, node: Any, depth: int, *, root: bool = False) -> _Count:
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            raise _wrong(f"it is nested more than {MAX_DEPTH} deep, with what it refers to")
        parts, again = 1, 0
        if isinstance(node, list):
            for each in node:
                found = self.count(each, depth + 1)
                parts, again = parts + found.parts, again + found.again
        elif isinstance(node, dict):
            for name, each in node.items():
                found = self._entry(name, each, depth, root=root)
                parts += found.parts
                if name in _SAME_PLACE:
                    again += found.parts + found.again
            if "unevaluatedProperties" in node or "unevaluatedItems" in node:
                parts += again
        if parts > MAX_PARTS:
            raise _wrong(f"it has over {MAX_PARTS} parts, with what it refers to as often as it does")
        return _Count(parts, again)

    def _entry(self, name: str, value: Any, depth: int, *, root: bool) -> _Count:
        if name == "patternProperties" and isinstance(value, dict):
            return _Count(self.count(value, depth + 1).parts + _PATTERN_PARTS * len(value))
        if name == "dependentSchemas" and isinstance(value, dict):
            return self.count([*value.values()], depth + 1)
        if not isinstance(value, str):
            return self.count(value, depth + 1)
        if name in _REFUSED or (name in {"$id", "id"} and not root and self._names_schemas(name)):
            raise _wrong(f"{name} is not taken: refer to a part of the schema with $ref and a JSON pointer (#/...)")
        if name == "$ref":
            return self._reference(value, depth)
        if name == "pattern" or (name == "format" and value == "regex"):
            return _Count(_PATTERN_PARTS)
        return _Count(_FORMAT_PARTS if name == "format" else 1)

    def _names_schemas(self, name: str) -> bool:
        """Whether entries of this name change what references refer to: ``id`` did so in draft 4."""
        return name == "$id" or "draft-04" in str(self._schema.get("$schema"))

    def _reference(self, pointer: str, depth: int) -> _Count:
        if not pointer.startswith("#"):
            raise _wrong(f"it refers to {shown(pointer)}: only references within it (#/...) are followed")
        if pointer in self._open:
            raise _wrong(f"it refers to {shown(pointer)} in a circle")
        found = self._known.get(pointer)
        if found is None:
            self._open.add(pointer)
            before, self._deepest = self._deepest, depth
            count = self.count(self._at(pointer), depth + 1)
            found = self._known[pointer] = count, self._deepest - depth
            self._deepest = max(before, self._deepest)
            self._open.remove(pointer)
        count, levels = found
        if depth + levels > MAX_DEPTH:
            raise _wrong(f"it is nested more than {MAX_DEPTH} deep, with what it refers to")
        self._deepest = max(self._deepest, depth + levels)
        return count

    def _at(self, pointer: str) -> Any:
        found: Any = self._schema
        for step in unquote(pointer[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise _wrong(f"it refers to {shown(pointer)}, which is not there") from None
        return found


def _pointer(path: Sequence[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _cut(text: str, most: int = _MAX_SAID) -> str:
    """A text that is not ours as one line: what is in a value may come into it."""
    text = "".join(char if char.isprintable() else "?" for char in " ".join(text[: 2 * most].split()))
    return text if len(text) <= most else text[: most - 1] + "…"
