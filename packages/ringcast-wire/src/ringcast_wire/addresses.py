"""Addresses of processes as settings, records and commands have them: ``host:port``."""

from __future__ import annotations

import re
from typing import Final

TLS_PREFIX: Final = "tls://"
"""Stands before the address of a service that has TLS."""

_ADDRESS: Final = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", re.ASCII)


def split_address(address: str) -> tuple[str, int] | None:
    """Host, an IPv6 address without its brackets, and port (0 to 65535); ``None``: it is no ``host:port``."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[2]) > 65_535:
        return None
    return match[1].strip("[]"), int(match[2])


def is_service_address(address: str) -> bool:
    """Whether a client can call a service there: ``host:port``, ``tls://`` before it or not, and a port above 0."""
    found = split_address(address.removeprefix(TLS_PREFIX))
    return found is not None and found[1] > 0
