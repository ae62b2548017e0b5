"""How clients over gRPC keep their connections."""

from __future__ import annotations

from typing import TypeAlias

ChannelOptions: TypeAlias = tuple[tuple[str, int], ...]


def client_channel_options(max_reply_bytes: int, *, max_reconnect_ms: int = 1_000) -> ChannelOptions:
    """The options that each channel of ours has. ``max_reconnect_ms``: the longest wait between two attempts.

    By default gRPC tries to connect ever more rarely, up to every two minutes: a server that is back would stay away
    for about half as long again as it was down.
    """
    return (
        ("grpc.max_receive_message_length", max_reply_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", max_reconnect_ms),
    )
