"""What a sync needs of the client of the config service."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from ringcast_client._bulk.write import BulkWrite, Rows
from ringcast_client._calls.change_writer import ChangeWriter
from ringcast_client._common.records import RowRecord, StoreInfo


class SyncService(Protocol):
    """The calls of :class:`ringcast_client.ConfigServiceClient` of these names."""

    async def get_store(self, name: str) -> StoreInfo: ...
    def list(self, store: str, key: str) -> AsyncGenerator[RowRecord, None]: ...
    def bulk_write(self, store: str, key: str, rows: Rows, *, job_id: str | None, reason: str) -> BulkWrite: ...
    def changes(self, store: str, key: str) -> ChangeWriter: ...
