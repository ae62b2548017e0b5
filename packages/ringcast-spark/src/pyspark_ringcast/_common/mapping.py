"""Columns of a DataFrame's own: what the id of a row is called there, what its value is made of, and its metadata.

A value that is made of columns is a JSON object with a member for each column that is not null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark
from ringcast_wire import InvalidInputError, RowRule, shown

from pyspark_ringcast._common.batches import Rejected, column_of, in_lower_case
from pyspark_ringcast._common.columns import FEED_SCHEMA, METADATA, SCHEMA
from pyspark_ringcast._common.opening import keys_of, opened
from pyspark_ringcast._common.options import Malformed, Options

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")
_INTEGERS: Final[dict[type[DataType], int]] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}
_SIMPLE: Final[dict[type[DataType], Any]] = {
    spark.StringType: str,
    spark.BooleanType: bool,
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.DateType: date,
    spark.TimestampType: Annotated[datetime, msgspec.Meta(tz=True)],
    spark.TimestampNTZType: Annotated[datetime, msgspec.Meta(tz=False)],
    spark.DecimalType: Decimal,
    spark.BinaryType: bytes,
}


def json_type(kind: DataType, column: str) -> Any:
    """What msgspec makes of a member of JSON that is a column of this type.

    Raises:
        InvalidInputError: JSON has no form for it.
    """
    if type(kind) in _INTEGERS:
        bound = 2 ** (_INTEGERS[type(kind)] - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if isinstance(kind, spark.ArrayType):
        return list[json_type(kind.elementType, column) | None]  # type: ignore[misc]
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        return dict[str, json_type(kind.valueType, column) | None]  # type: ignore[misc]
    if isinstance(kind, spark.StructType):
        return _object_type(kind.fields, column)
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    raise InvalidInputError(
        f"column {shown(column)} is of type {kind.simpleString()}, which a JSON value can't hold: write it as a text",
        field=column,
    )


def _object_type(fields: Sequence[StructField], column: str = "") -> Any:
    members = {field.name: json_type(field.dataType, column or field.name) | None for field in fields}
    return TypedDict("Value", members, total=False)  # type: ignore[operator]


# ---- reads


class ReadColumns:
    """Turns what a read gives into the columns that were asked for."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """``schema`` is Spark's: that of :func:`pyspark_ringcast._source.read_schema`, with the types parsed.

        Raises:
            InvalidInputError: it is another, or a column of the value has a type that JSON has no form for.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        self._keys = keys_of(options)
        source = FEED_SCHEMA if options.read_change_feed else SCHEMA
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._place = options.place
        self._malformed = options.malformed_values
        self._same = options.columns is None and not options.is_mapped
        names = options.read_columns()
        if (self._same and not self.schema.equals(source)) or self.schema.names != names:
            raise InvalidInputError(
                f"the schema of a ringcast read is fixed: {', '.join(names)}; leave .schema(…) out", field="schema"
            )
        self._id_column = options.id_column
        self._metadata_columns = frozenset(options.metadata_columns)
        values = {column.name for column in options.value_columns}
        self._values = [field for field in schema.fields if field.name in values]
        for field in self._values:
            if not field.nullable:
                raise InvalidInputError(
                    f"option value_columns has {shown(field.name)} NOT NULL: a deleted row has no value, leave it out",
                    field="value_columns",
                )
        self._decoder = msgspec.json.Decoder(_object_type(self._values))
        self._value_type = pa.struct([self.schema.field(field.name) for field in self._values])

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with these columns.

        Raises:
            InvalidInputError: a value is not a JSON object with members of the types, and ``malformed_values`` is fail.
            ValueSealedError: a value can't be opened with the key ring.
        """
        if self._keys is not None:
            batch = opened(self._keys, batch)
        if self._same:
            return batch
        found: dict[str, pa.Array] = {name: batch.column(name) for name in batch.schema.names}
        found[self._id_column] = batch.column("row_id")
        if self._values:
            found.update(zip(self._value_type.names, self._value_of(batch).flatten(), strict=True))
        for name in self._metadata_columns.intersection(self.schema.names):
            found[name] = pc.map_lookup(batch.column("metadata"), name, "first")
        return pa.RecordBatch.from_arrays([found[name] for name in self.schema.names], schema=self.schema)

    def none(self) -> pa.RecordBatch:
        """A batch without a row."""
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    def _value_of(self, batch: pa.RecordBatch) -> pa.StructArray:
        try:
            texts = batch.column("value").to_pylist()
            return pa.array([None if text is None else self._decoder.decode(text) for text in texts], self._value_type)
        except (msgspec.MsgspecError, pa.ArrowInvalid, UnicodeDecodeError):
            return pa.array(list(self._one_by_one(batch)), self._value_type)

    def _one_by_one(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any] | None]:
        """The same for a batch in which some value is malformed."""
        for index, row_id in enumerate(column_of(batch, "row_id")):
            try:
                text = batch.column("value")[index].as_py()
                value = None if text is None else self._decoder.decode(text)
                pa.array([value], self._value_type)
            except (msgspec.MsgspecError, pa.ArrowInvalid, UnicodeDecodeError) as error:
                if self._malformed is Malformed.FAIL:
                    raise InvalidInputError(
                        f"the value of row {shown(row_id)} of {self._place} does not fit option value_columns: "
                        f"{error}; with option malformed_values=null it gives nulls",
                        field="value_columns",
                    ) from None
                value = None
            yield value


# ---- writes


class WriteColumns:
    """Turns a DataFrame's own columns into those that a write takes."""

    def __init__(self, options: Options) -> None:
        self._id_column = options.id_column.lower()
        self._values = {column.name.lower(): column.name for column in options.value_columns}
        self._metadata = {name.lower(): name for name in options.metadata_columns}

    def with_ids(self, frame: pa.RecordBatch) -> pa.RecordBatch:
        """With names in lower case, and the id's the one that a write knows. Doing it again changes nothing."""
        frame = in_lower_case(frame)
        if self._id_column == "row_id" or self._id_column not in frame.schema.names:
            return frame
        return frame.rename_columns(["row_id" if name == self._id_column else name for name in frame.schema.names])

    def rows(self, frame: pa.RecordBatch, rejected: list[Rejected]) -> pa.RecordBatch:
        """With ``value`` and ``metadata``; rows that can't have these are left out, and in ``rejected``."""
        frame = self.with_ids(frame)
        there = frame.schema.names
        made: dict[str, pa.Array] = {}
        wrong: dict[int, _Wrong] = {}
        if self._values and set(self._values) <= set(there):
            made["value"] = pa.array(self._texts(frame, wrong), pa.string())
        if named := [(name, self._metadata[name]) for name in there if name in self._metadata]:
            made["metadata"] = pa.array(self._entries(frame, named, wrong), METADATA)
        if not made:
            return frame
        kept = [name for name in there if name not in self._values and name not in self._metadata]
        columns = {name: frame.column(name) for name in kept} | made
        found = pa.record_batch(list(columns.values()), names=list(columns))
        if not wrong:
            return found
        row_ids = column_of(frame, "row_id")
        rejected += (why.of(row_ids[index]) for index, why in sorted(wrong.items()))
        return found.filter(pa.array([index not in wrong for index in range(len(frame))]))

    def _entries(
        self, frame: pa.RecordBatch, named: Sequence[tuple[str, str]], wrong: dict[int, _Wrong]
    ) -> Iterator[list[tuple[str, str]]]:
        rows = zip(*(column_of(frame, name) for name, _ in named), strict=True)
        for index, row in enumerate(rows):
            entries = [(entry, text) for (_, entry), text in zip(named, row, strict=True) if text is not None]
            if bad := next((entry for entry, text in entries if not isinstance(text, str)), None):
                wrong.setdefault(index, _Wrong(RowRule.NOT_UNICODE, "metadata", f"column {shown(bad)} is not UTF-8"))
                entries = []
            yield entries

    def _texts(self, frame: pa.RecordBatch, wrong: dict[int, _Wrong]) -> list[str | None]:
        names = [name for name in frame.schema.names if name in self._values]
        values = _in_utc(frame.select(names).rename_columns([self._values[name] for name in names]))
        if all(map(_is_finite, values.columns)):
            try:
                return [_text(row) for row in values.to_pylist(maps_as_pydicts="strict")]
            except (KeyError, ValueError):
                pass
        return [self._text_of(values.slice(index, 1), index, wrong) for index in range(len(frame))]

    def _text_of(self, row: pa.RecordBatch, index: int, wrong: dict[int, _Wrong]) -> str | None:
        """The value of one row, if it has any."""
        if bad := next((name for name in row.schema.names if not _is_finite(row.column(name))), None):
            why = f"column {shown(bad)} is no finite number: JSON has no form for it"
            wrong[index] = _Wrong(RowRule.OTHER, "value", why)
            return None
        try:
            return _text(row.to_pylist(maps_as_pydicts="strict")[0])
        except UnicodeDecodeError:
            wrong[index] = _Wrong(RowRule.NOT_UNICODE, "value", "a column of the value is not UTF-8")
        except (KeyError, ValueError) as error:
            wrong[index] = _Wrong(RowRule.OTHER, "value", f"the columns of the value make no JSON object: {error}")
        return None


