"""How rows that have changed are shown."""

from __future__ import annotations

import pytest
from ringcast_cli._releases.release_output import Content, shown_change

LONG = "x" * 1_000


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("1", "2", "1 -> 2"),
        ("", "a\nb", " -> a\\nb"),
        ("1" + LONG, "2" + LONG, f"1{'x' * 199}… -> 2{'x' * 199}…"),
        (LONG + "1", LONG + "2", f"…{'x' * 40}1 -> …{'x' * 40}2"),
        (LONG, LONG + "y" * 500, f"…{'x' * 40} -> …{'x' * 40}{'y' * 160}…"),
        ("x" * 159 + "1", "x" * 159 + "2", f"{'x' * 159}1 -> {'x' * 159}2"),
        ("x" * 199 + "1" + LONG, "x" * 199 + "2" + LONG, f"…{'x' * 40}1{'x' * 159}… -> …{'x' * 40}2{'x' * 159}…"),
    ],
)
def test_a_change_is_seen_wherever_it_is(before: str, after: str, shown: str) -> None:
    assert shown_change((before, {}), (after, {})) == shown
    assert shown_change(("v", {"m": before}), ("v", {"m": after})) == f"v ({_shown_entry(before, after)})"


def _shown_entry(before: str, after: str) -> str:
    return shown_change((f"m={before}", {}), (f"m={after}", {}))


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (("v", {"m": "1"}), ("v", {"m": "2"}), "v (m=1 -> m=2)"),
        (("v", {"m": "1"}), ("w", {"m": "2"}), "v -> w (m=1 -> m=2)"),
        (("v", {"m": "1"}), ("w", {"m": "1"}), "v -> w"),
        (("v", {}), ("v", {"b": "2", "a": "1\n"}), "v ( -> a=1\\n b=2)"),
        (None, ("v", {"m": "1"}), "v (m=1)"),
        (("v", {"m": "1"}), None, "v (m=1)"),
        (None, ("v", {}), "v"),
        (None, None, ""),
    ],
)
def test_metadata_is_shown_where_it_comes_goes_or_changes(
    before: Content | None, after: Content | None, shown: str
) -> None:
    assert shown_change(before, after) == shown


def test_a_long_value_is_cut() -> None:
    assert shown_change(None, ("x" * 200, {})) == "x" * 200
    assert shown_change(None, ("x" * 201, {})) == "x" * 200 + "…"
