"""Fetches over NATS: whole partitions, rows by id and head revisions, each request tried again until its time is up.

:class:`FetchClient` is for asyncio, :class:`BlockingFetchClient` for other code. Neither needs gRPC.
"""

from __future__ import annotations

from ringcast_client._blocking.fetch import BlockingFetchClient
from ringcast_client._fetches.client import FetchClient, FetchRetries
from ringcast_client._fetches.requests import FetchRequest, batch_request, heads_request, partition_request

__all__ = [
    "BlockingFetchClient",
    "FetchClient",
    "FetchRequest",
    "FetchRetries",
    "batch_request",
    "heads_request",
    "partition_request",
]
