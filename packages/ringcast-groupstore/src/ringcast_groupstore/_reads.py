"""The reading verbs, the same for a store, a namespace, a transaction and a snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from ringcast_groupstore import _entries
from ringcast_groupstore._checks import check_there
from ringcast_groupstore._checksum import checksum
from ringcast_groupstore._errors import InputError, NotFoundError
from ringcast_groupstore._render import render
from ringcast_groupstore._source import Source
from ringcast_groupstore._types import Entry, Value

D = TypeVar("D")


class Reads:
    """What can be read. Whatever has expired is never seen, whether it was purged yet or not."""

    __slots__ = ("_prefix", "_source")

    def __init__(self, source: Source, prefix: str = "") -> None:
        self._source = source
        self._prefix = prefix
        """What stands before the group names of the caller in the file: a namespace and a colon, or nothing."""

    def get(self, group: str, key: str, default: D | None = None) -> Value | D | None:
        """The value of a key, or ``default`` when there is none. What has expired is removed on the way."""
        name = self._in_file(group, key)
        found = self._found(name, key, self._source.rows(_entries.GET, (name, key)))
        return default if found is None else found[0]

    def require(self, group: str, key: str) -> Value:
        """The value of a key.

        Raises:
            NotFoundError: there is none.
        """
        value = self.get(group, key)
        if value is None:
            raise NotFoundError(f"group {group!r} has no key {key!r}")
        return value

    def entry(self, group: str, key: str) -> Entry | None:
        """The value of a key with its expiry and revision, or ``None``."""
        name = self._in_file(group, key)
        found = self._found(name, key, self._source.rows(_entries.GET, (name, key)))
        return None if found is None else Entry(group, key, *found)

    def contains(self, group: str, key: str) -> bool:
        """Whether the group has the key."""
        return bool(self._source.rows(_entries.CONTAINS, (self._in_file(group, key), key, self._source.now())))

    def get_many(self, group: str, keys: Iterable[str]) -> dict[str, Value]:
        """Those of ``keys`` that the group has, with their values, all of one moment.

        Raises:
            InputError: more keys than a transaction may change.
        """
        wanted = list(keys)
        if len(wanted) > self._source.limits.max_changes:
            raise InputError(f"keys are {len(wanted)}: at most {self._source.limits.max_changes} are allowed")
        for key in wanted:
            check_there("key", key)
        name, now = self._in_file(group), self._source.now()
        return dict(
            sound(self._source, name, self._source.each(_entries.GET_LIVE, ((name, key, now) for key in wanted)))
        )

    def get_all(self, group: str) -> dict[str, Value]:
        """Everything in the group, of one moment; for a large group see :meth:`items`."""
        name = self._in_file(group)
        return dict(sound(self._source, name, self._source.rows(_entries.ITEMS, (name, "", self._source.now(), -1))))

    def items(self, group: str) -> Iterator[tuple[str, Value]]:
        """Keys and values of the group in the order of the keys.

        Streamed page by page, at most 1,000 rows or about 1 MiB of values at once, each page of its own moment: what
        is written meanwhile may be seen or not. Holds nothing open between pages. For one moment, use a snapshot.
        """
        return chain.from_iterable(self._pages.items(group))

    def keys(self, group: str) -> Iterator[str]:
        """Keys of the group in order, streamed as :meth:`items` are."""
        return chain.from_iterable(self._pages.keys(group))

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Everything in the groups whose name begins with ``prefix``, in the order of group and key, streamed alike."""
        return chain.from_iterable(self._pages.entries(prefix))

    def groups(self, prefix: str = "") -> Iterator[str]:
        """Names of the groups that begin with ``prefix`` and have a key, in order; one step in the tree for each."""
        names = _entries.group_names(self._source.rows, self._prefix + prefix, self._source.now)
        return (name[len(self._prefix) :] for name in names)

    def count(self, group: str) -> int:
        """How many keys the group has."""
        return _entries.count_of_group(self._source.rows, self._in_file(group), self._source.now())

    def count_all(self, prefix: str = "") -> int:
        """How many keys the groups have whose name begins with ``prefix``."""
        return _entries.count_of_range(self._source.rows, self._prefix + prefix, self._source.now())

    def get_split(self, group: str, key: str, separator: str) -> Iterator[str]:
        """The parts of a text value between ``separator``, one by one.

        Raises:
            NotFoundError: there is no such key.
            InputError: the value is bytes, or the separator is empty.
        """
        if not separator:
            raise InputError("separator is empty: 1 character or more is needed")
        return _split(self._text(group, key), separator)

    def get_fields(self, group: str, key: str) -> Iterator[str]:
        """The parts of a text value between white space, one by one.

        Raises:
            NotFoundError: there is no such key.
            InputError: the value is bytes.
        """
        return (match[0] for match in re.finditer(r"\S+", self._text(group, key)))

    def render(self, template: str, group: str, *, strict: bool = False, max_chars: int = 1024 * 1024) -> str:
        """Fills a Jinja template in with the keys of a group, in a sandbox; needs ``ringcast-groupstore[render]``.

        Every key is a variable, and ``all["some-key"]`` reaches those whose name is none. A variable that is missing
        renders as nothing, or is an error when ``strict``.

        Raises:
            TemplateError: it can't be parsed, fails, misses a variable, or renders to over ``max_chars``.
        """
        values: Mapping[str, Value] = self.get_all(group)
        return render(template, values, strict=strict, max_chars=max_chars)

    @property
    def _pages(self) -> Pages:
        return Pages(self._source, self._prefix)

    def _in_file(self, group: str, key: str = "") -> str:
        """The group's name in the file; see :func:`in_file`."""
        return in_file(self._prefix, group, key)

    def _found(self, name: str, key: str, rows: list[Any]) -> tuple[Value, int | None, int] | None:
        """Value, expiry and revision, if a key was found and has not expired."""
        if not rows:
            return None
        value, expires_at, revision, stored = rows[0]
        if checksum(name, key, value, expires_at, revision) != stored:
            self._source.report(name, key)
        if expires_at is not None and expires_at <= self._source.now():
            self._source.expired(name, key)
            return None
        return value, expires_at, revision

    def _text(self, group: str, key: str) -> str:
        value = self.require(group, key)
        if not isinstance(value, str):
            raise InputError(f"key {key!r} of group {group!r} holds bytes: only text can be split")
        return value


