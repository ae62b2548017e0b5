"""The times of exclusive ownership, which a store of the strategy ``sticky`` has and keeps: their rule and defaults.

A worker's ``FenceTimes`` are made of them.
"""

from __future__ import annotations

from typing import Final

from ringcast_wire._common.errors import InvalidInputError, shown

MIN_LEASE_TTL_MS: Final = 100
MAX_LEASE_TTL_MS: Final = 3_600_000
DEFAULT_LEASE_TTL_MS: Final = 10_000
DEFAULT_CALL_BOUND_MS: Final = 1_000


def check_ownership_times(lease_ttl_ms: object, call_bound_ms: object) -> tuple[int, int]:
    """Returns both if a store may have them: how long a lease lasts, and the bound on one handler call.

    Raises:
        InvalidInputError: ``lease_ttl_ms`` is not 100 ms to an hour, or ``call_bound_ms`` not 2.5 % to 50 % of it.
    """
    ttl_ms = _check("lease_ttl_ms", lease_ttl_ms, MIN_LEASE_TTL_MS, MAX_LEASE_TTL_MS, "")
    of_ttl = f" with a lease_ttl_ms of {ttl_ms}"
    # 2.5 %, rounded up. A shorter bound would not cover two clocks whose rates are 1 % wrong: see docs/sticky.md.
    least_bound_ms = -(-ttl_ms // 40)
    return ttl_ms, _check("call_bound_ms", call_bound_ms, least_bound_ms, ttl_ms // 2, of_ttl)


def _check(field: str, value: object, least: int, most: int, why: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise InvalidInputError(
        f"{field} {shown(value)} is out of range: {least} to {most} ms are allowed{why}", field=field
    )
