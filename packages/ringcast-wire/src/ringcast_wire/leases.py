"""The generated gRPC API of host leases (``ringcast.agent.leases.v1``), and its limits."""

from __future__ import annotations

from typing import Final

from ringcast_wire._common import limits
from ringcast_wire._common.names import check_socket_path
from ringcast_wire._proto import leases_pb2 as pb
from ringcast_wire._proto.leases_pb2_grpc import LeasesServicer, LeasesStub, add_LeasesServicer_to_server

VERSION: Final = 1
"""What a registration must say."""
MAX_MESSAGE_BYTES: Final = 32 * limits.KIB
"""Size of one message; a registration with as many keys as a store may have fits."""
HANDSHAKE_S: Final = 5.0
"""How long a new stream may wait with its registration."""

MAX_SESSION: Final = 2**53 - 1
"""The highest number of a session of exclusive ownership."""


def target(path: str) -> str:
    """The gRPC address of a socket. Raises ``InvalidInputError`` if the path can't be one."""
    return f"unix:{check_socket_path('socket', path)}"


__all__ = [
    "HANDSHAKE_S",
    "MAX_MESSAGE_BYTES",
    "MAX_SESSION",
    "VERSION",
    "LeasesServicer",
    "LeasesStub",
    "add_LeasesServicer_to_server",
    "pb",
    "target",
]
