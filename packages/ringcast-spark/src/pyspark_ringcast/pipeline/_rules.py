"""The rules that a specification may name: what normalises a column, and what a value must be like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from ringcast_wire import InvalidInputError, shown

MAX_RULES: Final = 32
"""Normalisers, and validators, of one column."""
MAX_CHOICES: Final = 10_000
MAX_PATTERN_CHARS: Final = 4096


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule with its parameters."""


class Strip(Rule, frozen=True):
    """Without white space at both ends."""


class Squeeze(Rule, frozen=True):
    """Each run of white space as one space."""


class Lower(Rule, frozen=True):
    """In lower case."""


class Upper(Rule, frozen=True):
    """In upper case."""


class Unicode(Rule, frozen=True):
    """In one of the normal forms of Unicode."""

    form: Literal["NFC", "NFKC"]


class EmptyToNull(Rule, frozen=True):
    """Null in place of an empty text."""


class Replace(Rule, frozen=True):
    """``to`` in place of each match of a regular expression, in Java's syntax."""

    regex: str
    to: str = ""


class Default(Rule, frozen=True):
    """``value`` in place of null."""

    value: str


class Required(Rule, frozen=True):
    """Neither null nor empty."""


class Regex(Rule, frozen=True):
    """Matches the whole of a regular expression, in Java's syntax."""

    value: str


class Length(Rule, frozen=True):
    """So many characters (code points), or bytes of UTF-8."""

    min: int = 0
    max: int | None = None
    unit: Literal["characters", "bytes"] = "characters"


class Range(Rule, frozen=True):
    """A number within limits."""

    min: float | None = None
    max: float | None = None


class OneOf(Rule, frozen=True):
    """One of these."""

    value: list[str]


class NotOneOf(Rule, frozen=True):
    """None of these."""

    value: list[str]


class IpNetwork(Rule, frozen=True):
    """An IPv4 or IPv6 network with its prefix length, and no bit set beyond it: ``10.0.0.0/8``, ``2001:db8::/32``."""


NORMALISERS: Final[Mapping[str, tuple[type[Rule], dict[str, Any]]]] = {
    "strip": (Strip, {}),
    "squeeze": (Squeeze, {}),
    "lower": (Lower, {}),
    "upper": (Upper, {}),
    "nfc": (Unicode, {"form": "NFC"}),
    "nfkc": (Unicode, {"form": "NFKC"}),
    "empty_to_null": (EmptyToNull, {}),
    "replace": (Replace, {}),
    "default": (Default, {}),
}
VALIDATORS: Final[Mapping[str, tuple[type[Rule], dict[str, Any]]]] = {
    "required": (Required, {}),
    "regex": (Regex, {}),
    "length": (Length, {}),
    "range": (Range, {}),
    "one_of": (OneOf, {}),
    "not_one_of": (NotOneOf, {}),
    "ip_network": (IpNetwork, {}),
}


def parse_rules(where: str, entries: list[Any], known: Mapping[str, tuple[type[Rule], dict[str, Any]]]) -> list[Rule]:
    """Rules as TOML has them: a name, or a table of one name with its parameters.

    Args:
        where: What the message of an error begins with, e.g. ``columns.network.validate``.

    Raises:
        InvalidInputError: a rule is unknown, or its parameters are not what it takes.
    """
    if len(entries) > MAX_RULES:
        raise InvalidInputError(f"{where} has {len(entries)} rules: at most {MAX_RULES} are allowed", field=where)
    return [_parse_rule(where, entry, known) for entry in entries]


def _parse_rule(where: str, entry: Any, known: Mapping[str, tuple[type[Rule], dict[str, Any]]]) -> Rule:
    if isinstance(entry, str):
        name, given = entry, None
    elif isinstance(entry, dict) and len(entry) == 1:
        ((name, given),) = entry.items()
    else:
        raise InvalidInputError(f"{where} has {shown(entry)}: it must be a name or a table of one name", field=where)
    if name not in known:
        raise InvalidInputError(f"{where}: {shown(name)} is unknown: there are {', '.join(known)}", field=where)
    kind, fixed = known[name]
    try:
        rule = msgspec.convert(_parameters(kind, fixed, given), kind)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{where}: {name} {_plain(error)}", field=where) from None
    _check_rule(where, name, rule)
    return rule


def _parameters(kind: type[Rule], fixed: dict[str, Any], given: Any) -> dict[str, Any]:
    if given is None:
        return fixed
    if fixed or not kind.__struct_fields__:
        raise msgspec.ValidationError("takes no parameters: give its name alone")
    return given if isinstance(given, dict) else {kind.__struct_fields__[0]: given}


def _plain(error: msgspec.ValidationError) -> str:
    text = str(error)
    if "missing required field" in text:
        return f"lacks its parameter: {text}"
    return text[:1].lower() + text[1:]


def _check_rule(where: str, name: str, rule: Rule) -> None:
    match rule:
        case Regex(value=pattern) | Replace(regex=pattern):
            if not 1 <= len(pattern) <= MAX_PATTERN_CHARS:
                raise InvalidInputError(
                    f"{where}: {name} has {len(pattern)} characters: 1 to {MAX_PATTERN_CHARS} are allowed", field=where
                )
        case OneOf(value=choices) | NotOneOf(value=choices):
            if not 1 <= len(choices) <= MAX_CHOICES:
                raise InvalidInputError(
                    f"{where}: {name} has {len(choices)} values: 1 to {MAX_CHOICES} are allowed", field=where
                )
        case Length(min=low, max=high) | Range(min=low, max=high):
            if low is None and high is None:
                raise InvalidInputError(f"{where}: {name} has neither min nor max", field=where)
            if high is not None and low is not None and high < low:
                raise InvalidInputError(f"{where}: {name} has max {high:g} below min {low:g}", field=where)
