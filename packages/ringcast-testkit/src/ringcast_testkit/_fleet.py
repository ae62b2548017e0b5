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


@dataclass
class WrittenFleet:
    """``store``: of the fixture of that name; the workers serve its key ``list``. ``values``: what was written last."""

    store: Any
    history: History
    workers: list[WorkerProcess]
    values: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def serving(self, rows: int) -> AsyncIterator[None]:
        """Runs the workers and writes so many rows in turn; waits at the end until all workers that run have them."""
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
            await until(lambda: asyncio.to_thread(lambda: self._held() == self.values))

    async def _write(self, rows: int, ending: asyncio.Event) -> None:
        for number in itertools.count():
            if ending.is_set():
                break
            row_id = f"row{number % rows}"
            await self.store.put(row_id, str(number))
            self.values[row_id] = str(number)
            await asyncio.sleep(_PAUSE_S)

    def _held(self) -> dict[str, str]:
        return {
            row_id: value
            for worker in self.workers
            if worker.running
            for row_id, (value, _, _) in worker.dump().get("list", {}).items()
        }
