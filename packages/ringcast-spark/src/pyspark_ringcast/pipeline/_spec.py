"""The specification of a pipeline: a TOML file that says what is read, what a row is, and where it goes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from ringcast_wire import InvalidInputError, limits, names, shown

from pyspark_ringcast._common.options import parse_servers
from pyspark_ringcast.pipeline._csv_options import parse_csv_options
from pyspark_ringcast.pipeline._files import absolute
from pyspark_ringcast.pipeline._rules import NORMALISERS, VALIDATORS, Rule, parse_rules
from pyspark_ringcast.pipeline._target import LOGIN_FILES, Target

MAX_SPEC_BYTES: Final = 256 * 1024
MAX_PATHS: Final = 1_000
MAX_COLUMNS: Final = 1_000
MAX_READ_OPTIONS: Final = 64


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is read. A text file has one column, ``line``."""

    paths: list[str]
    format: Literal["csv", "json", "parquet", "text"]
    options: dict[str, str] = {}
    """Spark's own for the format; of a CSV file those that :func:`parse_csv_options` takes."""
    comment: str = "#"
    """Text only: lines that begin so are left out, as blank ones are; empty: none."""


class RowMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which columns become what; ``value_text`` is one value for all rows."""

    row_id: str
    value: str | None = None
    value_text: str | None = None
    metadata: dict[str, str] = {}
    """Name of the entry → column; a null gives no entry."""


class ColumnRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to a column, in order, and what must hold afterwards."""

    normalise: list[Rule] = []
    validate: list[Rule] = []


class Dedup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of several rows with one id counts. Rows that are alike are one row in any case."""

    keep: Literal["reject", "greatest", "least"] = "reject"
    """``reject``: none of them, and the report has them."""
    by: str | None = None
    """The column that decides; equal ones are decided by value, then by metadata."""
    compare_as: Literal["text", "number", "timestamp"] = "text"
    """What can't be read as such is as good as null, which loses."""


class Guards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a plan may go."""

    max_delete_share: float = 0.1
    """Deletes, of the rows that are live."""
    max_rejected_share: float = 0.01
    """Rejected rows, of those that were read."""
    allow_empty: bool = False
    """Whether an input without a valid row may empty the key."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A whole pipeline."""

    source: Source
    row: RowMapping
    target: Target
    columns: dict[str, ColumnRules] = {}
    dedup: Dedup = Dedup()
    guards: Guards = Guards()

    def used_columns(self) -> list[str]:
        """Every column of the input that is looked at."""
        named = [self.row.row_id, self.row.value, *self.row.metadata.values(), *self.columns, self.dedup.by]
        return list(dict.fromkeys(name for name in named if name is not None))


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file as it stands, rules unread."""

    source: Source
    row: RowMapping
    target: Target
    columns: dict[str, _Columns] = {}
    dedup: Dedup = Dedup()
    guards: Guards = Guards()


class _Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    normalise: list[Any] = []
    validate: list[Any] = []


def read_spec(path: str | Path, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> Spec:
    """The specification in a TOML file; relative paths in it are relative to its directory.

    Args:
        path: The file, at most 256 KiB.
        overrides: Settings that win over the file's, as in ``{"target": {"store": "gateway"}}``.

    Raises:
        InvalidInputError: the file can't be read, or something in it is missing, unknown or out of range.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(f"specification {path} can't be read: {error.strerror}", field="spec") from None
    if len(data) > MAX_SPEC_BYTES:
        raise InvalidInputError(f"specification {path} is larger than {MAX_SPEC_BYTES} bytes", field="spec")
    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"specification {path} is not valid TOML: {error}", field="spec") from None
    for table, settings in (overrides or {}).items():
        document[table] = {**document.get(table, {}), **settings}
    try:
        return parse_spec(document, path.parent)
    except InvalidInputError as error:
        raise InvalidInputError(f"specification {path}: {error}", field=error.field) from None


def parse_spec(document: Mapping[str, Any], directory: Path | None = None) -> Spec:
    """A specification from its tables; relative paths are relative to ``directory``, or to the working directory.

    Raises:
        InvalidInputError: something is missing, unknown or out of range; the message says where.
    """
    _check_no_password(document.get("target"))
    try:
        parsed = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise InvalidInputError(_plain(error)) from None
    columns = {
        name: ColumnRules(
            normalise=parse_rules(f"columns.{name}.normalise", rules.normalise, NORMALISERS),
            validate=parse_rules(f"columns.{name}.validate", rules.validate, VALIDATORS),
        )
        for name, rules in parsed.columns.items()
    }
    # The JVM may have another working directory than Python.
    here = (directory or Path()).absolute()
    source = msgspec.structs.replace(parsed.source, paths=[absolute(path, here) for path in parsed.source.paths])
    files = {name: absolute(path, here) for name in LOGIN_FILES if (path := getattr(parsed.target, name))}
    target = msgspec.structs.replace(parsed.target, **files)
    spec = Spec(source=source, row=parsed.row, target=target, columns=columns, dedup=parsed.dedup, guards=parsed.guards)
    _check(spec)
    return spec


def _check_no_password(target: Any) -> None:
    """Neither as a setting nor in an address: what is said of a target ends in saved plans, and is shown."""
    given = target if isinstance(target, Mapping) else {}
    if "password" in given:
        raise InvalidInputError(
            "target.password: a specification must not have a password: set RINGCAST_PASSWORD", field="password"
        )
    if isinstance(servers := given.get("servers"), str):
        parse_servers("servers", servers)


def _plain(error: msgspec.ValidationError) -> str:
    """msgspec's sentence, with its path as one writes it in TOML."""
    text, _, place = str(error).partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    return f"{place}: {text}" if place else text


def _check(spec: Spec) -> None:
    _check_count("source.paths", len(spec.source.paths), 1, MAX_PATHS)
    _check_count("source.options", len(spec.source.options), 0, MAX_READ_OPTIONS)
    if spec.source.format == "csv":
        parse_csv_options(spec.source.options)
    _check_count("columns", len(spec.used_columns()), 1, MAX_COLUMNS)
    _check_count("row.metadata", len(spec.row.metadata), 0, limits.MAX_METADATA_ENTRIES)
    if (spec.row.value is None) == (spec.row.value_text is None):
        raise InvalidInputError("row: either value (a column) or value_text must be given", field="row.value")
    if (spec.dedup.by is None) != (spec.dedup.keep == "reject"):
        raise InvalidInputError("dedup: by and keep = greatest or least go together", field="dedup.by")
    for name in ("max_delete_share", "max_rejected_share"):
        check_share(f"guards.{name}", getattr(spec.guards, name))
    names.check_name("store", spec.target.store)
    names.check_name("key", spec.target.key)


def check_share(field: str, value: float) -> float:
    """``value`` if it is from 0 to 1.

    Raises:
        InvalidInputError: it is not.
    """
    if not 0.0 <= value <= 1.0:
        raise InvalidInputError(f"{field} is {shown(value)}: 0 to 1 is allowed", field=field)
    return value


def _check_count(field: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise InvalidInputError(f"{field} has {count} entries: {least} to {most} are allowed", field=field)
