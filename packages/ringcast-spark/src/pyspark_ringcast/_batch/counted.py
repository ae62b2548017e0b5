"""A write that returns what became of its rows: Spark takes no figures from a sink that is written in Python."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from ringcast_wire import InvalidInputError, shown

from pyspark_ringcast._batch.counts import Counts
from pyspark_ringcast._batch.write import RingcastWriter
from pyspark_ringcast._common.session_options import session_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

_MODES: Final = ("append", "overwrite")
_MESSAGE: Final = "message"


def write(frame: DataFrame, *, mode: str = "append", **options: object) -> Counts:
    """Writes a DataFrame as ``frame.write.format("ringcast")`` does, and returns what became of its rows.

    Tasks are tried again as those of any write. The commit runs in the process that calls: with Spark Connect that is
    the client, which must reach the config service then.

    Args:
        frame: As for a write.
        mode: ``append`` or ``overwrite``.
        options: What a write takes; of others the configuration of the session has the defaults
            (``spark.ringcast.<option>``).

    Raises:
        InvalidInputError: an option, a column or the mode is wrong, or more rows were rejected than ``maxRejected``.
        OverwriteRefusedError: it would delete more than it may.
        RingcastError: the service refused.
        PySparkException: a task failed in all its tries, most often since the service could not be reached.
    """
    check_mode(mode)
    asked = session_options(frame.sparkSession, options)
    if asked.release:
        raise InvalidInputError(
            "option release goes with stage_release, which returns the number of the release", field="release"
        )
    writer = RingcastWriter(asked, frame.schema, mode == "overwrite")
    return writer.settle(run_tasks(writer, frame), uuid.uuid4().hex)


def check_mode(mode: str) -> None:
    """Raises ``InvalidInputError`` for a mode that there is not."""
    if mode not in _MODES:
        raise InvalidInputError(f"mode is {shown(mode)}: {' or '.join(_MODES)} is allowed", field="mode")


def run_tasks(writer: DataSourceArrowWriter, frame: DataFrame) -> list[WriterCommitMessage | None]:
    """What each task of a writer says; a task that is tried again, or runs twice, says it once."""
    messages = frame.mapInArrow(_writing(writer), f"{_MESSAGE} BINARY").collect()
    return [pickle.loads(row[_MESSAGE]) for row in messages]  # noqa: S301  # as Spark does with messages of tasks


def _writing(writer: DataSourceArrowWriter) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task does; it gives one row, which says what it has done."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({_MESSAGE: pa.array([pickle.dumps(writer.write(batches))], pa.binary())})

    return run
