"""Planned rows as the text that PostgreSQL's COPY reads: https://www.postgresql.org/docs/current/sql-copy.html.

Text, since a line is one string operation here, where the binary format is an encoder's call a column, and costs the
server no more. What a row and its revision have in common is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from ringcast_config_service.repository.writes import KeyRef, PlannedRow, pack_metadata

_PIECE_ROWS: Final = 500
_KEY: Final = attrgetter("key")
_NULL: Final = r"\N"
_TABS: Final = 6
"""In a line that nothing had to be escaped in."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def common_columns(rows: Sequence[PlannedRow], key_ids: Mapping[KeyRef, int]) -> list[str]:
    """For each row the columns from ``key_id`` to ``metadata``, which both tables begin with."""
    lines: list[str] = []
    for key, of_key in groupby(rows, _KEY):
        key_id = key_ids[key]
        lines += [
            f"{key_id}\t{partition}\t{row_id}\t{value or ''}\t{version}\t{'t' if value is None else 'f'}\t"
            f"{_NULL if metadata is None else pack_metadata(metadata)}"
            for _, partition, row_id, value, version, metadata, _, _ in of_key
        ]
    nulls = sum(row.metadata is None for row in rows)
    return lines if _is_plain(lines, nulls) else [_escaped(row, key_ids) for row in rows]


async def row_lines(
    rows: Sequence[PlannedRow], key_ids: Mapping[KeyRef, int], now_ms: int, common: list[str]
) -> AsyncIterator[bytes]:
    """Lines of the table ``rows`` (``ROW_COLUMNS``) in pieces; what they begin with is added to ``common``.

    A piece is on its way, and the server stores it, while the next is put together.
    """
    for start in range(0, len(rows), _PIECE_ROWS):
        piece = rows[start : start + _PIECE_ROWS]
        lines = common_columns(piece, key_ids)
        common += lines
        yield "".join([f"{line}\t{now_ms}\t{row.size}\n" for row, line in zip(piece, lines, strict=True)]).encode()
        await asyncio.sleep(0)  # the loop sends it


async def history_lines(rows: Sequence[PlannedRow], common: Sequence[str], now_ms: int) -> AsyncIterator[bytes]:
    """Lines of the table ``history`` (``HISTORY_COLUMNS``), in the same way; ``common`` is what they begin with."""
    for start in range(0, len(rows), _PIECE_ROWS):
        piece = zip(rows[start : start + _PIECE_ROWS], common[start : start + _PIECE_ROWS], strict=True)
        yield "".join([f"{line}\t{now_ms}\t{row.prev}\n" for row, line in piece]).encode()
        await asyncio.sleep(0)


def _is_plain(lines: Sequence[str], nulls: int) -> bool:
    """Whether the lines mean what they say: each character that COPY takes for another thing is one that we put there.

    A look at the whole text costs a tenth of a look at each value.
    """
    text = "".join(lines)
    return (
        text.count("\t") == _TABS * len(lines) and text.count("\\") == nulls and "\n" not in text and "\r" not in text
    )


def _escaped(row: PlannedRow, key_ids: Mapping[KeyRef, int]) -> str:
    key, partition, row_id, value, version, metadata, _, _ = row
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
