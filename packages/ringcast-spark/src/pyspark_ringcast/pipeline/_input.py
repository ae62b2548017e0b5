"""From raw files to checked rows: read, normalise, map, validate; every problem of a row is kept with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType
from ringcast_wire import InvalidInputError, shown, shown_path

from pyspark_ringcast.pipeline import _expressions as expressions
from pyspark_ringcast.pipeline._csv_files import CORRUPT, read_csv
from pyspark_ringcast.pipeline._spec import Source, Spec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MAX_RECORD_CHARS: Final = 500
_MAX_VALUE_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Checked:
    """What was read. ``rows`` has ``row_id, value, metadata, rank, problems, record``; metadata are sorted entries."""

    rows: DataFrame

    def rejects(self) -> DataFrame:
        """One row a problem: ``row_id, field, value, reason, record``."""
        found = self.rows.filter(sql.size("problems") > 0).select(
            "row_id", "record", sql.explode("problems").alias("p")
        )
        return found.select("row_id", "p.field", "p.value", "p.reason", "record")


def read_checked(spark: SparkSession, spec: Spec) -> Checked:
    """Reads the input; nothing is computed yet.

    Raises:
        InvalidInputError: a file or a column is missing.
    """
    raw = read_raw(spark, spec.source)
    missing = [name for name in spec.used_columns() if name not in raw.columns]
    if missing:
        there = ", ".join(name for name in raw.columns if name != CORRUPT) or "none"
        raise InvalidInputError(f"column {shown(missing[0])} is not in the input: there are {there}", field=missing[0])
    named = {name: _text(raw, name) for name in spec.used_columns()}
    clean = {
        name: expressions.normalised(column, spec.columns[name].normalise) if name in spec.columns else column
        for name, column in named.items()
    }
    everything = sql.struct(*(_quoted(name) for name in raw.columns))
    record = sql.substring(sql.to_json(everything), 1, _MAX_RECORD_CHARS)
    corrupt = _quoted(CORRUPT) if CORRUPT in raw.columns else sql.lit(None).cast("string")
    # Normalised once, in a projection of its own: each rule looks at the result.
    flat = raw.select(
        record.alias("record"), corrupt.alias(CORRUPT), *(column.alias(name) for name, column in _prefixed(clean))
    )
    return Checked(_mapped(flat, spec))


def _prefixed(columns: dict[str, Column]) -> list[tuple[str, Column]]:
    """A name of the input can't meet one of ours."""
    return [(f"in_{number}", column) for number, column in enumerate(columns.values())]


def _mapped(flat: DataFrame, spec: Spec) -> DataFrame:
    place = {name: sql.col(f"in_{number}") for number, name in enumerate(spec.used_columns())}
    row = spec.row
    rows = flat.select(
        *flat.columns,
        place[row.row_id].alias("row_id"),
        (place[row.value] if row.value is not None else sql.lit(row.value_text)).alias("value"),
        expressions.entries({name: place[column] for name, column in row.metadata.items()}).alias("metadata"),
        _rank(spec, place).alias("rank"),
    )
    rows = rows.select("row_id", "value", "metadata", "rank", _problems(spec, place).alias("problems"), "record")
    return rows.withColumn("record", sql.when(sql.size("problems") > 0, sql.col("record")))  # there may be many rows


def _rank(spec: Spec, place: dict[str, Column]) -> Column:
    if spec.dedup.by is None:
        return sql.lit(None).cast("string")
    column = place[spec.dedup.by]
    kinds = {"text": "string", "number": "double", "timestamp": "timestamp"}
    return column.try_cast(kinds[spec.dedup.compare_as])


def _problems(spec: Spec, place: dict[str, Column]) -> Column:
    found = [
        (name, place[name], expressions.reason(place[name], rule))
        for name, rules in spec.columns.items()
        for rule in rules.validate
    ]
    found += expressions.row_problems(sql.col("row_id"), sql.col("value"), sql.col("metadata"))
    one_each = sql.filter(
        sql.array(*(_problem(*problem) for problem in found)), lambda problem: problem["reason"].isNotNull()
    )
    unread = _problem("", sql.col(CORRUPT), sql.lit(f"can't be read as {spec.source.format}"))
    return sql.when(sql.col(CORRUPT).isNotNull(), sql.array(unread)).otherwise(one_each)


def _problem(field: str, value: Column, reason: Column) -> Column:
    return sql.struct(
        sql.lit(field).alias("field"),
        sql.substring(value, 1, _MAX_VALUE_CHARS).alias("value"),
        reason.alias("reason"),
    )


def read_raw(spark: SparkSession, source: Source) -> DataFrame:
    """The files as they are, all columns of CSV and JSON as text; what can't be read is in ``_corrupt_record``.

    Raises:
        InvalidInputError: there is no such file, or it can't be read.
    """
    for path in source.paths:
        if "://" not in path and not any(mark in path for mark in "*?[{") and not Path(path).exists():
            raise InvalidInputError(f"source path {shown_path(path)} does not exist", field="source.paths")
    try:
        return _READERS[source.format](spark, source)
    except AnalysisException as error:
        said = str(error).partition("SQLSTATE")[0].strip()
        raise InvalidInputError(f"the input can't be read: {said}", field="source.paths") from None


def _read_json(spark: SparkSession, source: Source) -> DataFrame:
    options = {**source.options, "columnNameOfCorruptRecord": CORRUPT}
    columns = spark.read.options(**options, primitivesAsString="true").json(source.paths).columns
    names = dict.fromkeys((*columns, CORRUPT))
    return (
        spark.read.options(**options)
        .schema(StructType([StructField(n, StringType()) for n in names]))
        .json(source.paths)
    )


def _read_parquet(spark: SparkSession, source: Source) -> DataFrame:
    return spark.read.options(**source.options).parquet(*source.paths)


def _read_text(spark: SparkSession, source: Source) -> DataFrame:
    lines = spark.read.options(**source.options).text(source.paths).select(sql.col("value").alias("line"))
    lines = lines.filter(sql.trim("line") != "")
    return lines.filter(~sql.startswith("line", sql.lit(source.comment))) if source.comment else lines


_READERS: Final[dict[str, Callable[[SparkSession, Source], DataFrame]]] = {
    "csv": read_csv,
    "json": _read_json,
    "parquet": _read_parquet,
    "text": _read_text,
}


def _text(raw: DataFrame, name: str) -> Column:
    kind = raw.schema[name].dataType.typeName()
    return sql.to_json(_quoted(name)) if kind in ("struct", "array", "map") else _quoted(name).cast("string")


def _quoted(name: str) -> Column:
    return sql.col("`" + name.replace("`", "``") + "`")
