"""Micro-batches as writes: each changes the store once, however often Spark sends it.

Spark sends a batch again, under its number, when it does not know that the batch was committed: after a crash between
the sink's commit and its own note of it. The number of the last batch of a query is therefore kept in the store, in the
config key ``spark-sinks``, and what is sent again under it is passed over. A batch that was cut off half-way is written
again, and every row that is as it should be is left alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from ringcast_wire import InvalidInputError

from pyspark_ringcast._batch.counts import Counts
from pyspark_ringcast._batch.write import RingcastWriter, Written
from pyspark_ringcast._client.sink_notes import check_room, read_note, remove_old_notes, write_note
from pyspark_ringcast._common.mapping import WriteColumns
from pyspark_ringcast._common.options import Options, parse_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark puts among the options of a sink."""
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class _Task(WriterCommitMessage):
    """What a task did; nothing (``written`` is ``None``) where the batch was done before."""

    query: str
    written: Written | None


class _Entry(msgspec.Struct):
    """``last``: what became of the rows of that batch. ``total``: of all. ``until_s``: when it was committed."""

    batch: int
    last: Counts = Counts()
    total: Counts = Counts()
    until_s: float = math.inf


class RingcastStreamWriter(DataSourceStreamArrowWriter):
    """Travels to the tasks; another is made for each commit."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Checks the columns and looks for the store.

        Raises:
            LimitExceededError: the store has so many config keys that there is no room for ``spark-sinks``.
            RingcastError: as a batch write does.
        """
        self._options = parse_options({name: text for name, text in given.items() if name.lower() not in _SPARKS_OWN})
        if self._options.release:
            raise InvalidInputError(
                "option release goes with a batch write, not with a stream, each batch of which would be a release: "
                "call stage_release in foreachBatch",
                field="release",
            )
        self._writer = RingcastWriter(self._options, schema, overwrite)
        check_room(self._options, self._writer.keys)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task: of rows with one id the last is written, or that with the greatest ``version`` if they have one.

        Raises:
            InvalidInputError: more rows of the task were rejected than ``maxRejected``.
            RingcastError: a batch was refused, or the service stayed away.
        """
        query, batch = _running()
        columns = WriteColumns(self._options)
        rows = _last_of_each([columns.with_ids(frame) for frame in iterator])
        # Not before the rows are there: a slow task may have a copy, and the batch is committed with that by now.
        if _is_done(_noted(self._options, query), batch):
            return _Task(query, None)
        written = self._writer.write(iter(rows))
        assert isinstance(written, Written)
        return _Task(query, written)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, once every task is done.

        Raises:
            InvalidInputError: more rows were rejected than ``maxRejected``.
            RingcastError: the service refused or stayed away; Spark then sends the batch again.
        """
        tasks = [message for message in messages if isinstance(message, _Task)]
        if not tasks or _is_done(before := _noted(self._options, tasks[0].query), batchId):
            return
        counts = self._writer.settle([task.written for task in tasks], f"{tasks[0].query}-{batchId}")
        total = counts + before.total if before else counts
        if before is None:  # a query begins: the notes of those that have ended are looked at, once for each query
            remove_old_notes(self._options)
        noted = _Entry(batchId, counts, total, time.time())
        write_note(self._options, _ledger_row(self._options, tasks[0].query), noted)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays: the batch is sent again, and then only the rest of it changes anything."""
        tasks = [message for message in messages if isinstance(message, _Task)]
        if tasks:
            self._writer.give_up([task.written for task in tasks], f"{tasks[0].query}-{batchId}")


def _running() -> tuple[str, int]:
    """The query and the batch that this task belongs to."""
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context else None
    batch = context.getLocalProperty(_BATCH) if context else None
    if not query or batch is None:
        raise RuntimeError(f"Spark did not say which batch this is: {_QUERY} or {_BATCH} is not set")
    return query, int(batch)


def _ledger_row(options: Options, query: str) -> str:
    return f"{options.key}/{query}"


def _is_done(noted: _Entry | None, batch: int) -> bool:
    return noted is not None and noted.batch == batch


def _noted(options: Options, query: str) -> _Entry | None:
    """The last batch of a query that was committed."""
    found = read_note(options, _ledger_row(options, query), _Entry)
    return found[0] if found else None


def _last_of_each(frames: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows without those that a later one of the same id makes obsolete: writing both would change it twice."""
    if not frames:
        return []
    table = pa.Table.from_batches(frames)
    if pc.count_distinct(table.column("row_id"), mode="all").as_py() == len(table):
        return list(frames)
    if "version" in table.column_names and pa.types.is_integer(table.schema.field("version").type):
        table = table.sort_by("version")
    places = pa.table({"row_id": table.column("row_id"), "place": pa.array(range(len(table)), pa.int64())})
    last = places.group_by("row_id").aggregate([("place", "max")]).column("place_max")
    nulls = places.filter(pc.is_null(places.column("row_id"))).column("place")  # each of them is to be reported
    kept = pc.unique(pa.chunked_array([*last.chunks, *nulls.chunks], pa.int64()))
    return list(table.take(kept.take(pc.sort_indices(kept))).to_batches())
