"""A join by row id: the rows of many ids, without a read of the whole key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, limits, shown

from pyspark_ringcast._batch.prepare import home
from pyspark_ringcast._batch.read import ReadTask, Snapshot, read_task, take_snapshot
from pyspark_ringcast._common.batches import column_of
from pyspark_ringcast._common.column_options import read_schema
from pyspark_ringcast._common.mapping import ReadColumns
from pyspark_ringcast._common.options import Options
from pyspark_ringcast._common.session_options import session_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOT_ADDED: Final = frozenset({"partition", "deleted"})
"""What is left out unless ``columns`` names it."""
_HOWS: Final = ("left", "inner")


def lookup(frame: DataFrame, *, how: str = "left", **options: object) -> DataFrame:
    """The DataFrame with the columns of the row that each of its ids has: ``value``, ``version`` and ``metadata``.

    It is shuffled so that the ids of one partition of the store are in one task; a task asks for 1,000 ids at once, and
    keeps no more rows than these in memory. All rows are those of one snapshot, taken now, however often it is run.

    Args:
        frame: Has a column ``row_id``, or that of the option ``idColumn``. Nulls, ids that are not there and ids of
            deleted rows find nothing.
        how: ``left`` gives nulls where nothing is found, ``inner`` leaves such rows out.
        options: What a read takes, but those that say which rows; of others the configuration of the session has the
            defaults (``spark.ringcast.<option>``). ``columns`` names what is added, in place of the above; ``tasks``
            how many tasks do it.

    Raises:
        InvalidInputError: an option is wrong or does not go with it, or a column is missing or stands there already.
        UnknownStoreError, UnknownKeyError: nothing of that name is there.
        UnavailableError: there was no reply in time.
    """
    asked = _checked(frame, how, session_options(frame.sparkSession, options))
    there = next(field.name for field in frame.schema.fields if field.name.lower() == asked.id_column.lower())
    snapshot = take_snapshot(asked)
    schema = frame.sparkSession.createDataFrame([], read_schema(asked)).schema
    added = [StructField(field.name, field.dataType) for field in schema.fields[1:]]
    ids = home(there, len(snapshot.heads))
    placed = frame.repartition(asked.tasks, ids) if asked.tasks else frame.repartition(ids)
    return placed.mapInArrow(_adding(snapshot, schema, there, how), StructType([*frame.schema.fields, *added]))


def _checked(frame: DataFrame, how: str, options: Options) -> Options:
    """With the columns to read, the id first."""
    if how not in _HOWS:
        raise InvalidInputError(f"how is {shown(how)}: {' or '.join(_HOWS)} is allowed", field="how")
    for name, given in (
        ("partitions", options.partitions is not None),
        ("row_ids", options.row_ids is not None),
        ("since", bool(options.since)),
        ("include_deleted", options.include_deleted),
        ("read_change_feed", options.read_change_feed),
    ):
        if given:
            raise InvalidInputError(f"option {name} goes with reads, not with a lookup", field=name)
    kinds = {field.name.lower(): field.dataType.simpleString() for field in frame.schema.fields}
    kind = kinds.get(options.id_column.lower())
    if kind != "string":
        why = "is missing" if kind is None else f"is of type {kind}: it must be string"
        raise InvalidInputError(f"column {options.id_column} {why}: it has the ids to look up", field=options.id_column)
    wanted = [name for name in options.read_columns() if name != options.id_column]
    if options.columns is None:
        wanted = [name for name in wanted if name not in _NOT_ADDED]
    for name in wanted:
        if name.lower() in kinds:
            raise InvalidInputError(f"column {shown(name)} exists already: rename it, or leave it out", field=name)
    return replace(options, columns=(options.id_column, *wanted))


def _adding(
    snapshot: Snapshot, schema: StructType, id_column: str, how: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task does."""

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = ReadColumns(snapshot.options, schema)
        for batch in batches:
            for start in range(0, len(batch), limits.MAX_BATCH_ROWS):
                some = batch.slice(start, limits.MAX_BATCH_ROWS)
                row_ids = column_of(some, id_column)
                found = _rows(snapshot, columns, row_ids)
                places = {row_id: place for place, row_id in enumerate(found.column(0).to_pylist())}
                taken = pa.array([places.get(row_id) for row_id in row_ids], pa.int64())
                if how == "inner":
                    some, taken = some.filter(taken.is_valid()), taken.drop_null()
                rest = found.take(taken).columns[1:]
                names = [*some.schema.names, *found.schema.names[1:]]
                yield pa.RecordBatch.from_arrays([*some.columns, *rest], names=names)

    return add


def _rows(snapshot: Snapshot, columns: ReadColumns, row_ids: Sequence[object]) -> pa.RecordBatch:
    """The rows of these ids that there are."""
    possible = list(dict.fromkeys(row_id for row_id in row_ids if isinstance(row_id, str) and _may_be(row_id)))
    homes = row_partitions(possible, len(snapshot.heads))
    task = ReadTask(tuple(sorted(set(homes))), tuple(possible))
    found = [columns.of(batch) for batch in read_task(snapshot, task)] if possible else []
    return pa.Table.from_batches(found, columns.schema).combine_chunks().to_batches()[0] if found else columns.none()


def _may_be(row_id: str) -> bool:
    """Whether a row can have it: the service refuses to look for others."""
    return 0 < len(row_id.encode(errors="replace")) <= limits.MAX_ROW_ID_BYTES and "\0" not in row_id
