"""Ends the connections of workers that may not be there any more."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from ringcast_wire import EventLog
from ringcast_wire.permissions import CONNECTIONS_REQUESTS, KICK_REQUESTS

from ringcast_config_service.callout.permits import Permits
from ringcast_config_service.callout.server import ACCOUNT
from ringcast_config_service.telemetry import Measures

log = EventLog(logging.getLogger(__name__))

_LOOK_S: Final = 0.5
"""How often tokens and roles are looked at."""
_AGAIN_S: Final = 2.0
"""After a change, and after a sweep that failed: what was answered just before may be a connection only just after."""
_REST_S: Final = 60.0
"""From one sweep to the next without a change: a server may have been out of reach in the last one."""
_PAGE: Final = 256
"""Connections in one answer: some 160 KB."""
_MOST_PAGES: Final = 1_024
_QUIET_S: Final = 0.3
"""After so long without the answer of another server, all have answered."""
_MOST_SERVERS: Final = 256
_TIMEOUT_S: Final = 5.0
_KICKS_AT_ONCE: Final = 32


class _Connection(msgspec.Struct):
    cid: int
    authorized_user: str = ""


class _Connections(msgspec.Struct):
    connections: list[_Connection] = msgspec.field(default_factory=list)


class _Server(msgspec.Struct):
    id: str


class _Answer(msgspec.Struct):
    server: _Server
    data: _Connections | None = None


_read = msgspec.json.Decoder(_Answer).decode
_write = msgspec.json.Encoder().encode


class Revocation:
    """Compares the connections of all servers with what is permitted: after each change of tokens or roles, at the
    start, and every minute. Needs no memory of what was answered, by this instance or by another."""

    def __init__(self, nc: Client, permits: Permits, measures: Measures) -> None:
        self._nc = nc
        self._permits = permits
        self._measures = measures

    async def run(self) -> None:
        """Sweeps until it is cancelled."""
        loop = asyncio.get_running_loop()
        known: tuple[int, int] | None = None
        due_at = 0.0
        while True:
            version = self._permits.version
            if version != known or loop.time() >= due_at:
                rest_s, known = (_REST_S if version == known else _AGAIN_S), version
                try:
                    await self.sweep()
                except (nats.errors.Error, TimeoutError, msgspec.DecodeError) as error:
                    rest_s = _AGAIN_S
                    log.warning("callout.sweep_failed", error=repr(error))
                due_at = loop.time() + rest_s
            await asyncio.sleep(_LOOK_S)

    async def sweep(self) -> int:
        """Ends what is not permitted any more; how many connections that were.

        Raises:
            nats.errors.Error, TimeoutError, msgspec.DecodeError: a server did not answer, or not as it should.
        """
        ended = 0
        for server in await self._servers():
            gone = [each for each in await self._connections(server) if not self._permits.still(each.authorized_user)]
            for first in range(0, len(gone), _KICKS_AT_ONCE):
                await asyncio.gather(*(self._kick(server, each) for each in gone[first : first + _KICKS_AT_ONCE]))
            ended += len(gone)
        return ended

    async def _servers(self) -> list[str]:
        """The ids of all servers that answer; nothing says how many there are."""
        inbox, found = self._nc.new_inbox(), list[str]()
        answers = await self._nc.subscribe(inbox)
        try:
            question = _write({"limit": 1, "acc": ACCOUNT})
            await self._nc.publish(CONNECTIONS_REQUESTS.replace("*", "PING"), question, reply=inbox)
            wait_s = _TIMEOUT_S
            while len(found) < _MOST_SERVERS:
                try:
                    found.append(_read((await answers.next_msg(timeout=wait_s)).data).server.id)
                except TimeoutError:
                    if not found:
                        raise
                    break
                wait_s = _QUIET_S
        finally:
            await answers.unsubscribe()
        return found

    async def _connections(self, server: str) -> list[_Connection]:
        """The connections of workers, of one server."""
        found: list[_Connection] = []
        for _ in range(_MOST_PAGES):
            question = {"auth": True, "acc": ACCOUNT, "sort": "cid", "limit": _PAGE, "offset": len(found)}
            page = (await self._ask(CONNECTIONS_REQUESTS, server, question)).data
            if page is None or not page.connections:
                break
            found += page.connections
            if len(page.connections) < _PAGE:
                break
        return found

    async def _kick(self, server: str, connection: _Connection) -> None:
        await self._ask(KICK_REQUESTS, server, {"cid": connection.cid})
        self._measures.callout_kicks += 1
        log.info("callout.worker_ended", user=connection.authorized_user, connection=connection.cid, server=server)

    async def _ask(self, subject: str, server: str, question: dict[str, object]) -> _Answer:
        message = await self._nc.request(subject.replace("*", server), _write(question), timeout=_TIMEOUT_S)
        return _read(message.data)
