"""What encryption costs a value, beside the plain path in the same run: checking a row, and sealing and opening it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_wire import check_row
from ringcast_wire.key_ring import KeyRing, KeyRingDocument, make_key

ROWS: Final = 2_000
ROUNDS: Final = 15
SIZES: Final = (16, 256, 4_096)


def _cpu_us(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / ROWS * 1e6


@pytest.mark.parametrize("size", SIZES)
def test_seal_and_open_beside_the_plain_path(benchmark: BenchmarkFixture, size: int) -> None:
    keys = KeyRing(KeyRingDocument(active="k1", keys={"k1": make_key()}, encrypt=["gateway/*"])).of("gateway", "list")
    rows = [(f"row-{number:06d}", f"{number:08d}" + "v" * (size - 8)) for number in range(ROWS)]
    sealed = [(row_id, *keys.seal(row_id, value)) for row_id, value in rows]
    assert [keys.open(*row).value for row in sealed] == [value for _, value in rows]
    times: dict[str, list[float]] = {"plain": [], "seal": [], "open": []}

    def one_round() -> None:
        times["plain"].append(_cpu_us(lambda: [check_row(row_id, value) for row_id, value in rows]))
        times["seal"].append(_cpu_us(lambda: [keys.seal(row_id, value) for row_id, value in rows]))
        times["open"].append(_cpu_us(lambda: [keys.open(*row) for row in sealed]))

    benchmark.pedantic(one_round, rounds=ROUNDS)
    for name, found in times.items():
        benchmark.extra_info[f"{name}_us"] = round(statistics.median(found), 3)
    print(f"\n{size} bytes:", {name: f"{statistics.median(found):.2f} µs" for name, found in times.items()})
