"""The micro-batch, driven by hypothesis against a plain dictionary."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ringcast_core import MAX_DEDUP_ROWS, Dedup

ROWS = st.tuples(st.integers(0, 2), st.sampled_from("abcdé"), st.integers(0, 5), st.booleans())


class DedupModel(RuleBasedStateMachine):
    """A dictionary keeps the order of first arrival by itself."""

    @initialize(max_rows=st.integers(1, 6))
    def start(self, max_rows: int) -> None:
        self.batch = Dedup(max_rows)
        self.model: dict[tuple[int, str], tuple[int, bool]] = {}

    def offer(self, row: tuple[int, str, int, bool]) -> bool:
        partition, row_id, version, deleted = row
        known = self.model.get((partition, row_id))
        if known is None and len(self.model) == self.batch.max_rows:
            return False
        if known is None or version > known[0]:
            self.model[partition, row_id] = (version, deleted)
        return True

    @rule(row=ROWS)
    def push(self, row: tuple[int, str, int, bool]) -> None:
        assert self.batch.push(*row) == self.offer(row)

    @rule(rows=st.lists(ROWS, max_size=8))
    def push_many(self, rows: list[tuple[int, str, int, bool]]) -> None:
        taken = 0
        while taken < len(rows) and self.offer(rows[taken]):
            taken += 1
        assert self.batch.push_many(rows) == taken

    @rule()
    def drain(self) -> None:
        want = [(partition, row_id, *rest) for (partition, row_id), rest in self.model.items()]
        assert self.batch.drain() == want
        self.model.clear()

    @invariant()
    def same_size(self) -> None:
        assert len(self.batch) == len(self.model)


TestDedup = DedupModel.TestCase


def test_bad_input_leaves_nothing_behind() -> None:
    batch = Dedup(8)
    bad_rows: list[tuple[Any, type[Exception], str]] = [
        ((4096, "a", 1, False), ValueError, "partition must be between 0 and 4095, got 4096"),
        ((-1, "a", 1, False), ValueError, "partition must be between 0 and 4095, got -1"),
        ((0, "a", -1, False), ValueError, "version must be between 0 and 18446744073709551615, got -1"),
        ((0, "x" * 513, 1, False), ValueError, "row_id length in bytes must be between 0 and 512, got 513"),
        ((0, "\ud800", 1, False), ValueError, "row_id must be encodable as UTF-8, got a lone surrogate"),
        (("0", "a", 1, False), TypeError, "partition must be int, got str"),
    ]
    for row, kind, message in bad_rows:
        with pytest.raises(kind, match=f"^{message}$"):
            batch.push(*row)
        with pytest.raises(kind, match=f"^{message}$"):
            batch.push_many([(0, "good", 1, False), row])
    short: Any = (1, "a")
    with pytest.raises(ValueError, match=r"must be \(partition, row_id, version, deleted\), got 2 fields$"):
        batch.push_many([short])
    assert len(batch) == 0


@pytest.mark.parametrize("max_rows", [0, -1, MAX_DEDUP_ROWS + 1, 2**80])
def test_bounds_of_the_bound(max_rows: int) -> None:
    with pytest.raises(ValueError, match=f"^max_rows must be between 1 and {MAX_DEDUP_ROWS}, got {max_rows}$"):
        Dedup(max_rows)
