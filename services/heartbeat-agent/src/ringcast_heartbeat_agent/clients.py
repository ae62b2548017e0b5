"""Clients: the user that a connection over this host's own network belongs to."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import sys
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ringcast import LimitExceededError

_TABLES: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_CONNECTED: Final = frozenset({"01", "04", "05", "08"})
"""Established, or closed in one direction only (FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT)."""
_NOBODYS: Final = "0"
"""The inode of a socket that no process has any more: the kernel writes it down as of user 0."""

UID: Final = "uid "
UNKNOWN: Final = "unknown of this host"
"""A client on the loopback interface whose user the kernel does not give."""


current: Final[ContextVar[str]] = ContextVar("ringcast_agent_client", default="")
"""The client of the call that is being answered; nothing outside of calls."""


@dataclass(slots=True)
class Here:
    """The agent's own end of connections. A ``host`` that is a name, or every address of the host, is not compared."""

    host: str
    port: int

    @classmethod
    def of(cls, address: object) -> Here:
        """The agent's end of one connection, as its socket says it."""
        return cls(str(address[0]), int(address[1])) if isinstance(address, tuple) and len(address) > 1 else cls("", 0)


async def enter(peer: str, here: Here) -> None:
    """Notes the client of a call for the rest of it. ``peer``: its address, as gRPC writes it."""
    current.set(await asyncio.to_thread(client_of, peer, here))


def check_share(what: str, clients: Iterable[str], most: int, share: float) -> None:
    """Refuses the caller one more of something: ``clients`` are those that have it, ``most`` is for all of them.

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

    async def includes(self, peer: str, here: Here) -> bool:
        """Whether a connection is one of theirs. ``peer``: its address, as gRPC writes it."""
        return bool(self._clients) and await asyncio.to_thread(client_of, peer, here) in self._clients


def peer_of(address: object) -> str:
    """The address of a socket, as gRPC writes it."""
    if not isinstance(address, tuple) or len(address) < 2:
        return ""
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def client_of(peer: str, here: Here) -> str:
    """The user of this host whose connection it is, as ``uid 1000``; else the address that it comes from.

    A port of the caller's may be in use for connections to elsewhere as well, by other users too: the caller's is the
    one whose other end is the agent's. Where that still leaves several users, it is none of them.
    """
    try:
        host, port = unquote(peer).partition(":")[2].rsplit(":", 1)
        address, number = _plain(host.strip("[]")), int(port)
    except ValueError:
        return peer
    wanted, ours = _in_tables(address, number), _ours(here)
    found: set[str] = set()
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            to, _, to_port = fields[2].partition(":")
            to_agent = int(to_port, 16) == here.port and (not ours or to in ours)
            if fields[1] in wanted and to_agent and fields[3] in _CONNECTED and fields[9] != _NOBODYS:
                found.add(f"{UID}{fields[7]}")
    if len(found) == 1:
        return found.pop()
    return UNKNOWN if address.is_loopback else f"address {address}"


def _ours(here: Here) -> set[str]:
    """The agent's address as it may stand in the tables; nothing: it may be any."""
    try:
        address = _plain(here.host.strip("[]"))
    except ValueError:
        return set()
    return set() if address.is_unspecified else {each.partition(":")[0] for each in _in_tables(address, here.port)}


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _in_tables(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> set[str]:
    """How an end may stand in the tables: an address of IPv4 also as one of IPv6."""
    wanted = {_in_table(address, port)}
    if isinstance(address, ipaddress.IPv4Address):
        wanted.add(_in_table(ipaddress.IPv6Address(f"::ffff:{address}"), port))
    return wanted


def _in_table(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    """As the kernel writes it: as words of four bytes, each a number of this machine."""
    packed = address.packed
    words = (int.from_bytes(packed[start : start + 4], sys.byteorder) for start in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
