"""Whether values of one schema can be read with another.

Of Avro schemas it is what the specification of Avro says of readers and writers. Of JSON Schemas it is that one accepts
whatever the other accepts. That can't be decided for any two of them, so a subset is compared: ``type``, ``enum``,
``properties``, ``required``, ``additionalProperties``, ``items``, and bounds as ``minimum`` and ``maxLength``. Any
other keyword has to be the same in both, or be gone from the one that accepts more. Where it is not, they are taken for
incompatible: nothing is let through that is not certain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec

MAX_STEPS: Final = 50_000
"""Pairs of parts that one comparison looks at, each of which takes as long as the others: half a second or so."""
MAX_TEXT: Final = 4 << 20
"""Characters of all pairs of definitions that one comparison reads, however little of them it compares: a few seconds
for descriptor sets, which take longest."""

_ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
    | {"deprecated", "readOnly", "writeOnly"}
)
_ELSEWHERE: Final = _ANNOTATIONS | {"type"}
"""What is not compared keyword by keyword."""
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
"""Keywords that have values, not schemas."""
_LOWER: Final = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_UPPER: Final = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
_PROPERTIES: Final = frozenset({"properties", "additionalProperties", "patternProperties"})
_ITEMS: Final = frozenset({"items", "prefixItems", "additionalItems"})
_TOGETHER: Final = (_PROPERTIES, _ITEMS, frozenset({"contains", "minContains", "maxContains"}))
"""Keywords that mean something else when one of the others is another one."""
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "string", "number"})
_CONCERNS: Final = (
    dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"), "number")
    | dict.fromkeys(("minLength", "maxLength", "pattern"), "string")
    | dict.fromkeys(("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", *_ITEMS), "array")
    | dict.fromkeys(("minProperties", "maxProperties", "required", "propertyNames", *_PROPERTIES), "object")
)
"""Of which type a value has to be for a keyword to say anything of it."""


class IncompatibleError(Exception):
    """What the message says keeps values of one schema from being read with the other, or it is not known whether."""


class Budget:
    """How much may be compared, and read for that.

    Raises:
        IncompatibleError: on a step or a text that is one too many.
    """

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps
        self._text_left = MAX_TEXT

    def read(self, *definitions: str) -> None:
        """Takes their texts."""
        self._text_left -= sum(map(len, definitions))
        if self._text_left < 0:
            raise IncompatibleError(f"the definitions to compare have over {MAX_TEXT} characters together")

    def step(self) -> None:
        """Takes one."""
        self._left -= 1
        if self._left < 0:
            raise IncompatibleError("they have too many parts to be compared")


def compare_avro(reader: Any, writer: Any, budget: Budget) -> None:
    """Checks that what is written with one Avro schema can be read with another; both as ``avro`` has parsed them.

    Raises:
        IncompatibleError: it can't.
    """
    from avro import compatibility

    class Checker(compatibility.ReaderWriterCompatibilityChecker):
        def get_compatibility(self, *words: Any, **more: Any) -> Any:
            budget.step()
            return super().get_compatibility(*words, **more)

    checker: Any = Checker
    found = checker().get_compatibility(reader, writer)
    if found.compatibility is not compatibility.SchemaCompatibilityType.compatible:
        what = ", ".join(dict.fromkeys(each.value.replace("_", " ") for each in found.incompatibilities))
        said = f"{what} ({', '.join(sorted(found.messages))})"
        places = sorted(found.locations - {"/"}) or ["/"]
        raise IncompatibleError(f"at {', '.join(places)}: {said}")


def compare_json(narrow: dict[str, Any], wide: dict[str, Any], budget: Budget) -> None:
    """Checks that one JSON Schema accepts whatever another one accepts. Both may be registered.

    Raises:
        IncompatibleError: it does not, or that is not known.
    """
    if narrow.get("$schema") != wide.get("$schema"):
        raise IncompatibleError("$schema is another one")
    _Comparison(budget).node(_Expansion(narrow).whole(), _Expansion(wide).whole(), "")


class _Expansion:
    """A schema with what it refers to in the place of references. What several refer to is one object."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._known: dict[str, Any] = {}

    def whole(self) -> Any:
        return self._node(self._schema)

    def _node(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._node(each) for each in node]
        if not isinstance(node, dict):
            return node
        if isinstance(pointer := node.get("$ref"), str):
            for name in node.keys() - _ANNOTATIONS - {"$ref"}:
                raise IncompatibleError(f"{name} beside a $ref is not compared")
            if pointer not in self._known:
                self._known[pointer] = self._node(self._at(pointer))
            return self._known[pointer]
        return {
            name: each if name in _VALUES and not isinstance(each, dict) else self._node(each)
            for name, each in node.items()
        }

    def _at(self, pointer: str) -> Any:
        found: Any = self._schema
        for step in unquote(pointer[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found


class _Comparison:
    """Raises :class:`IncompatibleError` where the wide one of two nodes may refuse what the narrow one accepts."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._digests: dict[int, tuple[Any, bytes]] = {}
        self._sets: dict[int, tuple[Any, frozenset[bytes], frozenset[str]]] = {}

    def node(self, narrow: Any, wide: Any, place: str) -> None:
        self._budget.step()
        if narrow is False or wide is True or self._same(narrow, wide):
            return
        if wide is False:
            raise _breaks(place, "it is not accepted")
        narrow = {} if narrow is True else narrow
        types = self._types(narrow)
        self._type(types, wide, place)
        names = [name for name in wide if name not in _ELSEWHERE and _concerns(name, types)]
        for group in _TOGETHER:
            if not group.isdisjoint(names):
                names = [name for name in names if name not in group]
                self._group(group, narrow, wide, place)
        for name in names:
            self._keyword(name, narrow, wide, place)

    def _type(self, types: frozenset[str], wide: dict[str, Any], place: str) -> None:
        allowed = _declared(wide)
        for name in sorted(types):
            if name not in allowed and not (name == "integer" and "number" in allowed):
                raise _breaks(f"{place}/type", f"{name} is not accepted")

    def _keyword(self, name: str, narrow: dict[str, Any], wide: dict[str, Any], place: str) -> None:
        here = f"{place}/{name}"
        if name == "enum":
            if "enum" not in narrow:
                raise _breaks(here, "values that it does not have are not accepted")
            known = self._set(wide["enum"])[0]
            for value in narrow["enum"]:
                self._budget.step()
                if self._digest(value) not in known:
                    raise _breaks(here, f"{_text(value)} is not accepted")
        elif name == "required":
            required = self._set(narrow.get("required", []))[0]
            for each in wide["required"]:
                if self._digest(each) not in required:
                    raise _breaks(here, f"{_text(each)} is not optional any more")
        elif name in _LOWER or name in _UPPER:
            if not self._within(name, narrow.get(name), wide[name]):
                raise _breaks(here, f"{_text(wide[name])} is stricter")
        elif name in _UNEVALUATED or name not in narrow or not self._same(narrow[name], wide[name]):
            raise _breaks(here, "it differs, and how is not compared")

    def _set(self, values: list[Any]) -> tuple[frozenset[bytes], frozenset[str]]:
        """The digests of values and their types, gathered once however often the list is compared."""
        found = self._sets.get(id(values))
        if found is None:
            digests = frozenset(map(self._digest, values))
            found = self._sets[id(values)] = values, digests, frozenset(map(_type_of, values))
        return found[1:]

    def _types(self, node: dict[str, Any]) -> frozenset[str]:
        """Which a value may be of that a node accepts, and perhaps more."""
        declared = _declared(node)
        if "enum" not in node:
            return declared
        both = declared | ({"integer", "number"} if declared & {"integer", "number"} else set())
        return both & self._set(node["enum"])[1]

    def _within(self, name: str, narrow: Any, wide: Any) -> bool:
        if narrow is None or isinstance(narrow, bool) or isinstance(wide, bool):
            return narrow is not None and self._same(narrow, wide)
        return bool(narrow >= wide if name in _LOWER else narrow <= wide)

    def _group(self, group: frozenset[str], narrow: dict[str, Any], wide: dict[str, Any], place: str) -> None:
        present = group & {*narrow, *wide}
        if all(name in narrow and name in wide and self._same(narrow[name], wide[name]) for name in present):
            return
        if group is _PROPERTIES and not any("patternProperties" in each for each in (narrow, wide)):
            self._properties(narrow, wide, place)
        elif group is _ITEMS and all(_is_plain_list(each) for each in (narrow, wide)):
            self.node(narrow.get("items", True), wide.get("items", True), f"{place}/items")
        else:
            raise _breaks(f"{place}/{min(present)}", "it differs, and how is not compared")

    def _properties(self, narrow: dict[str, Any], wide: dict[str, Any], place: str) -> None:
        before, after = narrow.get("properties", {}), wide.get("properties", {})
        others, allowed = narrow.get("additionalProperties", True), wide.get("additionalProperties", True)
        for name in {**before, **after}:
            here = f"{place}/properties/{name.replace('~', '~0').replace('/', '~1')}"
            self.node(before.get(name, others), after.get(name, allowed), here)
        self.node(others, allowed, f"{place}/additionalProperties")

    def _same(self, one: Any, other: Any) -> bool:
        return self._digest(one) == self._digest(other)

    def _digest(self, node: Any) -> bytes:
        """Of JSON: 1, 1.0 and true are three."""
        if not isinstance(node, dict | list):
            return msgspec.json.encode(node)
        found = self._digests.get(id(node))
        if found is None:
            state = hashlib.blake2b(b"{" if isinstance(node, dict) else b"[", digest_size=16)
            parts = node if isinstance(node, list) else [part for name in sorted(node) for part in (name, node[name])]
            for part in parts:
                text = self._digest(part)
                state.update(len(text).to_bytes(4, "big") + text)
            found = self._digests[id(node)] = node, state.digest()  # with the node: its id is that of no other one then
        return found[1]


def _breaks(place: str, said: str) -> IncompatibleError:
    return IncompatibleError(f"at {place}: {said}" if place else said)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _declared(node: dict[str, Any]) -> frozenset[str]:
    found = node.get("type", _TYPES)
    return frozenset({found} if isinstance(found, str) else cast(Iterable[str], found))


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _concerns(name: str, types: frozenset[str]) -> bool:
    wanted = _CONCERNS.get(name)
    return wanted is None or wanted in types or (wanted == "number" and "integer" in types)


def _is_plain_list(node: dict[str, Any]) -> bool:
    return not {"prefixItems", "additionalItems"} & node.keys() and not isinstance(node.get("items"), list)
