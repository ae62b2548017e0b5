"""The times that a store of exclusive ownership may have are enough for the proof, and no others are allowed."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ringcast._protocol.sticky.fence import CLOCK_SKEW, FenceTimes
from ringcast_wire import (
    DEFAULT_CALL_BOUND_MS,
    DEFAULT_LEASE_TTL_MS,
    MAX_LEASE_TTL_MS,
    MIN_LEASE_TTL_MS,
    InvalidInputError,
    check_ownership_times,
    limits,
)


def allows(ttl_ms: int, call_ms: int) -> bool:
    try:
        FenceTimes(ttl_ms, call_ms)
    except InvalidInputError:
        return False
    return True


def test_a_lease_lasts_as_long_by_default_as_one_of_the_other_strategies() -> None:
    assert DEFAULT_LEASE_TTL_MS / 1000 == limits.LEASE_TTL_S
    assert FenceTimes() == FenceTimes(DEFAULT_LEASE_TTL_MS, DEFAULT_CALL_BOUND_MS)


@given(st.integers(MIN_LEASE_TTL_MS, MAX_LEASE_TTL_MS), st.data())
@example(4_400, None)
@example(101, None)
@example(MIN_LEASE_TTL_MS, None)
@example(MAX_LEASE_TTL_MS, None)
def test_the_bound_on_calls_is_2_5_to_50_percent_of_the_lease(ttl_ms: int, data: st.DataObject | None) -> None:
    """Near both ends of the range above all."""
    bounds = {end + step for end in (ttl_ms // 40, ttl_ms // 2) for step in (-1, 0, 1, 2)}
    if data is not None:
        bounds.add(data.draw(st.integers(0, ttl_ms)))
    for call_ms in sorted(bounds):
        assert allows(ttl_ms, call_ms) is (ttl_ms <= 40 * call_ms and 2 * call_ms <= ttl_ms), call_ms


@given(st.integers(MIN_LEASE_TTL_MS, MAX_LEASE_TTL_MS))
def test_the_shortest_bound_covers_clocks_that_are_as_wrong_as_they_may_be(ttl_ms: int) -> None:
    """Lemma 1 of ``docs/sticky.md``: a slow clock has counted the lease to its end before a fast one gives it away."""
    times = FenceTimes(ttl_ms, -(-ttl_ms // 40))
    assert times.give_away_s / (1 + CLOCK_SKEW) >= times.ttl_s / (1 - CLOCK_SKEW)


@pytest.mark.parametrize("ttl_ms", [MIN_LEASE_TTL_MS - 1, MAX_LEASE_TTL_MS + 1])
def test_a_lease_lasts_100_ms_to_an_hour(ttl_ms: int) -> None:
    assert not allows(ttl_ms, ttl_ms // 10)


@pytest.mark.parametrize("value", [True, 10_000.0, "10s", None])
def test_only_whole_numbers_are_times(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"lease_ttl_ms .* is out of range"):
        check_ownership_times(value, 1_000)
