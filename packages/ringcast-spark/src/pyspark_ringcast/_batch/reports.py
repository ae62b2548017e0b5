"""What a job leaves in directories that Spark reads: rejected rows and counts, a Parquet file a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from ringcast_wire import InvalidInputError

from pyspark_ringcast._batch.counts import Counts
from pyspark_ringcast._common.batches import Rejected
from pyspark_ringcast._common.options import Options

REJECTS: Final = pa.schema(
    [
        pa.field("row_id", pa.string()),
        pa.field("code", pa.string(), nullable=False),
        pa.field("field", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
_NAMES: Final = ("store", "key", "job")
COUNTS: Final = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in _NAMES),
        *(pa.field(name, pa.int64(), nullable=False) for name in Counts.__struct_fields__),
        pa.field("release", pa.int64()),
    ]
)


def check_paths(options: Options) -> None:
    """Looks whether the driver can make the directories, before anything is written.

    Raises:
        InvalidInputError: it can't.
    """
    for option, path in (("rejects_path", options.rejects_path), ("counts_path", options.counts_path)):
        if path is not None:
            _directory(option, path)


def write_rejects(path: str, job: str, rejected: Sequence[Rejected]) -> None:
    """Writes the rejected rows of a job; writing them again replaces them.

    Raises:
        InvalidInputError: the path can't be written to.
    """
    rows = [row._asdict() for row in rejected]
    _write("rejects_path", path, f"rejected-{job}", pa.Table.from_pylist(rows, schema=REJECTS))


def write_counts(options: Options, job: str, counts: Counts, release: int | None = None) -> None:
    """Writes the counts of a job, one row, where the options say that they are wanted; raises as above.

    ``release``: the number of the release that its rows are staged in.
    """
    if options.counts_path is not None:
        names = dict(zip(_NAMES, (options.store, options.key, job), strict=True))
        row = names | counts.by_name() | {"release": release}
        _write("counts_path", options.counts_path, f"counts-{job}", pa.Table.from_pylist([row], schema=COUNTS))


def _write(option: str, path: str, name: str, table: pa.Table) -> None:
    system, directory = _directory(option, path)
    try:
        pq.write_table(table, f"{directory}/{name}.parquet", filesystem=system)
    except OSError as error:
        raise _refusal(option, error) from None


def _directory(option: str, path: str) -> tuple[fs.FileSystem, str]:
    try:
        system, directory = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
        system.create_dir(directory, recursive=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _refusal(option, error) from None
    return system, directory


def _refusal(option: str, error: Exception) -> InvalidInputError:
    # Neither the path nor all of what the library says: an address of object storage may hold a secret.
    return InvalidInputError(f"option {option} can't be written to by the driver: {type(error).__name__}", field=option)
