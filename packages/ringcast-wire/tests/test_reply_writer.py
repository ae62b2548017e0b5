"""A fetch reply that is written piece by piece is the one that is encoded at once, for both decoders."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_core import read_fetch_reply
from ringcast_wire import FetchReply, FetchReplyWriter, PartitionRows, Row, decode_fetch_reply, encode

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_ROWS = st.builds(
    Row,
    row_id=_TEXT,
    value=_TEXT,
    version=st.integers(1, 2**63 - 1),
    deleted=st.booleans(),
    metadata=st.none() | st.dictionaries(_TEXT, _TEXT, min_size=1, max_size=3),
)
_ENTRIES = st.builds(
    PartitionRows,
    partition=st.integers(0, 4095),
    revision=st.integers(0, 2**63 - 1),
    whole=st.booleans(),
    rows=st.lists(_ROWS, max_size=40),
)


def written(reply: FetchReply, page_rows: int) -> bytes:
    """The reply from a writer that gets its rows in pages, those with nothing but a value as tuples."""
    writer = FetchReplyWriter(len(reply.partitions))
    for entry in reply.partitions:
        writer.begin(entry.partition, entry.revision, entry.whole)
        rows = [
            row if row.deleted or row.metadata is not None else (row.row_id, row.value, row.version)
            for row in entry.rows
        ]
        for first in range(0, len(rows), page_rows):
            writer.add(rows[first : first + page_rows])
        writer.add([])
    return bytes(writer.finish(reply.history))


@given(st.builds(FetchReply, st.just(1), st.lists(_ENTRIES, max_size=4), _TEXT), st.integers(1, 40))
def test_pieces_are_the_whole(reply: FetchReply, page_rows: int) -> None:
    body = written(reply, page_rows)
    assert decode_fetch_reply(body) == reply
    found, wanted = read_fetch_reply(body), read_fetch_reply(encode(reply))
    assert found.entries == wanted.entries
    assert pa.record_batch(found).equals(pa.record_batch(wanted))


@pytest.mark.parametrize("page_rows", [15, 16, 65_535, 65_536, 70_000])
def test_pages_of_any_size(page_rows: int) -> None:
    rows = [Row(str(number), "", number + 1) for number in range(70_000)]
    reply = FetchReply(1, [PartitionRows(3, 70_000, True, rows)], "a")
    assert decode_fetch_reply(written(reply, page_rows)) == reply


def test_fewer_entries_than_were_announced() -> None:
    writer = FetchReplyWriter(2)
    writer.begin(0, 1, True)
    with pytest.raises(ValueError, match="1 more entries were announced"):
        writer.finish("")
