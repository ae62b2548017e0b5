"""Answers to fetches as they grow: each page of records is encoded at once, without an object a row.

A million small rows are a few MB, but hundreds of MB as objects. So an answer takes the memory of its bytes and of one
page, and says beforehand about how much that will be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, Protocol

from ringcast_wire import WIRE_VERSION, FetchReplyWriter, InternalError, LimitExceededError, PlainRow, Row, limits

from ringcast_config_service.repository.base import LargeAnswerError
from ringcast_config_service.repository.mapping import Record, to_row
from ringcast_config_service.repository.paging import PageSize

_ROW_BYTES: Final = 24
"""What a row has in an answer beside its text: its version, and the lengths of its fields."""


def answer_bytes(rows: int, text_bytes: int) -> int:
    """About how many bytes an answer has with so many rows, and so many bytes of ids, values and metadata."""
    return text_bytes + rows * _ROW_BYTES


def check_full_size(heads: Sequence[Record], store: str, key: str) -> None:
    """Refuses a whole key that is larger than is allowed, or whose answer is; ``heads`` as in :class:`KeyAnswer`."""
    size, rows = (sum(head[column] for head in heads) for column in (2, 3))
    if size > limits.MAX_FULL_BYTES:
        raise LimitExceededError(
            f"{store}/{key} has {size} bytes, a full fetch may have {limits.MAX_FULL_BYTES}: "
            "fetch partition by partition"
        )
    if answer_bytes(rows, size) > limits.MAX_REPLY_BYTES:
        raise LimitExceededError(
            f"{store}/{key} has {rows} rows, about {answer_bytes(rows, size)} bytes in a reply, which may have "
            f"{limits.MAX_REPLY_BYTES}: fetch partition by partition"
        )


def may_exceed(row_ids: Sequence[str], live_bytes: int, most_bytes: int) -> bool:
    """Whether an answer of named rows may be too large, so that their size has to be looked up before they are read.

    ``live_bytes``: of all rows of their partitions, which have no fewer.
    """
    size = named_bytes(row_ids, min(live_bytes, len(row_ids) * limits.MAX_ROW_BYTES))
    return size > min(most_bytes, limits.MAX_REPLY_BYTES)


def check_named_rows(row_ids: Sequence[str], live_bytes: int, most_bytes: int) -> None:
    """Looks whether there is room for named rows; ``live_bytes``: of those that are not deleted.

    Raises:
        LimitExceededError: they are larger than one reply may be.
        LargeAnswerError: the answer would have over ``most_bytes``.
    """
    if live_bytes > limits.MAX_REPLY_BYTES:
        raise LimitExceededError(
            f"the rows asked for have {live_bytes} bytes, a reply may have {limits.MAX_REPLY_BYTES}: ask for fewer",
            field="row_ids",
        )
    if (size := named_bytes(row_ids, live_bytes)) > most_bytes:
        raise LargeAnswerError(size)


def named_bytes(row_ids: Sequence[str], live_bytes: int) -> int:
    """About how many bytes an answer of named rows has; ``live_bytes`` as in :func:`check_named_rows`.

    A tombstone counts as nothing in ``live_bytes``, and has its id in an answer. Of each row the entry of its partition
    may be another.
    """
    return answer_bytes(2 * len(row_ids), live_bytes + sum(len(row_id.encode()) for row_id in row_ids))


class Answer(Protocol):
    """An encoded answer that takes its records page by page."""

    @property
    def rows(self) -> int:
        """About how many records there are; no fewer."""

    @property
    def page_rows(self) -> int:
        """How many records the next page is to have at most; it has about 1 MiB then."""

    def add(self, page: Sequence[Record]) -> None:
        """Takes the next records."""

    def finish(self) -> bytearray:
        """The encoded answer, once every record was added."""


class PartitionAnswer:
    """Rows of one partition. ``version``: the wire version of the answer."""

    def __init__(
        self, history: str, partition: int, revision: int, *, whole: bool, rows: int, version: int = WIRE_VERSION
    ) -> None:
        self.rows = rows
        self._history = history
        self._size = PageSize()
        self._writer = FetchReplyWriter(1, version)
        self._writer.begin(partition, revision, whole)

    @property
    def page_rows(self) -> int:
        return self._size.rows

    def add(self, page: Sequence[Record]) -> None:
        before = len(self._writer)
        self._writer.add([_encodable(record) for record in page])
        self._size.learn(len(page), len(self._writer) - before)

    def finish(self) -> bytearray:
        return self._writer.finish(self._history)


class KeyAnswer:
    """All live rows of a key: ``heads`` (partition, head, bytes, rows) in order; records come in that order too."""

    def __init__(self, history: str, heads: Sequence[Record], version: int = WIRE_VERSION) -> None:
        self.rows = sum(head[3] for head in heads)
        self._history = history
        self._size = PageSize()
        self._writer = FetchReplyWriter(len(heads), version)
        self._heads = iter(heads)
        self._partition = -1

    @property
    def page_rows(self) -> int:
        return self._size.rows

    def add(self, page: Sequence[Record]) -> None:
        before = len(self._writer)
        for partition, records in groupby(page, lambda record: record[0]):
            if partition != self._partition:
                self._begin(partition)
            self._writer.add([_encodable(record[1:]) for record in records])
        self._size.learn(len(page), len(self._writer) - before)

    def finish(self) -> bytearray:
        self._begin(None)
        return self._writer.finish(self._history)

    def _begin(self, partition: int | None) -> None:
        """Begins the entries up to that of the partition, or all that are left: partitions may have no rows."""
        for number, head, *_ in self._heads:
            self._writer.begin(number, head, True)
            self._partition = number
            if number == partition:
                return
        if partition is not None:
            raise InternalError(f"partition {partition} has rows and no head")


def slices(records: Sequence[Record], answer: Answer) -> Iterable[None]:
    """Adds records that are all there in pages; the caller may let others go on after each."""
    first = 0
    while first < len(records):
        page = records[first : first + answer.page_rows]
        answer.add(page)
        first += len(page)
        yield


def _encodable(record: Record) -> Row | PlainRow:
    row_id, value, version, deleted, metadata = record
    return to_row(*record) if deleted or metadata else (row_id, value, version)
