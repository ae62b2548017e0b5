"""How long connections to the gRPC port live, and what bounds each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringcast_service import above, duration_s
from ringcast_wire import limits

from ringcast_config_service.grpc.admission import MAX_REQUEST_BYTES

_MAX_CONNECTIONS: Final = 8_192
_MAX_STREAMS_OF_CONNECTION: Final = 1_024
"""Clients keep further calls back. gRPC counts a call until its memory is free, and resets what a client with so many
opens before that: programs that make so many calls at once bound them themselves."""
_WINDOW_BYTES: Final = 256 * limits.KIB
"""What a client may send that is not being read yet: most batches, so that they need no round trip of their own."""
_HANDSHAKE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Times in seconds."""

    age_s: float = duration_s(
        "30m",
        "Age at which a connection is closed, give or take a tenth, so that clients find new instances.",
        flag="connection-age",
        allowed=above(0),
    )
    age_grace_s: float = duration_s(
        "10m",
        "How long open calls may continue on a connection of that age.",
        flag="connection-grace",
        allowed=above(0),
    )
    idle_s: float = duration_s(
        "5m", "When a connection without calls is closed.", flag="connection-idle", allowed=above(0)
    )
    keepalive_s: float = duration_s("30s", "Silence after which a connection is pinged.", allowed=above(0))
    keepalive_timeout_s: float = duration_s(
        "10s", "How long the answer to a ping may take; then the connection ends with its calls.", allowed=above(0)
    )


def channel_options(settings: ConnectionSettings) -> tuple[tuple[str, int], ...]:
    """What bounds a connection, of any client. Times are in ms."""
    return (
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.so_reuseport", 0),  # a port that another instance has is an error, not a share
        ("grpc.max_allowed_incoming_connections", _MAX_CONNECTIONS),
        ("grpc.max_concurrent_streams", _MAX_STREAMS_OF_CONNECTION),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),  # it would let the window grow, also for those that are refused
        ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_TIMEOUT_S * 1000)),
        ("grpc.max_connection_idle_ms", int(settings.idle_s * 1000)),
        ("grpc.max_connection_age_ms", int(settings.age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(settings.age_grace_s * 1000)),
        ("grpc.keepalive_time_ms", int(settings.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # a half-open connection has none
        # Clients that ping every 10 s (Java's Dapr SDK) must not be sent away for it.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    )
