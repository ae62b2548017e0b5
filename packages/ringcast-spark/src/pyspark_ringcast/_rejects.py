"""The report of rejected rows: a Parquet file a job, in a directory that Spark reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from ringcast_wire import InvalidInputError

from pyspark_ringcast._batches import Rejected

SCHEMA: Final = pa.schema([pa.field("row_id", pa.string()), pa.field("reason", pa.string(), nullable=False)])


def check_path(path: str) -> None:
    """Looks whether the driver can make the directory, before anything is written.

    Raises:
        InvalidInputError: it can't.
    """
    _directory(path)


def write_rejects(path: str, job: str, rejected: Sequence[Rejected]) -> None:
    """Writes the report of a job; writing it again replaces it.

    Raises:
        InvalidInputError: the path can't be written to.
    """
    system, directory = _directory(path)
    table = pa.Table.from_pylist([row._asdict() for row in rejected], schema=SCHEMA)
    try:
        pq.write_table(table, f"{directory}/rejected-{job}.parquet", filesystem=system)
    except OSError as error:
        raise _refusal(error) from None


def _directory(path: str) -> tuple[fs.FileSystem, str]:
    try:
        system, directory = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
        system.create_dir(directory, recursive=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _refusal(error) from None
    return system, directory


def _refusal(error: Exception) -> InvalidInputError:
    # Neither the path nor all of what the library says: an address of object storage may hold a secret.
    return InvalidInputError(
        f"option rejects_path can't be written to by the driver: {type(error).__name__}", field="rejects_path"
    )
