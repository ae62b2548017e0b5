"""Rows that come column by column: checked as they would be one by one, and written alike."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_config_service.writes.batches import PlainRows, checked_writes, plain_writes
from ringcast_wire import InvalidInputError, limits
from ringcast_wire.grpc import error_from_rpc, pb

Running = Any  # of conftest.py

texts = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from(["\0", "é" * 256, "é" * 257, "x" * 512, "x" * 513, "x" * limits.MAX_ROW_BYTES]),
)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=12))
def test_whole_columns_pass_where_each_row_would(pairs: list[tuple[str, str]]) -> None:
    rows = PlainRows([row_id for row_id, _ in pairs], [value for _, value in pairs])
    fast = plain_writes(rows, 7)
    try:
        slow, repeated, _ = checked_writes(rows.inputs(), 7, skip_invalid=False)
    except InvalidInputError:
        assert fast is None
        return
    if fast is None:
        assert repeated
        return
    assert (list(fast), repeated) == (slow, 0)
    assert [fast[index] for index in range(len(fast))] == slow
    assert list(fast[1:3]) == slow[1:3]


async def columns(service: Running, store: str, row_ids: list[str], values: list[str], **words: Any) -> pb.WriteResult:
    batch = pb.WriteBatch(store=store, key="k", sequence=7, row_ids=row_ids, values=values, **words)
    results: list[pb.WriteResult] = [result async for result in service.stub.Write(iter([batch]))]
    assert len(results) == 1
    return results[0]


async def test_a_batch_of_columns_is_written(service: Running, store_name: str) -> None:
    await service.create(store_name)
    row_ids = [f"é{number}" for number in range(limits.MAX_BATCH_ROWS)]
    values = [str(number) for number in range(limits.MAX_BATCH_ROWS)]
    first = await columns(service, store_name, row_ids, values)
    assert (first.sequence, first.written, first.unchanged) == (7, limits.MAX_BATCH_ROWS, 0)
    values[3] = "new"
    again = await columns(service, store_name, row_ids, values, skip_unchanged=True)
    assert (again.written, again.unchanged) == (1, limits.MAX_BATCH_ROWS - 1)
    got = await service.stub.Get(pb.GetRequest(store=store_name, key="k", row_ids=["é3", "é4"]))
    assert [(row.value, dict(row.metadata)) for row in got.rows] == [("new", {}), ("4", {})]


async def test_what_is_wrong_in_columns_is_told_as_of_rows(service: Running, store_name: str) -> None:
    await service.create(store_name)
    row_ids, values = ["a", "", "b\0", "a", "c"], ["1", "2", "3", "4", ""]
    result = await columns(service, store_name, row_ids, values, on_invalid=pb.ON_INVALID_SKIP_ROW)
    assert (result.written, result.unchanged) == (2, 1)
    assert [(row.index, row.row_id) for row in result.rejected] == [(1, ""), (2, "b\0")]
    got = await service.stub.Get(pb.GetRequest(store=store_name, key="k", row_ids=["a", "c"]))
    assert [row.value for row in got.rows] == ["4", ""]


@pytest.mark.parametrize(
    ("batch", "field", "sentence"),
    [
        (pb.WriteBatch(row_ids=["a"]), "values", "values has 0 entries for 1 row_ids"),
        (pb.WriteBatch(values=["a"]), "values", "values has 1 entries for 0 row_ids"),
        (
            pb.WriteBatch(rows=[pb.RowWrite(row_id="a")], row_ids=["b"], values=["v"]),
            "row_ids",
            "rows and row_ids are both given",
        ),
        (pb.WriteBatch(row_ids=["a", ""], values=["1", "2"]), "row_id", "row 1 of the batch: row_id '' has 0 bytes"),
        (pb.WriteBatch(row_ids=["a"] * 1_001, values=["1"] * 1_001), "rows", "rows has 1001 entries: 1 to 1000"),
        (pb.WriteBatch(row_ids=list("abcd"), values=["x" * 1_000_000] * 4), "rows", "at most 3145728 are allowed"),
    ],
)
async def test_columns_that_are_refused(
    service: Running, store_name: str, batch: pb.WriteBatch, field: str, sentence: str
) -> None:
    await service.create(store_name)
    batch.store, batch.key = store_name, "k"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [result async for result in service.stub.Write(iter([batch]))]
    error = error_from_rpc(caught.value)
    assert (error.field, sentence in str(error)) == (field, True), str(error)
