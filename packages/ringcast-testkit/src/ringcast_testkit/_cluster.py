"""A NATS cluster of three servers, each with JetStream: what a leader that dies needs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import nats
import nats.errors
import nats.js.errors

from ringcast_testkit._nats import NatsServer
from ringcast_testkit._ports import ReservedPort
from ringcast_testkit._process import PATIENCE_S, ServerFailedError

_SERVERS: Final = 3


class NatsCluster:
    """Three servers on free ports of 127.0.0.1.

    Clients are not told of the other servers: who should use all of them names all of them, and who reaches one over a
    proxy goes on doing so. ``settings`` is added to the configuration of each, and ``of_one`` to that of the server of
    that name. ``prefixes``: a command that runs the server of that name, for a :class:`SmallDisk`. ``login``: arguments
    of ``nats.connect`` for a user that may make streams, where the settings want one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        of_one: Mapping[str, Mapping[str, Any]] | None = None,
        prefixes: Mapping[str, tuple[str, ...]] | None = None,
        login: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._login = dict(login or {})
        self._routes = [ReservedPort() for _ in range(_SERVERS)]
        routes = [port.number for port in self._routes]
        urls = [f"nats-route://127.0.0.1:{port}" for port in routes]
        self.servers = {
            f"n{number}": NatsServer(
                directory / f"n{number}",
                prefix=(prefixes or {}).get(f"n{number}", ()),
                server_name=f"n{number}",
                cluster={
                    "name": "ringcast-test",
                    "listen": f"127.0.0.1:{port}",
                    "routes": [url for url in urls if not url.endswith(f":{port}")],
                    "no_advertise": True,
                },
                **settings,
                **(of_one or {}).get(f"n{number}", {}),
            )
            for number, port in enumerate(routes)
        }

    @property
    def urls(self) -> tuple[str, ...]:
        """The address of each server."""
        return tuple(server.url for server in self.servers.values())

    @property
    def url(self) -> str:
        """All addresses, separated by commas, as our commands take them."""
        return ",".join(self.urls)

    def start(self) -> None:
        """Starts all servers, and returns once they take a stream with three copies."""
        for server in self.servers.values():
            server.start()
        failure: list[BaseException] = []

        def prove() -> None:
            try:
                asyncio.run(self._prove())
            except BaseException as error:  # noqa: BLE001  # raised below, in the thread that asked
                failure.append(error)

        # A thread of its own, since the caller's may have an event loop that runs.
        thread = threading.Thread(target=prove)
        thread.start()
        thread.join()
        if failure:
            said = [server.process.describe("is in a cluster without a leader") for server in self.servers.values()]
            raise ServerFailedError("\n".join(said)) from failure[0]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers.values():
            server.__exit__(kind, error, trace)

    async def _prove(self) -> None:
        """Servers that have elected a leader know each other a little later: only a stream shows that they do."""
        client = await nats.connect(list(self.urls), **self._login)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        js = client.jetstream(timeout=1)
                        await js.add_stream(name="proof", subjects=["proof"], num_replicas=_SERVERS)
                        await js.delete_stream("proof")
                        return
                    except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
                        await asyncio.sleep(0.05)
        finally:
            await client.close()
