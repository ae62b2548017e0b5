from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_wire import InvalidInputError, check_reason, check_row, check_row_id, limits

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=100)


@given(TEXT.filter(bool), TEXT, st.dictionaries(TEXT, TEXT, max_size=5))
def test_the_size_of_a_row_is_its_utf8_bytes(row_id: str, value: str, metadata: dict[str, str]) -> None:
    parts = [row_id, value, *metadata.keys(), *metadata.values()]
    assert check_row(row_id, value, metadata) == sum(len(part.encode()) for part in parts)


def test_the_longest_row_id_is_measured_in_bytes() -> None:
    assert check_row_id("é" * 256)
    with pytest.raises(InvalidInputError, match="514 bytes: 1 to 512"):
        check_row_id("é" * 257)


def test_an_empty_row_id_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="0 bytes: 1 to 512"):
        check_row_id("")


def test_a_reason_is_one_line_of_up_to_512_bytes() -> None:
    assert check_reason("") == ""
    assert check_reason("é" * 256) == "é" * 256
    with pytest.raises(InvalidInputError, match=r"reason .* has 514 bytes: at most 512 are allowed"):
        check_reason("é" * 257)
    for wrong in ("a\nb", "a\0", "\x1b[2J", "\u202e", "\ud800", None):
        with pytest.raises(InvalidInputError, match="reason"):
            check_reason(wrong)


def test_the_largest_row_is_exactly_the_limit() -> None:
    room = limits.MAX_ROW_BYTES - 1
    assert check_row("a", "x" * room) == limits.MAX_ROW_BYTES
    with pytest.raises(InvalidInputError, match=r"value of row 'a' .* 1048577 bytes, the limit is 1048576"):
        check_row("a", "x" * (room + 1))


@pytest.mark.parametrize("value", [b"bytes", None, 7, 1.5, ["x"]])
def test_a_value_that_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match=f"value .* is of type {type(value).__name__}: it must be text"):
        check_row("a", value)


def test_what_no_database_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="NUL"):
        check_row("a", "x\0y")
    with pytest.raises(InvalidInputError, match="lone surrogate stands at 1"):
        check_row("a\ud800", "x")


def test_metadata_has_limits() -> None:
    with pytest.raises(InvalidInputError, match="65 entries: at most 64"):
        check_row("a", "", {str(number): "" for number in range(65)})
    with pytest.raises(InvalidInputError, match="16385 bytes: at most 16384"):
        check_row("a", "", {"n": "x" * 16384})
    with pytest.raises(InvalidInputError, match="metadata 7 is of type int"):
        check_row("a", "", {"n": 7})  # type: ignore[dict-item]


def test_a_hostile_value_cannot_flood_the_message() -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_row_id("x" * 10_000_000)
    assert len(str(caught.value)) < 250