class _Wrong(NamedTuple):
    """Why a row can't be written."""

    rule: RowRule
    field: str
    reason: str

    def of(self, row_id: Any) -> Rejected:
        kept = row_id if row_id is None or isinstance(row_id, str) else shown(row_id)
        return Rejected(kept, str(self.rule), self.field, self.reason)


def check_value_column(field: StructField) -> None:
    """Raises ``InvalidInputError`` for a column of a type that JSON has no form for."""
    json_type(field.dataType, field.name)


def _text(row: Mapping[str, Any]) -> str:
    return _ENCODER.encode({name: value for name, value in row.items() if value is not None}).decode()


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Points in time as those of UTC, whatever the session's time zone is."""
    columns = [
        column.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) and column.type.tz else column
        for column in batch.columns
    ]
    return pa.record_batch(columns, names=batch.schema.names)


def _is_finite(column: pa.Array) -> bool:
    """Whether there is no NaN or infinity in it, however deep."""
    if pa.types.is_floating(column.type):
        found: bool | None = pc.all(pc.is_finite(column)).as_py()
        return found is not False

    if pa.types.is_struct(column.type):
        return all(map(_is_finite, column.flatten()))
    if pa.types.is_map(column.type):
        return _is_finite(column.items)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _is_finite(column.flatten())
    return True
