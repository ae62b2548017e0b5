"""The times that a store of exclusive ownership may have are those that its workers can count by."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ringcast._protocol.sticky.fence import DEFAULT_CALL_S, FenceTimes
from ringcast_wire import (
    DEFAULT_CALL_BOUND_MS,
    DEFAULT_LEASE_TTL_MS,
    MAX_LEASE_TTL_MS,
    MIN_LEASE_TTL_MS,
    InvalidInputError,
    check_ownership_times,
    limits,
)


def allows(check: object, *times: float) -> bool:
    try:
        check(*times)  # type: ignore[operator]
    except InvalidInputError:
        return False
    return True


def test_the_defaults_are_those_of_the_fence() -> None:
    assert (DEFAULT_LEASE_TTL_MS / 1000, DEFAULT_CALL_BOUND_MS / 1000) == (limits.LEASE_TTL_S, DEFAULT_CALL_S)
    assert FenceTimes() == FenceTimes(DEFAULT_LEASE_TTL_MS / 1000, DEFAULT_CALL_BOUND_MS / 1000)


@given(st.integers(MIN_LEASE_TTL_MS - 2, MAX_LEASE_TTL_MS + 2), st.data())
@example(4_400, None)
@example(200, None)
def test_what_a_store_may_have_its_workers_take_and_nothing_else(ttl_ms: int, data: st.DataObject | None) -> None:
    """Near both ends of the range above all: the product of the share and some times is not exact."""
    ends = {least + step for least in (-(-ttl_ms // 40), ttl_ms // 2) for step in (-1, 0, 1, 2)}
    if data is not None:
        ends.add(data.draw(st.integers(0, ttl_ms)))
    for call_ms in sorted(ends):
        taken = allows(FenceTimes, ttl_ms / 1000, call_ms / 1000)
        assert allows(check_ownership_times, ttl_ms, call_ms) is taken, call_ms


@pytest.mark.parametrize("value", [True, 10_000.0, "10s", None])
def test_only_whole_numbers_are_times(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"lease_ttl_ms .* is out of range"):
        check_ownership_times(value, 1_000)
