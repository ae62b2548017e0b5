"""Which provisional rows are shown, whatever happens to what they lie over."""

from __future__ import annotations

import random

import pytest
from ringcast import Change
from ringcast._protocol.partition import Partition, PartitionInput
from ringcast._protocol.provisional import ProvisionalRows
from ringcast_wire import Row
from ringcast_wire.reports import StagedRow

HELD = {"a": 3, "b": 4, "c": 5}
STAGED = [
    StagedRow(0, "a", "new", 3, {"of": "release"}),
    StagedRow(0, "b", None, 4),
    StagedRow(0, "d", "new", 0),
    StagedRow(0, "c", "new", 2),  # the row was written since
]


def partition(number: int = 0, history: str = "h") -> Partition:
    made = Partition(number, random.random)
    made.history = history
    for row_id, version in HELD.items():
        made.accept(Row(row_id, "old", version))
    made.on(PartitionInput.LOADED)
    made.advance(max(HELD.values()))
    return made


class Laid:
    """A partition, and the rows of release 7 over it."""

    def __init__(self) -> None:
        self.part = partition()
        self.partitions = {0: self.part}
        self.rows = ProvisionalRows("s", "k", self.partitions)
        self.rows.lay(7, STAGED, 0.0)

    def shown(self) -> dict[str, str]:
        found = {row.row_id: row.value for row in self.rows.over(self.part.rows.values())}
        assert len(found) == len(self.part.rows) + self.rows.changed_count()
        for row_id in "abcde":
            row = self.rows.row(row_id, self.part.rows.get(row_id))
            assert found.get(row_id) == (row.value if row is not None else None)
        return found

    def write(self, row_id: str, version: int, value: str | None = "written") -> None:
        """What an event brings, as far as it is taken in."""
        row = Row(row_id, value or "", version, deleted=value is None)
        assert self.part.accept(row)
        self.part.expected = version

    def handed_over(self, row_id: str) -> None:
        """It is about to go to the handler."""
        row = self.part.rows.get(row_id)
        value = row.value if row is not None else None
        self.rows.leave([Change("s", "k", 0, row_id, value, self.part.expected, deleted=value is None)])


@pytest.fixture
def laid() -> Laid:
    return Laid()


AFTER = {"a": "new", "c": "old", "d": "new"}


def test_they_are_shown_in_place_of_what_they_were_staged_for(laid: Laid) -> None:
    assert laid.shown() == AFTER
    assert (laid.rows.release, len(laid.rows)) == (7, 3), "one whose base is another is left out"
    change = laid.rows.hand_over("a")
    assert change == Change("s", "k", 0, "a", "new", 3, metadata={"of": "release"}, release=7, provisional=True)
    assert laid.rows.row("a", None) == Row("a", "new", 3, metadata={"of": "release"})
    deletion = laid.rows.hand_over("b")
    assert deletion is not None
    assert (deletion.deleted, deletion.value, deletion.version) == (True, None, 4)


@pytest.mark.parametrize("value", ["new", "another"])
def test_a_write_takes_the_place_of_one_at_once(laid: Laid, value: str) -> None:
    """For readers when it is taken in, which is not before the handler is about to get it."""
    laid.write("a", 6, value)
    assert laid.shown() == AFTER | {"a": value}
    assert laid.rows.hand_over("a") is None
    laid.handed_over("a")
    assert len(laid.rows) == 2


def test_a_row_that_was_written_and_deleted_does_not_come_back(laid: Laid) -> None:
    laid.write("d", 6)
    laid.handed_over("d")
    laid.write("d", 7, None)
    assert "d" not in laid.shown()


def test_what_the_handler_has_got_is_taken_back_where_nothing_was_written_since(laid: Laid) -> None:
    for row_id in "abd":
        laid.rows.hand_over(row_id)
    laid.write("a", 6)
    back = {row.row_id: row for row in laid.rows.end()}
    assert back.keys() == {"b", "d"}
    assert laid.shown() == {"a": "written", "b": "old", "c": "old"}
    assert (laid.rows.release, len(laid.rows)) == (0, 0)
    assert laid.rows.base(back["b"]) == Change("s", "k", 0, "b", "old", 4)
    assert laid.rows.base(back["d"]) == Change("s", "k", 0, "d", None, 5, deleted=True), "as of what is applied"
    laid.write("b", 7)
    assert laid.rows.base(back["b"]) is None, "that is on its way to the handler"


def test_what_the_handler_has_not_got_is_not_taken_back(laid: Laid) -> None:
    assert laid.rows.hand_over("a") is not None
    assert [row.row_id for row in laid.rows.end()] == ["a"]


def test_a_stream_of_changes_begins_with_them(laid: Laid) -> None:
    assert {change.row_id: change.value for change in laid.rows.changes()} == {"a": "new", "b": None, "d": "new"}
    assert {row.row_id for row in laid.rows.end()} == set("abd")


def test_another_history_has_rows_of_its_own(laid: Laid) -> None:
    """The same version there is another one."""
    laid.partitions[0] = laid.part = partition(history="other")
    assert laid.shown() == dict.fromkeys(HELD, "old")


def test_a_key_that_was_never_written_gets_its_history_meanwhile() -> None:
    part = Partition(0, random.random)
    part.on(PartitionInput.LOADED)
    rows = ProvisionalRows("s", "k", {0: part})
    rows.lay(7, [StagedRow(0, "d", "new", 0), StagedRow(0, "e", "new", 0)], 0.0)
    part.history = "h"
    part.accept(Row("d", "new", 1))
    assert {row.row_id: row.version for row in rows.over(part.rows.values())} == {"d": 1, "e": 0}
