"""Writes what a sync has found, and keeps what another writer has changed since the comparison."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ringcast_wire import ConditionFailedError, limits

from ringcast_client._common.records import RowWrite
from ringcast_client._sync.spool import PlannedWrite, Spool

if TYPE_CHECKING:
    from ringcast_client._calls.change_writer import ChangeWriter
    from ringcast_client._sync.service import SyncService

_PAGE_ROWS: Final = limits.MAX_BATCH_ROWS


class SyncWrite:
    """The writes of one sync: in batches, each row on the condition that it is as it was found.

    A batch is refused as a whole when one of its rows is not. Then the next rows are written one by one, which tells
    which of them it is, and the batches go on behind them.
    """

    def __init__(
        self,
        client: SyncService,
        store: str,
        key: str,
        spool: Spool,
        on_done: Callable[[int], None],
        first: int,
        reason: str,
    ) -> None:
        self._client = client
        self._store = store
        self._key = key
        self._spool = spool
        self._on_done = on_done
        self._first = first
        self._reason = reason
        self._place = 0
        """Everything up to here is written, or found to be in conflict."""
        self.conflicts = 0
        self.first_conflicts: list[str] = []

    async def run(self) -> None:
        """Writes everything.

        Raises:
            RingcastError: what the service refused with; what is written so far stays.
        """
        while True:
            try:
                return await self._bulk()
            except ConditionFailedError:
                await self._one_by_one()

    async def _bulk(self) -> None:
        start = self._place
        rows = (conditional(planned) for planned in self._spool.planned(start))
        # The job id: a batch that is sent again after a broken connection must not fail on what it wrote itself.
        job_id = f"sync-{secrets.token_hex(16)}"
        reason = self._reason
        async for result in self._client.bulk_write(self._store, self._key, rows, job_id=job_id, reason=reason):
            self._done(start + result.first + result.rows)

    async def _one_by_one(self) -> None:
        page = await asyncio.to_thread(lambda: list(self._spool.planned(self._place, _PAGE_ROWS)))
        async with self._client.changes(self._store, self._key) as writer:
            writes = [self._write(writer, conditional(planned)) for planned in page]
            found = await asyncio.gather(*writes, return_exceptions=True)
        for error in found:
            if error is not None:
                raise error
        self._done(self._place + len(page))

    async def _write(self, writer: ChangeWriter, row: RowWrite) -> None:
        reason = self._reason
        try:
            if row.delete:
                await writer.delete(row.row_id, if_version=row.if_version, reason=reason)
            else:
                await writer.put(
                    row.row_id,
                    row.value,
                    row.metadata,
                    if_version=row.if_version,
                    if_absent=row.if_absent,
                    reason=reason,
                )
        except ConditionFailedError as error:
            if row.delete and not error.found_version:
                return  # another writer has deleted it already
            self.conflicts += 1
            if len(self.first_conflicts) < self._first:
                self.first_conflicts.append(row.row_id)

    def _done(self, place: int) -> None:
        self._place = place
        self._on_done(place)


def conditional(planned: PlannedWrite) -> RowWrite:
    """The write, on the condition that the row is as it was compared."""
    return replace(planned.row, if_version=planned.version, if_absent=planned.version is None)
