from __future__ import annotations

import pytest

from demo.judge import Held, Verdict, judge

TRUTH: Held = {"a": ("1", 5, 0), "b": ("2", 6, 1)}
OWNED = {"w1": frozenset({0}), "w2": frozenset({1})}
GOOD = {"w1": {"a": ("1", 5, 0)}, "w2": {"b": ("2", 6, 1)}}


def test_a_kept_promise() -> None:
    assert judge(TRUTH, GOOD, OWNED) == Verdict(0, 0, 0)
    assert judge(TRUTH, GOOD, OWNED).kept


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        pytest.param({"w1": {"a": ("1", 5, 0)}, "w2": {}}, Verdict(1, 0, 0), id="lost"),
        pytest.param({**GOOD, "w2": {**GOOD["w2"], "a": ("1", 5, 0)}}, Verdict(0, 2, 0), id="held twice"),
        pytest.param({"w1": GOOD["w2"], "w2": GOOD["w1"]}, Verdict(0, 2, 0), id="at the wrong worker"),
        pytest.param({**GOOD, "w1": {"a": ("1", 4, 0)}}, Verdict(0, 0, 1), id="old version"),
        pytest.param({**GOOD, "w1": {"a": ("0", 5, 0)}}, Verdict(0, 0, 1), id="wrong value"),
        pytest.param({**GOOD, "w1": {**GOOD["w1"], "gone": ("9", 3, 0)}}, Verdict(0, 0, 1), id="deleted, still held"),
    ],
)
def test_each_way_of_breaking_it_is_counted(held: dict[str, Held], verdict: Verdict) -> None:
    assert judge(TRUTH, held, OWNED) == verdict
    assert not verdict.kept
