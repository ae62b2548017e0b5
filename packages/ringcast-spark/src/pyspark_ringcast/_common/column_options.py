"""The options that say which columns a DataFrame has: their texts, and what goes together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from ringcast_wire import InvalidInputError, shown

MAX_COLUMNS: Final = 1_000
_BRACKETS: Final = {"<": 1, "(": 1, ">": -1, ")": -1}


FEED_COLUMNS: Final = {
    "change_type": "STRING NOT NULL",
    "written_at": "TIMESTAMP NOT NULL",
    "author": "STRING",
    "reason": "STRING",
}
"""What a change feed has beside the other columns, and the types in SQL."""


class ValueColumn(NamedTuple):
    """A column of the value: its name, and its type in Spark's SQL, which only reads need."""

    name: str
    type: str = ""


def parse_name(name: str, text: str) -> str:
    """One name of a column.

    Raises:
        InvalidInputError: it is empty.
    """
    if not text.strip():
        raise InvalidInputError(f"option {name} is empty", field=name)
    return text.strip()


def parse_names(name: str, text: str) -> tuple[str, ...]:
    """Names with commas between; a name that has commas itself stands in backticks, as in SQL.

    Raises:
        InvalidInputError: one is empty or stands twice, or there are over 1,000.
    """
    columns = parse_value_columns(name, text)
    for column in columns:
        if column.type:
            raise InvalidInputError(
                f"option {name} has {shown(column.name + ' ' + column.type)}: it must be names with commas between; a "
                f"name with white space needs backticks",
                field=name,
            )
    return tuple(column.name for column in columns)


def parse_value_columns(name: str, text: str) -> tuple[ValueColumn, ...]:
    """``owner STRING, score INT``, in the words of ``CREATE TABLE``; types may be left out.

    Raises:
        InvalidInputError: a name is empty or stands twice, or there are over 1,000.
    """
    found = [_column(name, part.strip()) for part in _parts(text)]
    if len(found) > MAX_COLUMNS:
        raise InvalidInputError(f"option {name} has {len(found)} columns: {MAX_COLUMNS} are allowed", field=name)
    _check_different(name, (column.name for column in found))
    return tuple(found)


class ColumnOptions(Protocol):
    """The options that say which columns there are."""

    @property
    def id_column(self) -> str: ...
    @property
    def value_columns(self) -> tuple[ValueColumn, ...]: ...
    @property
    def metadata_columns(self) -> tuple[str, ...]: ...
    @property
    def columns(self) -> tuple[str, ...] | None: ...
    @property
    def read_change_feed(self) -> bool: ...
    def read_columns(self) -> list[str]: ...


def all_columns(options: ColumnOptions) -> dict[str, str]:
    """Every column that a read may give, and its type in SQL."""
    values = dict(options.value_columns) or {"value": "STRING"}
    entries = dict.fromkeys(options.metadata_columns, "STRING") or {"metadata": "MAP<STRING, STRING>"}
    found = {
        options.id_column: "STRING NOT NULL",
        **values,
        "version": "BIGINT NOT NULL",
        "partition": "INT NOT NULL",
        "deleted": "BOOLEAN NOT NULL",
        **entries,
    }
    if options.read_change_feed:
        found |= FEED_COLUMNS
    return found


def read_schema(options: ColumnOptions) -> str:
    """What a read gives, in SQL. ``value`` is null in a tombstone; ``metadata`` is null where there is none.

    Raises:
        InvalidInputError: a column of the value has no type.
    """
    for column in options.value_columns:
        if not column.type:
            raise InvalidInputError(
                f"option value_columns has {shown(column.name)} without a type: a read needs one, as in owner STRING",
                field="value_columns",
            )
    kinds = all_columns(options)
    return ", ".join(f"`{name.replace('`', '``')}` {kinds[name]}" for name in options.read_columns())


def chosen_columns(options: ColumnOptions) -> tuple[str, ...] | None:
    """The names in ``columns`` as the other options write them: to Spark case means nothing.

    Raises:
        InvalidInputError: two columns have one name, or one that is wanted is not there.
    """
    values = [column.name for column in options.value_columns] or ["value"]
    entries = options.metadata_columns or ("metadata",)
    mapped = [options.id_column, *values, *entries]
    taken = [*mapped, "version", "partition", "deleted", *(FEED_COLUMNS if options.read_change_feed else ())]
    _check_different("columns", taken)
    if options.columns is None:
        return None
    there = {name.lower(): name for name in all_columns(options)}
    for name in options.columns:
        if name.lower() not in there:
            raise InvalidInputError(
                f"option columns has {shown(name)}: there are {', '.join(there.values())}", field="columns"
            )
    return tuple(there[name.lower()] for name in options.columns)


def _check_different(option: str, columns: Iterator[str] | list[str]) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.lower() in seen:
            raise InvalidInputError(
                f"column {shown(column)} stands twice, and case does not count: see the options that name columns",
                field=option,
            )
        seen.add(column.lower())


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas that are in no brackets and no backticks."""
    start = depth = 0
    quoted = False
    for index, character in enumerate(text):
        if character == "`":
            quoted = not quoted
        elif not quoted:
            depth += _BRACKETS.get(character, 0)
            if character == "," and depth == 0:
                yield text[start:index]
                start = index + 1
    yield text[start:]


def _column(option: str, text: str) -> ValueColumn:
    if text.startswith("`"):
        end = 1
        while (end := text.find("`", end)) >= 0 and text[end : end + 2] == "``":
            end += 2
        name, kind = text[1 : end if end >= 0 else 0].replace("``", "`"), text[end + 1 :]
    else:
        name, _, kind = text.partition(" ")
    if not name:
        raise InvalidInputError(f"option {option} has {shown(text)}: that is no name of a column", field=option)
    return ValueColumn(name, kind.strip())
