"""What is looked at before a job writes, and at its end, whether its rows are written or staged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ringcast_wire import InvalidInputError, RowRule, shown
from ringcast_wire.grpc import pb

from pyspark_ringcast._batch.reports import check_paths
from pyspark_ringcast._common.batches import Rejected
from pyspark_ringcast._common.mapping import check_value_column
from pyspark_ringcast._common.options import Operation, Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_IGNORED: Final = frozenset({"version", "partition"})
"""Columns of a read that mean nothing to a write."""


def check_write(options: Options, schema: StructType, *, overwrite: bool) -> None:
    """Raises ``InvalidInputError``: a column is missing, unknown or of another type, or options are wrong."""
    _check_columns(schema, options)
    if overwrite and options.operation is Operation.DELETE:
        raise InvalidInputError("option operation is delete: that goes with mode append, not with overwrite")
    check_paths(options)


def check_rejected(options: Options, rejected: Sequence[Rejected]) -> None:
    """Raises ``InvalidInputError`` where they are more than ``max_rejected``."""
    if len(rejected) > options.max_rejected:
        row = rejected[-1]
        raise InvalidInputError(
            f"{len(rejected)} rows were rejected, and option max_rejected allows {options.max_rejected}; "
            f"one is {row.row_id!r}: {row.reason}",
            field="max_rejected",
        )


def rejected_by_service(row: pb.RejectedRow) -> Rejected:
    """As the service says it."""
    return Rejected(row.row_id, row.code or RowRule.OTHER, row.field or None, row.reason)


def _check_columns(schema: StructType, options: Options) -> None:
    """Refuses columns that a write has no use for: most often they have another name than was meant."""
    wanted = _columns(options)
    taken = ", ".join(f"{name} ({kind})" if kind else name for name, kind in wanted.items())
    lower = {name.lower(): kind for name, kind in wanted.items()}
    there: set[str] = set()
    for column in schema.fields:
        if column.name.lower() in there:
            raise InvalidInputError(f"column {shown(column.name)} stands twice: case does not count", field=column.name)
        there.add(column.name.lower())
    for name in _needed(options):
        if name.lower() not in there:
            raise InvalidInputError(f"column {name} is missing: a write takes {taken}", field=name)
    for column in schema.fields:
        name, kind = column.name.lower(), column.dataType.simpleString()
        if name not in lower and name not in _IGNORED:
            raise InvalidInputError(f"column {shown(name)} is unknown: a write takes {taken}", field=name)
        if name not in lower:
            continue
        if lower[name] is None:
            check_value_column(column)
        elif lower[name] != kind:
            raise InvalidInputError(f"column {name} is of type {kind}: it must be {lower[name]}", field=name)


def _columns(options: Options) -> dict[str, str | None]:
    """The columns that a write takes, and their types; of those of the value there is a choice."""
    values: dict[str, str | None] = {column.name: None for column in options.value_columns}
    entries = dict.fromkeys(options.metadata_columns, "string") or {"metadata": "map<string,string>"}
    return {options.id_column: "string", **(values or {"value": "string"}), "deleted": "boolean", **entries}


def _needed(options: Options) -> list[str]:
    if options.operation is Operation.DELETE:
        return [options.id_column]
    return [options.id_column, *([column.name for column in options.value_columns] or ["value"])]
