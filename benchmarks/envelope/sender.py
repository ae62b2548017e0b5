"""The process that makes changes, at a fixed rate whether the system keeps up or not (an open loop).

It says ``started`` with the time when the first change is due, and ``done`` at the end: how many were written, how many
were refused, and how late it was itself.
"""

from __future__ import annotations

import asyncio
import json
import selectors
import sys
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from benchmarks.envelope.reporting import say
from benchmarks.envelope.targets import RingcastStream, Writer, writing
from benchmarks.envelope.values import value_of

if TYPE_CHECKING:
    from ringcast_client import RowWrite

_LEAD_S = 0.2
_MOST_WAITING = 2_000
"""Changes under way at once; more wait for their turn here, which counts."""
_MANY_A_SECOND = 2_000
"""From this rate on changes go as a bulk write, in batches of what is due in 5 ms: a task for each would measure this
process."""
_BATCHES_A_SECOND = 200


class Sender:
    """One run of changes. They go to so many ``rows`` in turn."""

    def __init__(self, rate: float, count: int, rows: int, value_bytes: int) -> None:
        self._rate = rate
        self._count = count
        self._rows = rows
        self._value_bytes = value_bytes
        self._start_ns = 0
        self._late_ms = array("d")
        self._failures: Counter[str] = Counter()
        self.written = 0

    async def run(self, writer: Writer) -> dict[str, Any]:
        """Makes all changes, and says how that went."""
        self._start_ns = time.monotonic_ns() + int(_LEAD_S * 1e9)
        say("started", start_ns=self._start_ns)
        began_s = time.process_time()
        if isinstance(writer, RingcastStream) and self._rate >= _MANY_A_SECOND:
            batch_rows = max(1, round(self._rate / _BATCHES_A_SECOND))
            self.written = await writer.write_stream(self._due_rows(batch_rows), batch_rows)
        else:
            await self._put_each(writer)
        late = sorted(self._late_ms)
        return {
            "written": self.written,
            "failures": dict(self._failures),
            "cpu_s": time.process_time() - began_s,
            "late_p50_ms": late[len(late) // 2],
            "late_p99_ms": late[int(len(late) * 0.99)],
            "took_s": (time.monotonic_ns() - self._start_ns) / 1e9,
        }

    async def _put_each(self, writer: Writer) -> None:
        places = asyncio.Semaphore(_MOST_WAITING)
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                await self._until_due(number)
                await places.acquire()
                tasks.create_task(self._put(writer, number, places))

    async def _put(self, writer: Writer, number: int, places: asyncio.Semaphore) -> None:
        try:
            await writer.put(self._row_id(number), value_of(number, self._value_bytes))
            self.written += 1
        except Exception as error:  # noqa: BLE001  # any refusal is a change that was not made, and is counted
            self._failures[type(error).__name__] += 1
        finally:
            places.release()

    async def _due_rows(self, batch_rows: int) -> AsyncIterator[RowWrite]:
        from ringcast_client import RowWrite

        for first in range(0, self._count, batch_rows):
            last = min(first + batch_rows, self._count) - 1
            await self._until_due(last)
            for number in range(first, last + 1):
                yield RowWrite(self._row_id(number), value_of(number, self._value_bytes))

    def _row_id(self, number: int) -> str:
        return f"row-{number % self._rows}"

    async def _until_due(self, number: int) -> None:
        due_ns = self._start_ns + int(number * 1e9 / self._rate)
        rest_s = (due_ns - time.monotonic_ns()) / 1e9
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        self._late_ms.append((time.monotonic_ns() - due_ns) / 1e6)


async def main(settings: dict[str, Any]) -> None:
    sender = Sender(settings["rate"], settings["count"], settings["rows"], settings["value_bytes"])
    async with writing(settings["target"]) as writer:
        # Connections and caches are made before the clock runs. No subscriber counts change -1.
        await writer.put("row-0", value_of(-1, settings["value_bytes"]))
        say("done", **await sender.run(writer))


if __name__ == "__main__":
    # epoll rounds a wait up to whole milliseconds, select does not.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(main(json.loads(sys.argv[1])))
