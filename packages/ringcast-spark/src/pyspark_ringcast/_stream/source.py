"""Changes as a stream: offsets on the driver, reads in tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from ringcast_wire import InvalidInputError, names

from pyspark_ringcast._client.fetch import shared_client
from pyspark_ringcast._client.history import check_first, revisions_before
from pyspark_ringcast._client.service import find_store
from pyspark_ringcast._common.mapping import ReadColumns
from pyspark_ringcast._common.offsets import Offset, Range, first_offset, next_offset, ranges, shared_out
from pyspark_ringcast._common.options import Changes, OnChange, OnGap, Options, parse_options
from pyspark_ringcast._common.task_failures import raise_known_failure
from pyspark_ringcast._stream.read import read_ranges

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_REVISIONS_PER_TASK: Final = 20_000
_MAX_TASKS: Final = 64
_LOOK_INTERVAL_S: Final = 0.025
"""Spark asks a hundred times a second what is new, where the answer was nothing; the database need not."""


@dataclass(frozen=True)
class StreamTask(InputPartition):
    """What one task reads."""

    ranges: tuple[Range, ...]


class RingcastStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives on the driver as long as the query, another travels to the tasks."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Only keeps them: an error here would reach nobody, for Spark raises one of its own on top."""
        self._given = given
        self._schema = schema
        self._heads: list[int] = []
        self._looked_at = 0.0
        self._first = 0
        self._stop_at: list[int] | None = None
        self._planned = False

    def initialOffset(self) -> dict[str, Any]:
        """Where ``startingOffsets`` says.

        Raises:
            InvalidInputError: an option is wrong, or does not go with a stream.
            UnknownStoreError, UnknownKeyError: nothing of that name is there.
            UnavailableError: there was no reply in time.
        """
        options = self._options
        heads = self._look()
        chosen = self._chosen(heads)
        starting = options.starting_offsets
        if options.starting_timestamp is not None:
            starting = revisions_before(options, options.starting_timestamp, heads, chosen)
        return first_offset(self._options.place, starting, heads, chosen).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxRowsPerTrigger``."""
        limit = self._options.max_rows_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` where nothing is new. Raises as :meth:`initialOffset`, and:

        Raises:
            MismatchError: the checkpoint is of another list, or of a store with another number of partitions.
            ChangesLostError: the database was restored to before ``start``, and ``onGap`` is ``fail``.
        """
        begin = Offset.from_json(start, self._options.place)
        heads = self._look()
        begin.check_partition_count(len(heads))
        if self._stop_at is not None:
            heads = [min(pair) for pair in zip(heads, self._stop_at, strict=True)]
        end, self._first = next_offset(
            begin,
            heads,
            self._chosen(heads),
            limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            first=self._first,
            reset=self._options.on_gap is OnGap.SKIP,
        )
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the partitions were when they were last looked at."""
        if not self._heads:
            return None
        chosen = self._chosen(self._heads)
        return first_offset(self._options.place, "latest", self._heads, chosen).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Notes where the partitions are: what is written later is left to the next run."""
        self._stop_at = self._look()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[StreamTask]:
        """The tasks of a batch; a few thousand changes make one.

        Spark tries a failed task four times. So the first batch, which alone may begin long ago, is looked at here.

        Raises:
            ChangesLostError: the first of the changes are gone, and ``onGap`` is ``fail``.
            UnavailableError: the service did not answer in time.
        """
        options, place = self._options, self._options.place
        found = ranges(Offset.from_json(start, place), Offset.from_json(end, place), self._heads)
        if not self._planned and options.changes is Changes.EVERY and options.on_gap is OnGap.FAIL:
            check_first(options, found)
        self._planned = True
        total = sum(one.revisions for one in found)
        tasks = options.tasks or min(_MAX_TASKS, -(-total // _REVISIONS_PER_TASK))
        return [StreamTask(group) for group in shared_out(found, tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a task.

        Raises:
            ChangesLostError: some are gone, and ``onGap`` is ``fail``.
        """
        assert isinstance(partition, StreamTask)
        options, wanted, columns = self._options, partition.ranges, ReadColumns(self._options, self._schema)
        return raise_known_failure(lambda: map(columns.of, read_ranges(options, wanted, shared_client(options))))

    @cached_property
    def _options(self) -> Options:
        options = parse_options(self._given)
        ReadColumns(options, self._schema)
        for name, there in (
            ("row_ids", options.row_ids is not None),
            ("since", bool(options.since)),
            ("on_change", options.on_change is not OnChange.SNAPSHOT),
            ("version_as_of", options.version_as_of is not None),
            ("timestamp_as_of", options.timestamp_as_of is not None),
            ("release_as_of", options.release_as_of is not None),
        ):
            if there:
                raise InvalidInputError(f"option {name} goes with batch reads, not with a stream", field=name)
        return options

    def _chosen(self, heads: Sequence[int]) -> Sequence[int]:
        return range(len(heads)) if self._options.partitions is None else self._options.partitions

    def _look(self) -> list[int]:
        """The revisions as they are, looked at not too often."""
        options = self._options
        if not self._heads:
            # Tasks will need the service now and then: that it can't be reached is to show now.
            find_store(options.service, options.store, options.timeout_s)
        time.sleep(max(0.0, self._looked_at + _LOOK_INTERVAL_S - time.monotonic()))
        self._heads = shared_client(options).heads(options.store, options.key, options.timeout_s).heads
        self._looked_at = time.monotonic()
        for partition in options.partitions or ():
            names.check_partition(partition, len(self._heads))
        return self._heads
