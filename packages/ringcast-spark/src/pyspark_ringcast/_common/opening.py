"""Encrypted values: opened in batches that were read, sealed in rows that are written, with a file on each node."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from ringcast_wire.key_ring import KeyRing, ListKeys

from pyspark_ringcast._common.columns import METADATA

if TYPE_CHECKING:
    from pyspark_ringcast._common.options import Options

_key_ring = cache(KeyRing.from_file)
"""One for all tasks of a process, which reads the file again when it has changed."""


def keys_of(options: Options) -> ListKeys | None:
    """The keys of the list; ``None`` without the option ``key_ring``.

    Raises:
        InvalidInputError: the file is no key ring, or others may read it.
    """
    return _key_ring(options.key_ring).of(options.store, options.key) if options.key_ring else None


def opened(keys: ListKeys, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with the columns of a read, its values opened. A row without a value stays as it is.

    Raises:
        ValueSealedError: a value can't be opened.
    """
    values: list[str | None] = []
    entries: list[list[tuple[str, str]] | None] = []
    columns = (batch.column(name).to_pylist() for name in ("row_id", "value", "deleted", "metadata"))
    for row_id, value, deleted, listed in zip(*columns, strict=True):
        # A change feed has the value that a delete ended, which is sealed as any other; a tombstone has none.
        if value is None or (deleted and not value):
            values.append(value)
            entries.append(listed)
            continue
        clear, metadata = keys.open(row_id, value, dict(listed) if listed else None)
        values.append(clear)
        entries.append(list(metadata.items()) if metadata else None)
    found = {"value": pa.array(values, pa.string()), "metadata": pa.array(entries, METADATA)}
    arrays = [found.get(field.name, batch.column(field.name)) for field in batch.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
