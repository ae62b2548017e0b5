"""Fetches over NATS; one connection a process: a worker process runs many tasks, one after another."""

from __future__ import annotations

import threading
from typing import Final

from ringcast_client.fetches import BlockingFetchClient
from ringcast_wire import NatsLogin

from pyspark_ringcast._common.options import Options

CONNECTION_NAME: Final = "ringcast-spark"

_shared: dict[tuple[tuple[str, ...], NatsLogin], BlockingFetchClient] = {}
_lock = threading.Lock()


def shared_client(options: Options) -> BlockingFetchClient:
    """The process's client for these servers and this login; it lives as long as the process."""
    with _lock:
        place = options.servers, options.login
        if place not in _shared or not _shared[place].usable:
            _shared[place] = BlockingFetchClient(*place, name=CONNECTION_NAME)
        return _shared[place]
