"""The addresses of a service, and when another one is tried while the ones before are silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ringcast_wire.addresses import service_addresses

AVOID_S: Final = 3.0
"""For how long an instance gets no calls that has refused one."""
ATTEMPT_S: Final = 5.0
"""How long the last address that was tried has to connect. Then all are tried from the beginning."""
_NEXT_S: Final = 0.25
_ALL_S: Final = 2.0

Addresses = str | Sequence[str] | Callable[[], Sequence[str]]


def next_after_s(count: int) -> float:
    """How long ``count`` addresses wait for the one before them, which is not given up then (RFC 8305, section 5).

    250 ms, or as much less as it takes for all of them to be tried within 2 s.
    """
    return min(_NEXT_S, _ALL_S / max(1, count))


def source_of(addresses: Addresses) -> Callable[[], Sequence[str]]:
    """What gives the addresses: those in a text or list, or whatever a function returns.

    Raises:
        InvalidInputError: as :func:`~ringcast_wire.addresses.service_addresses` raises it.
    """
    if callable(addresses):
        return addresses
    found = service_addresses(addresses)
    return lambda: found
