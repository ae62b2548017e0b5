from __future__ import annotations

import gc
import socket

import pytest
from ringcast_testkit import ReservedPort


def test_nobody_else_is_given_a_reserved_port() -> None:
    port = ReservedPort()
    for reuse in (0, 1):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            if not reuse:
                with pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.1", port.number))
                continue
            other.bind(("127.0.0.1", port.number))  # a server does
            other.listen()
            with socket.create_connection(("127.0.0.1", port.number)):
                pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number))


def test_it_is_given_back() -> None:
    port = ReservedPort()
    number = port.number
    del port
    gc.collect()
    with socket.socket() as other:
        other.bind(("127.0.0.1", number))
