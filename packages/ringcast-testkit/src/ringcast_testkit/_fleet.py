"""Worker processes that serve one store while its rows change all the time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from ringcast_testkit._history import History
from ringcast_testkit._waiting import until
from ringcast_testkit._worker import WorkerProcess

_PAUSE_S: Final = 0.01
"""Between two writes: enough for a call of each partition many times a second, and not all that a core can do."""
_DELETED: Final = 7
"""Each so-many-th write deletes its row, if it is there. No test has so many rows, nor a multiple of that: other rows
are deleted each time."""


@dataclass
class WrittenFleet:
    """``store``: of the fixture of that name; the workers serve its key ``list``. ``values``: the rows there are."""

    store: Any
    history: History
    workers: list[WorkerProcess]
    values: dict[str, str] = field(default_factory=dict)
    deleted: int = 0
    """How often a row was deleted."""

    @asynccontextmanager
    async def serving(self, rows: int) -> AsyncIterator[None]:
        """Runs the workers, and writes and deletes so many rows in turn; waits at the end until each row that is there
        is with one of the workers that run, and no deleted one with any."""
        ending = asyncio.Event()
        with ExitStack() as stack:
            for worker in self.workers:
                stack.enter_context(worker)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(rows, ending))
                try:
                    yield
                finally:
                    ending.set()
            await until(lambda: asyncio.to_thread(lambda: self._held() == sorted(self.values.items())))

    async def _write(self, rows: int, ending: asyncio.Event) -> None:
        for number in itertools.count():
            if ending.is_set() and self.deleted:
                break
            row_id = f"row{number % rows}"
            if number % _DELETED == 0 and row_id in self.values:
                await self.store.delete(row_id)
                del self.values[row_id]
                self.deleted += 1
            else:
                await self.store.put(row_id, str(number))
                self.values[row_id] = str(number)
            await asyncio.sleep(_PAUSE_S)

    def _held(self) -> list[tuple[str, str]]:
        """The rows that the applications hold, in order: one that two of them hold is there twice."""
        return sorted(
            (row_id, value)
            for worker in self.workers
            if worker.running
            for row_id, (value, _, _) in worker.dump().get("list", {}).items()
        )
