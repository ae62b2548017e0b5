"""The rules as expressions of columns: all but Unicode's normal forms run in the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as sql
from ringcast_wire import limits

from pyspark_ringcast.pipeline import _rules as rules
from pyspark_ringcast.pipeline._ip_network import is_ip_network

_SPACE = r"[\s\p{Z}]+"


def normalised(column: Column, normalisers: Sequence[rules.Rule]) -> Column:
    """The column after every normaliser, in order."""
    return reduce(_normalise, normalisers, column)


def _normalise(column: Column, rule: rules.Rule) -> Column:
    match rule:
        case rules.Strip():
            return sql.regexp_replace(column, f"^{_SPACE}|{_SPACE}$", "")
        case rules.Squeeze():
            return sql.regexp_replace(column, _SPACE, " ")
        case rules.Lower():
            return sql.lower(column)
        case rules.Upper():
            return sql.upper(column)
        case rules.EmptyToNull():
            return sql.nullif(column, sql.lit(""))
        case rules.Replace(regex=regex, to=to):
            return sql.regexp_replace(column, regex, to)
        case rules.Default(value=value):
            return sql.coalesce(column, sql.lit(value))
        case rules.Unicode(form=form):
            return _in_form(column, form)
    raise AssertionError(f"{rule} is no normaliser")


def _in_form(column: Column, form: str) -> Column:
    """The JVM has no function for it that Spark could call: Arrow's does whole batches."""
    import pyarrow as pa

    def in_form(texts: Any) -> Any:
        import pyarrow.compute as pc

        return pc.utf8_normalize(texts, form)

    # Spark goes by the annotations, and wants types: here they are text.
    in_form.__annotations__ = {"texts": pa.Array, "return": pa.Array}
    # Looked up by name, since Spark's stubs lack it.
    made: Column = getattr(sql, "arrow_udf")(in_form, "string")(column)  # noqa: B009
    return made


def reason(column: Column, rule: rules.Rule) -> Column:
    """Why a value breaks a rule, or null. Null is fine by every rule but ``required``."""
    match rule:
        case rules.Required():
            return sql.when(column.isNull() | (column == ""), sql.lit("is missing"))
        case rules.Regex(value=pattern):
            return _unless(column.rlike(rf"^(?:{pattern})\z"), sql.lit(f"does not match {pattern}"))
        case rules.Length(min=low, max=high, unit=unit):
            size = sql.char_length(column) if unit == "characters" else sql.octet_length(column)
            return _outside(size, low, high, f" {unit}")
        case rules.Range(min=low, max=high):
            number = column.try_cast("double")
            not_a_number = sql.when(column.isNotNull() & (number.isNull() | sql.isnan(number)), "is not a number")
            return sql.coalesce(not_a_number, _outside(number, low, high, ""))
        case rules.OneOf(value=choices):
            return _unless(column.isin(choices), sql.lit(f"is not one of {_list(choices)}"))
        case rules.NotOneOf(value=choices):
            return sql.when(column.isin(choices), sql.lit(f"is one of {_list(choices)}"))
        case rules.IpNetwork():
            text = "is not an IP network such as 10.0.0.0/8 or 2001:db8::/32"
            return _unless(is_ip_network(column), sql.lit(text))
    raise AssertionError(f"{rule} is no validator")


def _unless(holds: Column, text: Column) -> Column:
    return sql.when(~holds, text)


def _outside(number: Column, low: float | None, high: float | None, unit: str) -> Column:
    allowed = f"{_bound(low)} to {_bound(high)}" if low is not None and high is not None else ""
    allowed = allowed or (f"at least {_bound(low)}" if high is None else f"at most {_bound(high)}")
    wrong = sql.lit(False)
    if low is not None:
        wrong = wrong | (number < low)
    if high is not None:
        wrong = wrong | (number > high)
    what = "has " if unit else "is "
    return sql.when(wrong, sql.concat(sql.lit(what), number.cast("string"), sql.lit(f"{unit}: {allowed} is allowed")))


def _bound(value: float | None) -> str:
    return f"{value:.15g}"


def _list(choices: Sequence[str], shown: int = 5) -> str:
    more = f" and {len(choices) - shown} more" if len(choices) > shown else ""
    return ", ".join(choices[:shown]) + more


def entries(names_and_columns: dict[str, Column]) -> Column:
    """Metadata as a sorted array of (key, value), which can be compared as a map can't; null where there is none."""
    if not names_and_columns:
        return sql.lit(None).cast("array<struct<key:string,value:string>>")
    pairs = [
        sql.struct(sql.lit(name).alias("key"), names_and_columns[name].alias("value"))
        for name in sorted(names_and_columns)
    ]
    return none_if_empty(sql.filter(sql.array(*pairs), lambda pair: pair["value"].isNotNull()))


def entries_of_map(metadata: Column) -> Column:
    """A map as :func:`entries` has it."""
    return none_if_empty(sql.array_sort(sql.map_entries(metadata)))


def none_if_empty(array: Column) -> Column:
    """Null in place of an empty array."""
    return sql.when(sql.size(array) > 0, array)


def entry_bytes(metadata: Column) -> Column:
    """UTF-8 bytes of names and values."""
    sizes = sql.transform(metadata, lambda pair: sql.octet_length(pair["key"]) + sql.octet_length(pair["value"]))
    return sql.coalesce(sql.aggregate(sizes, sql.lit(0), lambda total, size: total + size), sql.lit(0))


def row_bytes(row_id: Column, value: Column, metadata: Column) -> Column:
    """UTF-8 bytes of a row."""
    return sql.octet_length(row_id) + sql.octet_length(value) + entry_bytes(metadata)


def row_problems(row_id: Column, value: Column, metadata: Column) -> list[tuple[str, Column, Column]]:
    """What the config service would refuse: field, value, and why or null."""
    id_bytes, total = sql.octet_length(row_id), row_bytes(row_id, value, metadata)
    metadata_bytes = entry_bytes(metadata)
    nul = sql.lit("\0")
    long_id = sql.concat(
        sql.lit("has "), id_bytes.cast("string"), sql.lit(f" bytes: 1 to {limits.MAX_ROW_ID_BYTES} are allowed")
    )
    return [
        ("row_id", row_id, sql.when(row_id.isNull() | (row_id == ""), sql.lit("is missing"))),
        ("row_id", row_id, sql.when(id_bytes > limits.MAX_ROW_ID_BYTES, long_id)),
        ("row_id", row_id, sql.when(sql.contains(row_id, nul), sql.lit("has a NUL character"))),
        ("value", value, sql.when(value.isNull(), sql.lit("is missing"))),
        ("value", value, sql.when(sql.contains(value, nul), sql.lit("has a NUL character"))),
        ("value", value, _too_large("the row", total, limits.MAX_ROW_BYTES)),
        ("metadata", _text_of(metadata), _too_large("metadata", metadata_bytes, limits.MAX_METADATA_BYTES)),
        ("metadata", _text_of(metadata), sql.when(_has_nul(metadata), sql.lit("has a NUL character"))),
    ]


def _too_large(what: str, size: Column, most: int) -> Column:
    parts = [sql.lit(f"{what} has "), size.cast("string"), sql.lit(f" bytes: at most {most} are allowed")]
    return sql.when(size > most, sql.concat(*parts))


def _has_nul(metadata: Column) -> Column:
    return sql.exists(metadata, lambda pair: sql.contains(pair["value"], sql.lit("\0")))


def _text_of(metadata: Column) -> Column:
    return sql.to_json(sql.map_from_entries(metadata))
