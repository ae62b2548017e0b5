"""The socket that workers connect to, in front of gRPC's own: gRPC does not say which user a connection is of.

The kernel does (``SO_PEERCRED``). So connections are taken in here, and their bytes passed on to a socket that only the
user of this process can reach, from an address by which the side of gRPC knows it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from ringcast_service import ConfigError
from ringcast_wire import EventLog

from ringcast_heartbeat_agent.leases.state import SocketPlace

log = EventLog(logging.getLogger(__name__))

RATE_BYTES_S: Final = 64 * 1024
"""What the workers of one user may say in a second: 256 of them say half of that."""
BURST_BYTES: Final = 1024 * 1024
_CREDENTIALS: Final = struct.Struct("3i")
_READ_BYTES: Final = 16 * 1024
_BACKLOG: Final = 256


class Peer(NamedTuple):
    """The process at the other end, as the kernel knows it."""

    pid: int
    uid: int


class Allowance:
    """Bytes that a user may send: so many a second, and some at once."""

    def __init__(self) -> None:
        self._left = float(BURST_BYTES)
        self._at = asyncio.get_running_loop().time()

    def pause_s(self, count: int) -> float:
        """Takes so many bytes; returns how long to wait before the next are read."""
        now = asyncio.get_running_loop().time()
        self._left = min(BURST_BYTES, self._left + (now - self._at) * RATE_BYTES_S) - count
        self._at = now
        return max(0.0, -self._left / RATE_BYTES_S)


class SocketFront:
    """Listens from :meth:`start` to :meth:`stop`, for at most ``most`` connections of a user."""

    def __init__(self, place: SocketPlace, most: int) -> None:
        self._place = place
        self._most = most
        self._directory = tempfile.TemporaryDirectory(prefix="ringcast-")  # of mode 0700
        self._peers: dict[str, Peer] = {}
        self._connections: Counter[int] = Counter()
        self._allowances: dict[int, Allowance] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def inner(self) -> Path:
        """The socket that gRPC is to listen on."""
        return Path(self._directory.name) / "s"

    def peer_of(self, address: str) -> Peer | None:
        """Whose connection it is, by the address of its other end as gRPC writes it."""
        return self._peers.get(address)

    async def start(self) -> None:
        """Makes the socket. gRPC must listen already.

        Raises:
            ConfigError: it can't be made, or not with this group.
        """
        listening = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)  # no process connects before the mode and the group are set
        try:
            listening.bind(str(self._place.path))
        except OSError as error:
            listening.close()
            raise ConfigError(f"lease_socket {self._place.path} can't be used: {error}") from error
        finally:
            os.umask(before)
        try:
            self._place.bound()
        except ConfigError:
            listening.close()
            raise
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listening, backlog=_BACKLOG, limit=_READ_BYTES
        )

    async def stop(self) -> None:
        """Closes the socket and every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._directory.cleanup()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        try:
            if self._connections[peer.uid] >= self._most:
                log.warning("lease_socket.connections_exceeded", uid=peer.uid, limit=self._most)
                return
            await self._pass_on(peer, reader, writer)
        except (OSError, asyncio.IncompleteReadError) as error:
            log.debug("lease_socket.connection_ended", pid=peer.pid, error=error)
        finally:
            writer.close()

    async def _pass_on(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = f"ringcast-agent-{secrets.token_hex(16)}"
        inner = socket.socket(socket.AF_UNIX)
        inner.setblocking(False)
        address = f"unix-abstract:{name}"
        self._connections[peer.uid] += 1
        self._peers[address] = peer
        try:
            inner.bind(f"\0{name}")
            await asyncio.get_running_loop().sock_connect(inner, str(self.inner))
            inner_reader, inner_writer = await asyncio.open_unix_connection(sock=inner, limit=_READ_BYTES)
            try:
                allowance = self._allowances.setdefault(peer.uid, Allowance())
                ways = {
                    asyncio.create_task(_pump(reader, inner_writer, allowance)),
                    asyncio.create_task(_pump(inner_reader, writer, None)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)  # either end has closed
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.wait(ways)
            finally:
                inner_writer.close()
        finally:
            inner.close()
            del self._peers[address]
            self._connections[peer.uid] -= 1
            if not self._connections[peer.uid]:
                del self._connections[peer.uid], self._allowances[peer.uid]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowance: Allowance | None) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
            if allowance is not None and (pause_s := allowance.pause_s(len(data))) > 0:
                await asyncio.sleep(pause_s)


def _peer(writer: asyncio.StreamWriter) -> Peer:
    credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Peer(pid, uid)
