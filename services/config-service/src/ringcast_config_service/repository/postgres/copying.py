"""Planned rows as the text that PostgreSQL's COPY reads: https://www.postgresql.org/docs/current/sql-copy.html.

Text, since a line is one string operation here, where the binary format is an encoder's call a column, and costs the
server no more. What a row and its revision have in common is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from typing import Final, TypeAlias

from ringcast_config_service.repository.base import Authorship
from ringcast_config_service.repository.mapping import from_authorship
from ringcast_config_service.repository.packing import pack_metadata
from ringcast_config_service.repository.postgres.new_rows import NewRows
from ringcast_config_service.repository.writes import KeyRef, PlannedRow

_COMMON_COLUMNS: Final = ("key_id", "partition", "row_id", "value")
ROW_COLUMNS: Final = (*_COMMON_COLUMNS, "version", "deleted", "metadata", "written_at_ms", "size")
HISTORY_COLUMNS: Final = (
    *_COMMON_COLUMNS,
    "revision",
    "deleted",
    "metadata",
    "written_at_ms",
    "prev",
    "author",
    "reason",
)
"""What is new in great numbers is copied, where the database takes that, at half the cost of an insert."""

_PIECE_ROWS: Final = 500
_KEY: Final = attrgetter("key")
_BY: Final = attrgetter("by")
_NULL: Final = r"\N"
_TABS: Final = 6
"""In a line that nothing had to be escaped in."""
Piece: TypeAlias = tuple[list[str], Sequence[int]]
"""Lines of some rows, as far as both tables have the same columns, and the rows' sizes."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def common_columns(rows: Sequence[PlannedRow], key_ids: Mapping[KeyRef, int]) -> list[str]:
    """For each row the columns from ``key_id`` to ``metadata``, which both tables begin with."""
    lines: list[str] = []
    for key, of_key in groupby(rows, _KEY):
        key_id = key_ids[key]
        lines += [
            f"{key_id}\t{partition}\t{row_id}\t{value or ''}\t{version}\t{'t' if value is None else 'f'}\t"
            f"{_NULL if metadata is None else pack_metadata(metadata)}"
            for _, partition, row_id, value, version, metadata, *_ in of_key
        ]
    nulls = sum(row.metadata is None for row in rows)
    return lines if _is_plain(lines, nulls) else [_escaped(row, key_ids) for row in rows]


def planned_pieces(rows: Sequence[PlannedRow], key_ids: Mapping[KeyRef, int]) -> Iterator[Piece]:
    """The rows in pieces."""
    for start in range(0, len(rows), _PIECE_ROWS):
        piece = rows[start : start + _PIECE_ROWS]
        yield common_columns(piece, key_ids), [row.size for row in piece]


def new_pieces(new: Iterable[NewRows], key_ids: Mapping[KeyRef, int]) -> Iterator[Piece]:
    """The same of rows that are all new."""
    for rows in new:
        for start in range(0, len(rows.versions), _PIECE_ROWS):
            piece = rows.piece(start, start + _PIECE_ROWS)
            yield _new_columns(piece, key_ids), piece.rows.sizes


def _new_columns(new: NewRows, key_ids: Mapping[KeyRef, int]) -> list[str]:
    rows, key_id = new.rows, key_ids[new.key]
    columns = zip(rows.partitions, rows.row_ids, rows.values, new.versions, strict=True)
    lines = [
        f"{key_id}\t{partition}\t{row_id}\t{value}\t{version}\tf\t{_NULL}"
        for partition, row_id, value, version in columns
    ]
    return lines if _is_plain(lines, len(lines)) else [_escaped(row, key_ids) for row in new.planned()]


async def row_lines(pieces: Iterable[Piece], now_ms: int, common: list[str]) -> AsyncIterator[bytes]:
    """Lines of the table ``rows`` (``ROW_COLUMNS``) in pieces; what they begin with is added to ``common``.

    A piece is on its way, and the server stores it, while the next is put together.
    """
    for lines, sizes in pieces:
        common += lines
        yield "".join([f"{line}\t{now_ms}\t{size}\n" for line, size in zip(lines, sizes, strict=True)]).encode()
        await asyncio.sleep(0)  # the loop sends it


def planned_ends(history: Iterable[PlannedRow]) -> list[str]:
    """For each row what its line in the table ``history`` ends with, from ``prev`` on."""
    ends: list[str] = []
    for by, rows in groupby(history, _BY):
        authorship = _authorship(by)
        ends += [f"{row.prev}\t{authorship}" for row in rows]
    return ends


def new_ends(new: Iterable[NewRows]) -> list[str]:
    """The same of rows that are all new."""
    return [end for rows in new for end in repeat(f"0\t{_authorship(rows.by)}", len(rows.versions))]


def _authorship(by: Authorship) -> str:
    return "\t".join(_NULL if text is None else text.translate(_ESCAPES) for text in from_authorship(by))


async def history_lines(ends: Sequence[str], common: Sequence[str], now_ms: int) -> AsyncIterator[bytes]:
    """Lines of the table ``history`` (``HISTORY_COLUMNS``), in the same way; ``common`` is what they begin with."""
    for start in range(0, len(common), _PIECE_ROWS):
        yield _ended(common[start : start + _PIECE_ROWS], ends[start : start + _PIECE_ROWS], now_ms).encode()
        await asyncio.sleep(0)


def _ended(lines: Sequence[str], ends: Sequence[str], now_ms: int) -> str:
    """Lines with their ends; where all are the same, as of new rows, that is one string operation for all."""
    if ends.count(ends[0]) == len(lines):
        end = f"\t{now_ms}\t{ends[0]}\n"
        return end.join(lines) + end
    return "".join([f"{line}\t{now_ms}\t{end}\n" for end, line in zip(ends, lines, strict=True)])


def _is_plain(lines: Sequence[str], nulls: int) -> bool:
    """Whether the lines mean what they say: each character that COPY takes for another thing is one that we put there.

    A look at the whole text costs a tenth of a look at each value.
    """
    text = "".join(lines)
    return (
        text.count("\t") == _TABS * len(lines) and text.count("\\") == nulls and "\n" not in text and "\r" not in text
    )


def _escaped(row: PlannedRow, key_ids: Mapping[KeyRef, int]) -> str:
    key, partition, row_id, value, version, metadata, *_ = row
    packed = pack_metadata(metadata)
    return "\t".join(
        (
            f"{key_ids[key]}\t{partition}",
            row_id.translate(_ESCAPES),
            (value or "").translate(_ESCAPES),
            str(version),
            "t" if value is None else "f",
            _NULL if packed is None else packed.translate(_ESCAPES),
        )
    )
