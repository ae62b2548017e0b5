"""The client for code that is not asynchronous.

A connection to one of several instances, calls that are made again, bulk writes, fetches, and the life of stores and
keys.

Nothing of it crosses a fork: a child process makes channels and clients of its own.
"""

from __future__ import annotations

from ringcast_client._blocking.calls import CallRetries, retried
from ringcast_client._blocking.connection import ServiceConnection
from ringcast_client._blocking.fetch import BlockingFetchClient
from ringcast_client._blocking.stores import BlockingStoreCalls
from ringcast_client._blocking.write import AnsweredBatch, BlockingBulkWrite

__all__ = [
    "AnsweredBatch",
    "BlockingBulkWrite",
    "BlockingFetchClient",
    "BlockingStoreCalls",
    "CallRetries",
    "ServiceConnection",
    "retried",
]
