"""The process of a worker whose rows a release changes, and gets back.

Its handler refuses the rows of a release that are bad. It says ``ready`` once all rows are loaded, and then in ``rows``
how many are those of the release (``changed``), and when it was called with the last that was another than before, in
seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any

import ringcast

from benchmarks.envelope.reporting import say

OLD, NEW, BAD = "old", "new", "bad"
"""Values of rows: before a release, and of it."""
_REPORT_S = 0.02


class Rows:
    """What the handler was called with."""

    def __init__(self) -> None:
        self.calls = 0
        """That changed what a row is: those of the release, and those of before."""
        self.at_s = 0.0
        self.changed: set[str] = set()
        """The rows that are of the release."""

    def on_change(self, change: ringcast.Change) -> None:
        """The handler."""
        if change.value != OLD:
            self._count(change.row_id not in self.changed)
            self.changed.add(change.row_id)
        elif change.row_id in self.changed:
            self._count(True)
            self.changed.discard(change.row_id)
        if change.value == BAD:
            raise ValueError("this row is bad")

    def _count(self, is_another: bool) -> None:
        if is_another:
            self.calls += 1
            self.at_s = time.monotonic()


async def main(settings: dict[str, Any]) -> None:
    # What is refused is told by the service; a line for each row would take longer than the row.
    logging.getLogger("ringcast").addHandler(logging.NullHandler())
    rows, told = Rows(), -1
    async with ringcast.Worker(handler=rows.on_change, **settings) as worker:
        await worker.wait_ready()
        say("ready")
        while True:
            if rows.calls != told:
                told = rows.calls
                say("rows", changed=len(rows.changed), at_s=rows.at_s)
            await asyncio.sleep(_REPORT_S)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
