"""Waiting by looking."""

from __future__ import annotations

import pytest
from ringcast_testkit import until
from ringcast_testkit._waiting import pause_s


@pytest.mark.parametrize(("look_s", "pause"), [(0.0, 0.02), (0.001, 0.02), (0.03, 0.09), (0.05, 0.15), (9.0, 0.25)])
def test_what_is_dear_to_look_at_is_looked_at_less_often(look_s: float, pause: float) -> None:
    assert pause_s(look_s) == pytest.approx(pause)


async def test_it_looks_until_it_is_so() -> None:
    looks = iter([False, 0, "", "here"])
    await until(lambda: next(looks))
    assert list(looks) == []
