"""The options of a CSV file in a specification. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringcast_wire import InvalidInputError, shown
from ringcast_wire.csv_reader import CsvRules

_LISTING: Final = frozenset({"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"})
"""Spark's options that say which files are meant."""
_TAKEN: Final = (
    "sep, header, quote, escape, comment, encoding, nullValue, multiLine, pathGlobFilter, recursiveFileLookup, "
    "modifiedBefore, modifiedAfter"
)


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How the files are read, and which (``listing``)."""

    rules: CsvRules
    header: bool
    null_value: str
    encoding: str
    listing: Mapping[str, str]


def parse_csv_options(given: Mapping[str, str]) -> CsvOptions:
    """Options by Spark's names, as far as they mean something to RFC 4180.

    Raises:
        InvalidInputError: one is unknown, or its value is not allowed.
    """
    options = {name.lower(): text for name, text in given.items()}
    listing = {name: options.pop(name) for name in list(options) if name in _LISTING}
    delimiter = options.pop("delimiter", None) or options.pop("sep", ",")
    encoding = options.pop("charset", None) or options.pop("encoding", "UTF-8")
    rules = CsvRules(
        _character("sep", "\t" if delimiter == r"\t" else delimiter),
        quote := _character("quote", options.pop("quote", '"')),
        _character("escape", options.pop("escape", quote)),
        options.pop("comment", ""),
        _encoding(encoding),
    )
    header, null_value = options.pop("header", "true").lower(), options.pop("nullvalue", "")
    if header not in ("true", "false"):
        raise _refusal("header", f"is {shown(header)}: true or false is allowed")
    if options.pop("multiline", "true").lower() != "true":
        raise _refusal("multiLine", "is false: a quoted field may hold line breaks")
    for name in options:
        raise _refusal(name, f"is not one of a CSV file: there are {_TAKEN}")
    return CsvOptions(rules, header == "true", null_value, encoding, listing)


def _character(name: str, text: str) -> str:
    if len(text) != 1 or text in "\r\n":
        raise _refusal(name, f"is {shown(text)}: one character is allowed")
    return text


def _encoding(name: str) -> str:
    try:
        "".encode(name)
    except LookupError:
        raise _refusal("encoding", f"is {shown(name)}: Python knows no such encoding") from None
    return name.upper()


def _refusal(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"source.options.{name} {why}", field=f"source.options.{name}")
