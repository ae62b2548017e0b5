"""An address where nothing answers: what a host that is gone, or a firewall that drops packets, looks like."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self


class SilentAddress:
    """A port of 127.0.0.1 whose host drops every attempt to connect, without a word, inside ``with``.

    The queue of its listening socket is full, and nobody takes a connection from it: Linux then drops what asks for
    another one.
    """

    address: str
    """``host:port``, inside ``with``."""

    def __enter__(self) -> Self:
        self._listening = socket.socket()
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen(0)
        host, port = self._listening.getsockname()
        self.address = f"{host}:{port}"
        self._waiting = [self._connection((host, port)), self._connection((host, port))]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (*self._waiting, self._listening):
            each.close()

    @staticmethod
    def _connection(where: tuple[str, int]) -> socket.socket:
        """One that fills the queue, or waits for a place in it."""
        made = socket.socket()
        made.setblocking(False)
        made.connect_ex(where)
        return made
