"""Row partitioning beside a Python loop over the PyPI packages `xxhash` and `mmh3`.

Aims: at most a third of the loop's time for 100,000 strings, and above 100 million rows/s on an Arrow column.
"""

from __future__ import annotations

from typing import Any

import mmh3
import pyarrow as pa
import pytest
import ringcast_core
import xxhash

from benchmarks.micro.core_peer import beside

ROWS = 100_000
# Divides 2^64, so that the loop's unsigned remainder is the signed one.
PARTITIONS = 256
SHAPES = {
    "numbered": [f"row-{n:08d}" for n in range(ROWS)],
    "email": [f"user-{n}@example{n % 97}.com" for n in range(ROWS)],
    "uuid": [f"{n:08x}-1234-5678-9abc-{n:012x}" for n in range(ROWS)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_list_of_str(benchmark: Any, shape: str) -> None:
    ids = SHAPES[shape]

    def loop() -> list[int]:
        return [xxhash.xxh64_intdigest(row_id.encode(), seed=42) % PARTITIONS for row_id in ids]

    found = beside(benchmark, f"{shape}, str", ROWS, lambda: ringcast_core.row_partitions(ids, PARTITIONS), loop)
    assert list(found) == loop()


@pytest.mark.parametrize("shape", SHAPES)
def test_list_of_str_beside_murmur(benchmark: Any, shape: str) -> None:
    """Another hash, so other partitions: what others take for the same job."""
    ids = SHAPES[shape]

    def loop() -> list[int]:
        return [mmh3.hash(row_id, 42, signed=False) % PARTITIONS for row_id in ids]

    found = beside(benchmark, f"{shape}, mmh3", ROWS, lambda: ringcast_core.row_partitions(ids, PARTITIONS), loop)
    assert len(found) == len(loop())


@pytest.mark.parametrize("shape", SHAPES)
def test_list_of_bytes(benchmark: Any, shape: str) -> None:
    ids = [row_id.encode() for row_id in SHAPES[shape]]

    def loop() -> list[int]:
        return [xxhash.xxh64_intdigest(row_id, seed=42) % PARTITIONS for row_id in ids]

    found = beside(benchmark, f"{shape}, bytes", ROWS, lambda: ringcast_core.row_partitions(ids, PARTITIONS), loop)
    assert list(found) == loop()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_arrow_column(benchmark: Any, shape: str, kind: Any) -> None:
    ids = SHAPES[shape] * 10
    column = pa.array(ids, kind)

    def loop() -> list[int]:
        return [xxhash.xxh64_intdigest(row_id.encode(), seed=42) % PARTITIONS for row_id in ids]

    def ours() -> object:
        return ringcast_core.row_partitions_arrow(column, PARTITIONS)

    found = beside(benchmark, f"{shape}, Arrow {kind}", len(ids), ours, loop)
    assert pa.array(found).to_pylist() == loop()
