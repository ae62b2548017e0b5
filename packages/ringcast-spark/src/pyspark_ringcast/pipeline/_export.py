"""The way back: a snapshot, and the history of changes, as Parquet."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from ringcast_wire import InvalidInputError

from pyspark_ringcast._common.since import vector_text
from pyspark_ringcast.pipeline._files import absolute, check_free, read_file, write_file
from pyspark_ringcast.pipeline._target import State, Target, load_live, read_state

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pyspark_ringcast._common.options import Options

MAX_EXPORT_BYTES: Final = 1024 * 1024
_PAGE_ROWS: Final = 10_000
_TASKS: Final = 16
_ABOUT: Final = "export.json"

HISTORY_SCHEMA: Final = (
    "partition INT, version BIGINT, row_id STRING, value STRING, deleted BOOLEAN, "
    "metadata MAP<STRING, STRING>, written_at TIMESTAMP, author STRING, reason STRING"
)


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported; it stands beside the Parquet as ``export.json``, written last."""

    target: Target
    kind: str
    """``snapshot`` or ``history``."""
    rows: int
    heads: list[int]
    """The revisions that it is consistent with: an export of the history can go on from there."""
    made_at: datetime.datetime

    @property
    def since(self) -> str:
        """What a read with the option ``since`` takes, to give what changed after the export."""
        return vector_text(self.heads)


def read_export(path: str) -> Export:
    """What stands in ``export.json``.

    Raises:
        InvalidInputError: there is no export at ``path``.
    """
    try:
        return msgspec.json.decode(read_file("export", f"{path}/{_ABOUT}", MAX_EXPORT_BYTES), type=Export)
    except msgspec.MsgspecError as error:
        raise InvalidInputError(f"export {path} can't be read: {error}", field="export") from None


def export_snapshot(spark: SparkSession, target: Target, path: str) -> Export:
    """Writes all live rows, as of one moment, to ``path/rows``: what a read of the format ``ringcast`` gives.

    Raises:
        InvalidInputError: something is at ``path``.
        UnavailableError: NATS or the config service did not answer in time.
    """
    path = absolute(path)
    check_free("path", path)
    state, live = load_live(spark, target)
    live.write.mode("overwrite").parquet(f"{path}/rows")
    return _finish(spark, path, target, "snapshot", state.heads, f"{path}/rows")


def export_history(spark: SparkSession, target: Target, path: str, *, since: Sequence[int] | None = None) -> Export:
    """Writes every revision that the service still knows, up to now, to ``path/revisions``.

    Args:
        spark: The session.
        target: The key.
        path: A directory that is not there.
        since: Only revisions above these, by partition: ``heads`` of an earlier export.

    Raises:
        InvalidInputError: something is at ``path``, or ``since`` has another number of partitions.
        UnavailableError: the config service did not answer in time.
    """
    from pyspark_ringcast._common.options import parse_options

    path = absolute(path)
    check_free("path", path)
    state = read_state(target)
    low = list(since or [0] * state.partition_count)
    if len(low) != state.partition_count:
        raise InvalidInputError(f"since has {len(low)} partitions: {target} has {state.partition_count}", field="since")
    options = parse_options(target.options())
    moved = _ranges(state, low)
    ranges = spark.createDataFrame(moved, "partition INT, low BIGINT, high BIGINT")
    read = _history_reader(options)
    # By number: of few rows Spark would otherwise make one task.
    tasks = min(_TASKS, len(moved)) or 1
    ranges.repartition(tasks, "partition").mapInArrow(read, HISTORY_SCHEMA).write.parquet(f"{path}/revisions")
    return _finish(spark, path, target, "history", state.heads, f"{path}/revisions")


def _ranges(state: State, low: Sequence[int]) -> list[tuple[int, int, int]]:
    bounds = enumerate(zip(low, state.heads, strict=True))
    return [(number, first, last) for number, (first, last) in bounds if last > first]


def _history_reader(options: Options) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task of its own for some partitions: they are asked for one after another."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from _revisions(options, row["partition"], row["low"], row["high"])

    return read


def _revisions(options: Options, partition: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
    """Pages, so that a call that breaks is asked again from the last revision that came."""
    from ringcast_client.blocking import retried
    from ringcast_wire.grpc import pb

    from pyspark_ringcast._client.service import shared_stub
    from pyspark_ringcast._common.opening import keys_of, opened

    keys = keys_of(options)
    stub = shared_stub(options.service)
    while low < high:
        request = pb.HistoryRequest(
            store=options.store, key=options.key, partition=partition, since=low, limit=_PAGE_ROWS
        )

        def page(left_s: float, request: Any = request) -> list[Any]:
            return [one for reply in stub.History(request, timeout=left_s) for one in reply.revisions]

        found = retried(page, options.timeout_s)
        if not found:
            return
        low = found[-1].row.version
        batch = _batch([one for one in found if one.row.version <= high])
        yield batch if keys is None else opened(keys, batch)


def _batch(revisions: Iterable[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("version", pa.int64()),
            ("row_id", pa.string()),
            ("value", pa.string()),
            ("deleted", pa.bool_()),
            ("metadata", pa.map_(pa.string(), pa.string())),
            ("written_at", pa.timestamp("us", "UTC")),
            ("author", pa.string()),
            ("reason", pa.string()),
        ]
    )
    rows = [
        {
            "partition": one.row.partition,
            "version": one.row.version,
            "row_id": one.row.row_id,
            "value": None if one.row.deleted else one.row.value,
            "deleted": one.row.deleted,
            "metadata": list(one.row.metadata.items()) or None,
            "written_at": one.written_at_ms * 1_000,
            "author": one.author or None,
            "reason": one.reason or None,
        }
        for one in revisions
    ]
    return pa.RecordBatch.from_pylist(rows, schema)


def _finish(spark: SparkSession, path: str, target: Target, kind: str, heads: list[int], data: str) -> Export:
    made = Export(
        target=target,
        kind=kind,
        rows=spark.read.parquet(data).count(),
        heads=heads,
        made_at=datetime.datetime.now(datetime.UTC),
    )
    write_file("path", f"{path}/{_ABOUT}", msgspec.json.encode(made))
    return made
