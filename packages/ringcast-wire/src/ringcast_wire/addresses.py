"""Addresses of processes as settings, records and commands have them: ``host:port``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ringcast_wire._common.errors import InvalidInputError, shown

MAX_SERVICE_ADDRESSES: Final = 64
"""Addresses of one service that a client takes."""
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


def check_address(address: str, field: str, *, min_port: int = 1) -> tuple[str, int]:
    """Host and port of ``host:port``. ``min_port`` 0: an address to listen on.

    Raises:
        InvalidInputError: it is none; the message shows it without what stands before an ``@``.
    """
    found = split_address(address)
    if found is None or found[1] < min_port:
        raise _refusal(address, field, min_port)
    return found


def check_service_address(address: str, field: str = "service") -> str:
    """Returns ``address`` if it is one of :func:`is_service_address`.

    Raises:
        InvalidInputError: as :func:`check_address` raises it.
    """
    if not is_service_address(address):
        raise _refusal(address, field, 1)
    return address


def service_addresses(addresses: str | Sequence[str], field: str = "service") -> list[str]:
    """Those in a text, with commas between, or in a list.

    Raises:
        InvalidInputError: one is none, or there are none, or more than 64.
    """
    parts = [part.strip() for part in addresses.split(",")] if isinstance(addresses, str) else addresses
    found = [check_service_address(part, field) for part in parts]
    if not 1 <= len(found) <= MAX_SERVICE_ADDRESSES:
        raise InvalidInputError(
            f"{field} has {len(found)} addresses: 1 to {MAX_SERVICE_ADDRESSES} are allowed", field=field
        )
    return found


def _refusal(address: str, field: str, min_port: int) -> InvalidInputError:
    return InvalidInputError(
        f"{field} {shown(without_passwords([address]))} is not an address: host:port is expected, with a port of"
        f" {min_port} to 65535",
        field=field,
    )


def without_passwords(servers: Sequence[str]) -> str:
    """Addresses for a message: what stands before an ``@`` may be a password, and is left out."""
    return ", ".join(_bare(server) for server in servers)


def _bare(server: str) -> str:
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
