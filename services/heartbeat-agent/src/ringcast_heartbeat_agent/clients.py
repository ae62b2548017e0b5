"""Who calls: the user that a connection over this host's own network belongs to."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import sys
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ringcast import LimitExceededError

_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ESTABLISHED: Final = "01"

UID: Final = "uid "


current: Final[ContextVar[str]] = ContextVar("ringcast_agent_client", default="")
"""Who makes the call that is being answered; nothing where nobody does."""


async def enter(peer: str) -> None:
    """Notes for the rest of a call who makes it. ``peer``: its address, as gRPC writes it."""
    current.set(await asyncio.to_thread(client_of, peer))


def check_share(what: str, clients: Iterable[str], most: int, share: float) -> None:
    """Refuses the one who calls one more of something: ``clients`` are those who have it, ``most`` is for all of them.

    Raises:
        LimitExceededError: the caller has its share already.
    """
    client = current.get()
    allowed = max(1, math.floor(most * share))
    if client and (count := sum(each == client for each in clients)) >= allowed:
        raise LimitExceededError(
            f"client {client} has {count} {what}: at most {allowed} are allowed, {share:g} (client_share) of {most}"
        )


class Trusted:
    """The users whose processes need no token, for clients that can't send one with every call."""

    def __init__(self, uids: Collection[int]) -> None:
        self._clients = {f"{UID}{uid}" for uid in uids}

    async def includes(self, peer: str) -> bool:
        """Whether a connection is one of theirs. ``peer``: its address, as gRPC writes it."""
        return bool(self._clients) and await asyncio.to_thread(client_of, peer) in self._clients


def peer_of(address: object) -> str:
    """The address of a socket, as gRPC writes it."""
    if not isinstance(address, tuple) or len(address) < 2:
        return ""
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def client_of(peer: str) -> str:
    """The user of this host whose connection it is, as ``uid 1000``; else the address that it comes from."""
    try:
        host, port = unquote(peer).partition(":")[2].rsplit(":", 1)
        address, number = ipaddress.ip_address(host.strip("[]")), int(port)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    wanted = {_in_table(address, number)}
    if isinstance(address, ipaddress.IPv4Address):
        wanted.add(_in_table(ipaddress.IPv6Address(f"::ffff:{address}"), number))
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1] in wanted and fields[3] == _ESTABLISHED:
                return f"{UID}{fields[7]}"
    return f"address {address}"


def _in_table(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    """As the kernel writes it: as words of four bytes, each a number of this machine."""
    packed = address.packed
    words = (int.from_bytes(packed[start : start + 4], sys.byteorder) for start in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
