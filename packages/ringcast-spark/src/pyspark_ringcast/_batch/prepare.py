"""What is done to a DataFrame before it is written: in the JVM, where it costs least."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructType
from pyspark.sql.window import Window
from ringcast_wire import InvalidInputError, names

from pyspark_ringcast._client.service import find_store
from pyspark_ringcast._common.options import DEFAULT_SERVICE, Service

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


def partition_count(
    store: str,
    *,
    service: str = DEFAULT_SERVICE,
    timeout_s: float = 30.0,
    tls_ca_file: str = "",
    tls_cert_file: str = "",
    tls_key_file: str = "",
    token_file: str = "",
) -> int:
    """How many partitions a store has.

    Args:
        store: Its name.
        service: ``host:port`` of the config service, ``tls://host:port`` with TLS.
        timeout_s: How long a service that is away is waited for.
        tls_ca_file, tls_cert_file, tls_key_file, token_file: As the options ``service_tls_ca_file`` and so on; by
            default what the environment says.

    Raises:
        InvalidInputError: a file can't be read, or the files don't fit together.
        UnknownStoreError: there is no such store.
        UnavailableError: the config service did not answer in time.
    """
    place = Service(service, tls_ca_file, tls_cert_file, tls_key_file, token_file)
    found = find_store(place, names.check_name("store", store), timeout_s)
    return int(found.partition_count)


def prepare(
    frame: DataFrame,
    partitions: int,
    *,
    newest_by: str | None = None,
    tasks: int | None = None,
    id_column: str = "row_id",
) -> DataFrame:
    """The DataFrame with one row an id, shuffled so that each partition of the store is in one task, and sorted by it.

    A write of it touches few partitions a transaction, and no two tasks write to one partition. It may be written
    without; a data source can't shuffle its input by itself.

    Args:
        frame: Has a column ``row_id``, or ``id_column``.
        partitions: How many partitions the store has (:func:`partition_count`).
        newest_by: Of rows with one id, the one with the greatest value in this column is kept, and the column dropped;
            without it any of them.
        tasks: How many tasks are to write. By default Spark decides (``spark.sql.adaptive``) and merges small ones:
            there are about as many as cores, and fewer where a task would have less than 1 MiB of compressed rows.
        id_column: As the option of that name.

    Raises:
        InvalidInputError: there is no such column, or no store has so many partitions.
    """
    names.check_partition_count(partitions)
    there = {name.lower() for name in frame.columns}
    for column in (id_column, newest_by):
        if column is not None and column.lower() not in there:
            raise InvalidInputError(f"column {column} is missing: the DataFrame has {', '.join(frame.columns)}")
    placed = frame.withColumn("partition", home(id_column, partitions))
    placed = placed.repartition(tasks, "partition") if tasks else placed.repartition("partition")
    ids = f"`{id_column.replace('`', '``')}`"
    return _one_row_an_id(placed, newest_by, ids).sortWithinPartitions("partition", ids)


def home(id_column: str, partitions: int) -> Column:
    """The partition that the row of an id is in."""
    quoted = id_column.replace("`", "``")
    return sql.expr(f"CAST(pmod(xxhash64(`{quoted}`), {partitions}) AS INT)")


def _one_row_an_id(placed: DataFrame, newest_by: str | None, ids: str) -> DataFrame:
    """By partition and id, which the shuffle by partition serves already: there is no second one."""
    if newest_by is None:
        return placed.dropDuplicates(["partition", ids.strip("`")])
    newest_first = Window.partitionBy("partition", ids).orderBy(sql.col(newest_by).desc_nulls_last())
    rank = "ringcast_rank"
    return placed.withColumn(rank, sql.row_number().over(newest_first)).filter(f"{rank} = 1").drop(rank, newest_by)


def with_reasons(frame: DataFrame) -> DataFrame:
    """The DataFrame with ``code``, ``field`` and ``reason``: why a write would reject the row, or nulls."""

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *(pa.array(column, pa.string()) for column in _reasons(batch))],
                names=[*batch.schema.names, *_REASON_COLUMNS],
            )

    schema = StructType([*frame.schema.fields])
    for name in _REASON_COLUMNS:
        schema = schema.add(name, StringType())
    return frame.mapInArrow(add, schema)


_REASON_COLUMNS: Final = ("code", "field", "reason")


def _reasons(batch: Any) -> list[list[str | None]]:
    """A list for each of these columns."""
    from pyspark_ringcast._common.batches import checked_size, in_lower_case, read_rows, refused

    found: list[list[str | None]] = [[], [], []]
    for row in read_rows(in_lower_case(batch)):
        try:
            checked_size(row)
            why: tuple[str | None, ...] = (None, None, None)
        except InvalidInputError as error:
            why = refused(row, error)[1:]
        for column, text in zip(found, why, strict=True):
            column.append(text)
    return found
