"""Which calls of handlers keep to exclusive ownership."""

from __future__ import annotations

from itertools import count

import pytest
from ringcast_testkit import History, Report


def history(*told: tuple[str, str, int]) -> History:
    """What workers have reported, in the order of time: who, the event, and the token of a call of partition 0."""
    found, times = History(), count(1)
    for worker_id, event, token in told:
        found.add(Report(worker_id, 1, event, next(times), {"partition": 0, "token": token}))
    return found


HALT = (("a", "row", 1), ("a", "paused", 0), ("b", "row", 2), ("a", "resumed", 0))


def test_tokens_that_grow() -> None:
    assert history(("a", "row", 1), ("a", "row", 1), ("b", "row", 2)).check_tokens() == 3


def test_the_call_within_which_a_process_was_halted_is_excepted() -> None:
    assert history(*HALT, ("a", "row", 1), ("b", "row", 2)).check_tokens() == 4


@pytest.mark.parametrize(
    "told",
    [
        pytest.param((("b", "row", 2), ("a", "row", 1)), id="no halt"),
        pytest.param((*HALT, ("a", "row", 1), ("a", "row", 1)), id="another call after it"),
        pytest.param((*HALT, ("a", "ready", 0), ("a", "row", 1)), id="a call that began after the halt"),
        pytest.param((*HALT, ("a", "row", 1), ("b", "row", 1)), id="the token of another process"),
    ],
)
def test_every_other_late_call_is_found(told: tuple[tuple[str, str, int], ...]) -> None:
    with pytest.raises(AssertionError):
        history(*told).check_tokens()
