"""How the client of the config service keeps its connection."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ringcast_wire import client_channel_options, limits, names

CHANNEL_OPTIONS: Final = (
    *client_channel_options(limits.MAX_REPLY_BYTES),
    ("grpc.enable_http_proxy", 0),
    # A connection whose other end is gone without a word is noticed while calls wait on it. The service lets clients
    # ask every 5 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

OWN_CONNECTION: Final = (("grpc.use_local_subchannel_pool", 1),)
"""Of a channel that takes the place of one with the same address, whose connection it would get otherwise."""


class StubWithReason:
    """A stub whose calls all say why they are made."""

    def __init__(self, stub: Any, reason: str) -> None:
        self._stub = stub
        self._metadata = ((names.GRPC_REASON_KEY, reason.encode()),)

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, getattr(self._stub, name))

    def _call(self, method: Any, *words: Any, metadata: Any = None, **settings: Any) -> Any:
        return method(*words, metadata=(*(metadata or ()), *self._metadata), **settings)
