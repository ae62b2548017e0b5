"""The reading verbs, the same for a store, a namespace, a transaction and a snapshot."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NoReturn, TypeVar

from ringcast_groupstore._checks import check_there, prefix_end
from ringcast_groupstore._checksum import checksum
from ringcast_groupstore._errors import InputError, NotFoundError
from ringcast_groupstore._render import render
from ringcast_groupstore._types import Entry, Limits, Value

D = TypeVar("D")

Row = tuple[Any, ...]

VALUE = """
    ifnull(entry_value, (SELECT large.entry_value FROM large_values AS large WHERE large.revision = entries.revision))
    """
"""Of a row of ``entries``, wherever it lies."""
GET = f"SELECT {VALUE}, expires_at, revision, checksum FROM entries WHERE group_name = ? AND entry_key = ?"  # noqa: S608
_CONTAINS = """
    SELECT 1 FROM entries WHERE group_name = ? AND entry_key = ? AND (expires_at IS NULL OR expires_at > ?)
    """
_GET_LIVE = f"""
    SELECT entry_key, {VALUE}, expires_at, revision, checksum FROM entries
    WHERE group_name = ? AND entry_key = ? AND (expires_at IS NULL OR expires_at > ?)
    """  # noqa: S608  of this module, as in the others
_COUNT = "SELECT count(*) FROM entries WHERE group_name = ? AND (expires_at IS NULL OR expires_at > ?)"
_COUNT_ALL = """
    SELECT count(*) FROM entries
    WHERE group_name >= ? AND group_name < ? AND (expires_at IS NULL OR expires_at > ?)
    """
_FIRST_GROUP = """
    SELECT group_name FROM entries
    WHERE group_name >= ? AND group_name < ? AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY group_name, entry_key LIMIT 1
    """
_NEXT_GROUP = _FIRST_GROUP.replace("group_name >= ?", "group_name > ?")
_KEYS = """
    SELECT entry_key FROM entries
    WHERE group_name = ? AND entry_key > ? AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY entry_key LIMIT ?
    """
_ITEMS = _KEYS.replace("entry_key", f"entry_key, {VALUE}, expires_at, revision, checksum", 1)
_ENTRIES = f"""
    SELECT group_name, entry_key, {VALUE}, expires_at, revision, checksum FROM entries
    WHERE (group_name, entry_key) > (?, ?) AND group_name < ? AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY group_name, entry_key LIMIT ?
    """  # noqa: S608
_PAGE_ROWS = 1_000
_SIZED = (str, bytes)
_PAGE_BYTES = 1024 * 1024
_ABOVE_ALL_TEXT = b""
"""Every blob sorts above every text."""


class Reads(ABC):
    """What can be read. Whatever has expired is never seen, whether it was purged yet or not."""

    __slots__ = ()

    @property
    @abstractmethod
    def _limits(self) -> Limits: ...

    @property
    @abstractmethod
    def _prefix(self) -> str:
        """What stands before the group names of the caller in the file: a namespace and a colon, or nothing."""

    @abstractmethod
    def _now(self) -> int: ...

    @abstractmethod
    def _rows(self, sql: str, words: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        """The rows of one statement, on one snapshot; with ``max_bytes``, only the first whose values come to that."""

    @abstractmethod
    def _each(self, sql: str, words: Iterable[tuple[object, ...]]) -> list[Any]:
        """The rows of one statement with one set of words after the other, on one snapshot."""

    @abstractmethod
    def _report(self, group: str, key: str) -> NoReturn:
        """Raises StoreCorruptError for a key that is not what was written, and remembers it."""

    @abstractmethod
    def _expired(self, group: str, key: str) -> None:
        """Told of a key that a read has found expired, so that it may be removed."""

    def get(self, group: str, key: str, default: D | None = None) -> Value | D | None:
        """The value of a key, or ``default`` when there is none. What has expired is removed on the way."""
        name = self._in_file(group, key)
        found = self._found(name, key, self._rows(GET, (name, key)))
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
        found = self._found(name, key, self._rows(GET, (name, key)))
        return None if found is None else Entry(group, key, *found)

    def contains(self, group: str, key: str) -> bool:
        """Whether the group has the key."""
        return bool(self._rows(_CONTAINS, (self._in_file(group, key), key, self._now())))

    def get_many(self, group: str, keys: Iterable[str]) -> dict[str, Value]:
        """Those of ``keys`` that the group has, with their values, all of one moment.

        Raises:
            InputError: more keys than a transaction may change.
        """
        wanted = list(keys)
        if len(wanted) > self._limits.max_changes:
            raise InputError(f"keys are {len(wanted)}: at most {self._limits.max_changes} are allowed")
        for key in wanted:
            check_there("key", key)
        name, now = self._in_file(group), self._now()
        return dict(self._sound(name, self._each(_GET_LIVE, ((name, key, now) for key in wanted))))

    def get_all(self, group: str) -> dict[str, Value]:
        """Everything in the group, of one moment; for a large group see :meth:`items`."""
        name = self._in_file(group)
        return dict(self._sound(name, self._rows(_ITEMS, (name, "", self._now(), -1))))

    def items(self, group: str) -> Iterator[tuple[str, Value]]:
        """Keys and values of the group in the order of the keys.

        Streamed page by page, at most 1,000 rows or about 1 MiB of values at once, each page of its own moment: what
        is written meanwhile may be seen or not. Holds nothing open between pages. For one moment, use a snapshot.
        """
        return chain.from_iterable(self._item_pages(group))

    def keys(self, group: str) -> Iterator[str]:
        """Keys of the group in order, streamed as :meth:`items` are."""
        return chain.from_iterable(self._key_pages(group))

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Everything in the groups whose name begins with ``prefix``, in the order of group and key, streamed alike."""
        return chain.from_iterable(self._entry_pages(prefix))

    def groups(self, prefix: str = "") -> Iterator[str]:
        """Names of the groups that begin with ``prefix`` and have a key, in order; one step in the tree for each."""
        group, end, statement = self._prefix + prefix, _end(self._prefix + prefix), _FIRST_GROUP
        while rows := self._rows(statement, (group, end, self._now())):
            group, statement = rows[0][0], _NEXT_GROUP
            yield group[len(self._prefix) :]

    def count(self, group: str) -> int:
        """How many keys the group has."""
        return int(self._rows(_COUNT, (self._in_file(group), self._now()))[0][0])

    def count_all(self, prefix: str = "") -> int:
        """How many keys the groups have whose name begins with ``prefix``."""
        start = self._prefix + prefix
        return int(self._rows(_COUNT_ALL, (start, _end(start), self._now()))[0][0])

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

    def _in_file(self, group: str, key: str = "") -> str:
        """The group's name in the file.

        Raises:
            TypeError: it, or the key, is no ``str``.
        """
        if type(group) is not str or type(key) is not str:
            raise TypeError(f"group and key must be str, not {type(group).__name__} and {type(key).__name__}")
        return self._prefix + group

    def _found(self, name: str, key: str, rows: list[Any]) -> tuple[Value, int | None, int] | None:
        """Value, expiry and revision, if a key was found and has not expired."""
        if not rows:
            return None
        value, expires_at, revision, stored = rows[0]
        if checksum(name, key, value, expires_at, revision) != stored:
            self._report(name, key)
        if expires_at is not None and expires_at <= self._now():
            self._expired(name, key)
            return None
        return value, expires_at, revision

    def _text(self, group: str, key: str) -> str:
        value = self.require(group, key)
        if not isinstance(value, str):
            raise InputError(f"key {key!r} of group {group!r} holds bytes: only text can be split")
        return value

    def _item_pages(self, group: str) -> Iterator[list[tuple[str, Value]]]:
        name = self._in_file(group)
        return (self._sound(name, page) for page in self._pages(_ITEMS, group))

    def _key_pages(self, group: str) -> Iterator[list[str]]:
        return ([key for (key,) in page] for page in self._pages(_KEYS, group))

    def _entry_pages(self, prefix: str) -> Iterator[list[Entry]]:
        group, key, end = self._prefix + prefix, "", _end(self._prefix + prefix)
        while page := self._rows(_ENTRIES, (group, key, end, self._now(), _PAGE_ROWS), _PAGE_BYTES):
            group, key = page[-1][:2]
            yield [self._entry(*row) for row in page]

    def _entry(self, name: str, key: str, value: Value, expires_at: int | None, revision: int, stored: int) -> Entry:
        if checksum(name, key, value, expires_at, revision) != stored:
            self._report(name, key)
        return Entry(name[len(self._prefix) :], key, value, expires_at, revision)

    def _sound(self, name: str, rows: list[Any]) -> list[tuple[str, Value]]:
        """Keys and values without the rest, if every checksum is right."""
        for key, value, expires_at, revision, stored in rows:
            if checksum(name, key, value, expires_at, revision) != stored:
                self._report(name, key)
        return [row[:2] for row in rows]

    def _pages(self, statement: str, group: str) -> Iterator[list[Any]]:
        name, key = self._in_file(group), ""
        while page := self._rows(statement, (name, key, self._now(), _PAGE_ROWS), _PAGE_BYTES):
            key = page[-1][0]
            yield page


def fetched(rows: Iterator[Row], max_bytes: int | None) -> tuple[list[Row], bool]:
    """What ``_rows`` returns, and whether that was all."""
    if max_bytes is None:
        return list(rows), True
    page: list[Row] = []
    room = max_bytes
    for row in rows:
        page.append(row)
        for column in row[1:3]:  # the value is one of these, where there is any
            if isinstance(column, _SIZED):
                room -= len(column)
        if room <= 0:
            return page, False
    return page, True


def fetched_each(cursor: sqlite3.Cursor, sql: str, words: Iterable[tuple[object, ...]]) -> list[Any]:
    """What ``_each`` returns."""
    return [row for word in words for row in cursor.execute(sql, word)]


def _end(prefix: str) -> str | bytes:
    """The upper end of a range of names."""
    return _ABOVE_ALL_TEXT if (end := prefix_end(prefix)) is None else end


def _split(text: str, separator: str) -> Iterator[str]:
    start = 0
    while (found := text.find(separator, start)) >= 0:
        yield text[start:found]
        start = found + len(separator)
    yield text[start:]
