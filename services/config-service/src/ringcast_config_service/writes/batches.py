"""Rows as clients send them, checked and made into the writes of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import NamedTuple, Protocol

from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, RowRule, check_row, limits, shown

from ringcast_config_service.repository import PlainWrites, RowWrite, WriteRequest


class RowInput(NamedTuple):
    """A row as a client sent it; ``value`` is ``None`` for a delete, and ``condition`` as in ``RowWrite``."""

    row_id: str
    value: str | None
    metadata: Mapping[str, str] | None
    condition: int | None = None


class PlainRows(NamedTuple):
    """Rows with nothing but a value, column by column; both are of one length."""

    row_ids: list[str]
    values: list[str]

    def inputs(self) -> list[RowInput]:
        """The same row by row."""
        return [RowInput(row_id, value, None) for row_id, value in zip(*self, strict=True)]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row of a batch that was left out, and why."""

    index: int
    row_id: str
    reason: str
    code: RowRule = RowRule.OTHER
    field: str | None = None


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """``request`` is ``None`` when no row is left; ``repeated`` counts the rows that a later one replaced."""

    request: WriteRequest | None
    repeated: int
    rejected: list[Rejected]


class RowCheck(Protocol):
    """What the rows of a key are held to besides."""

    @property
    def schema_id(self) -> int:
        """What a request is marked with that was checked."""

    def check(self, row_id: str, value: str, metadata: Mapping[str, str] | None) -> None:
        """Refuses a row.

        Raises:
            InvalidInputError: it breaks a rule.
        """


def check_row_policy(row_id: str, size: int, max_row_bytes: int | None) -> None:
    """Refuses a row that is larger than its store's policy allows.

    Raises:
        InvalidInputError: it is.
    """
    if max_row_bytes is not None and size > max_row_bytes:
        raise InvalidInputError(
            f"row {shown(row_id)} has {size} bytes, and the policy max_row_bytes of its store allows {max_row_bytes}",
            field="value",
            rule=RowRule.TOO_LARGE,
        )


def plain_writes(rows: PlainRows, partition_count: int, max_row_bytes: int | None = None) -> PlainWrites | None:
    """The writes, or ``None`` where each has to be checked alone: something is wrong, or an id comes twice.

    For the text that protobuf decoded, which has no lone surrogates. What is valid takes a few checks of whole columns.
    """
    row_ids, values = rows
    if len(set(row_ids)) < len(row_ids):
        return None
    id_sizes = _utf8_sizes(row_ids)
    if id_sizes is None or min(id_sizes) < 1 or max(id_sizes) > limits.MAX_ROW_ID_BYTES:
        return None
    value_sizes = _utf8_sizes(values)
    if value_sizes is None:
        return None
    sizes = list(map(add, id_sizes, value_sizes))
    if max(sizes) > (max_row_bytes or limits.MAX_ROW_BYTES) or sum(sizes) > limits.MAX_BATCH_BYTES:
        return None
    return PlainWrites(row_partitions(row_ids, partition_count), row_ids, values, sizes)


def _utf8_sizes(texts: Sequence[str]) -> list[int] | None:
    """Bytes of each text, or ``None`` if one has a NUL."""
    joined = "".join(texts)
    if "\0" in joined:
        return None
    return list(map(len, texts)) if joined.isascii() else [len(text.encode()) for text in texts]


def checked_writes(
    rows: Sequence[RowInput],
    partition_count: int,
    *,
    skip_invalid: bool,
    max_row_bytes: int | None = None,
    check: RowCheck | None = None,
) -> tuple[list[RowWrite], int, list[Rejected]]:
    """The writes, how many rows a later one replaced, and the rows that were left out.

    Raises:
        InvalidInputError: the batch is too large, or a row is invalid and ``skip_invalid`` is not set.
    """
    rejected: list[Rejected] = []
    kept: dict[str, tuple[RowInput, int]] = {}
    repeated = size = 0
    for index, row in enumerate(rows):
        try:
            row_size = check_row(row.row_id, row.value or "", row.metadata)
            if row.value is not None:
                check_row_policy(row.row_id, row_size, max_row_bytes)
                if check is not None:
                    check.check(row.row_id, row.value, row.metadata)
        except InvalidInputError as error:
            if not skip_invalid:
                raise InvalidInputError(
                    f"row {index} of the batch: {error}", field=error.field, rule=error.rule
                ) from error
            rejected.append(Rejected(index, row.row_id, str(error), error.rule, error.field))
            continue
        if row.row_id in kept:
            if row.condition is not None or kept[row.row_id][0].condition is not None:
                raise InvalidInputError(
                    f"row {index} of the batch: {shown(row.row_id)} comes twice, and a row with a condition must not",
                    field="row_id",
                )
            repeated += 1
        kept[row.row_id] = row, row_size
        size += row_size
    if size > limits.MAX_BATCH_BYTES:
        raise InvalidInputError(
            f"rows has {size} bytes: at most {limits.MAX_BATCH_BYTES} are allowed in a batch", field="rows"
        )
    partitions = row_partitions(kept, partition_count)
    writes = [
        RowWrite(partition, row_id, row.value, dict(row.metadata) if row.metadata else None, row_size, row.condition)
        for partition, (row_id, (row, row_size)) in zip(partitions, kept.items(), strict=True)
    ]
    return writes, repeated, rejected
