"""A TCP port of 127.0.0.1 that a server keeps over restarts."""

from __future__ import annotations

import os
import socket
import weakref


class ReservedPort:
    """A port that no other process is given while this object lives, also while nothing listens on it.

    A socket is bound to it that never listens. A server that sets SO_REUSEADDR, as all of ours do, can listen there
    beside it; neither ``bind`` to port 0 nor ``connect`` of another process picks the port.
    """

    def __init__(self) -> None:
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("127.0.0.1", 0))
            self.number: int = bound.getsockname()[1]
            weakref.finalize(self, os.close, bound.detach())

    @property
    def address(self) -> str:
        """``127.0.0.1:<port>``."""
        return f"127.0.0.1:{self.number}"