class Pages:
    """The streams of a source, page by page; group names are those of the caller, without ``prefix``."""

    __slots__ = ("_prefix", "_source")

    def __init__(self, source: Source, prefix: str) -> None:
        self._source = source
        self._prefix = prefix

    def items(self, group: str) -> Iterator[list[tuple[str, Value]]]:
        """Keys and values of a group."""
        name = in_file(self._prefix, group)
        return (sound(self._source, name, page) for page in self._of(_entries.ITEMS, name))

    def keys(self, group: str) -> Iterator[list[str]]:
        """Keys of a group."""
        pages = self._of(_entries.KEYS, in_file(self._prefix, group))
        return ([key for (key,) in page] for page in pages)

    def entries(self, prefix: str) -> Iterator[list[Entry]]:
        """Everything in the groups whose name begins with ``prefix``."""
        source, start = self._source, self._prefix + prefix
        group, key, end = start, "", _entries.range_end(start)
        while page := source.rows(
            _entries.ENTRIES, (group, key, end, source.now(), _entries.PAGE_ROWS), _entries.PAGE_BYTES
        ):
            group, key = page[-1][:2]
            yield [self._entry(*row) for row in page]

    def _of(self, statement: str, name: str) -> Iterator[list[Any]]:
        source, key = self._source, ""
        while page := source.rows(statement, (name, key, source.now(), _entries.PAGE_ROWS), _entries.PAGE_BYTES):
            key = page[-1][0]
            yield page

    def _entry(self, name: str, key: str, value: Value, expires_at: int | None, revision: int, stored: int) -> Entry:
        if checksum(name, key, value, expires_at, revision) != stored:
            self._source.report(name, key)
        return Entry(name[len(self._prefix) :], key, value, expires_at, revision)


def in_file(prefix: str, group: str, key: str = "") -> str:
    """The name of a group in the file.

    Raises:
        TypeError: it, or the key, is no ``str``.
    """
    if type(group) is not str or type(key) is not str:
        raise TypeError(f"group and key must be str, not {type(group).__name__} and {type(key).__name__}")
    return prefix + group


def sound(source: Source, name: str, rows: list[Any]) -> list[tuple[str, Value]]:
    """Keys and values without the rest, if every checksum is right."""
    for key, value, expires_at, revision, stored in rows:
        if checksum(name, key, value, expires_at, revision) != stored:
            source.report(name, key)
    return [row[:2] for row in rows]


def _split(text: str, separator: str) -> Iterator[str]:
    start = 0
    while (found := text.find(separator, start)) >= 0:
        yield text[start:found]
        start = found + len(separator)
    yield text[start:]
