"""The process that hears of changes: notes which it was, and when its callback had it.

It says ``ready``, then ``heard`` with the number of changes so far now and then, and on SIGTERM writes all it noted to
the file that it was told, as two rows of numbers: which change, and when on the machine's monotonic clock (ns).
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from ringcast_wire import event_within

from benchmarks.envelope.reporting import say
from benchmarks.envelope.targets import hearing
from benchmarks.envelope.values import number_of

_REPORT_S = 0.1


async def main(settings: dict[str, Any]) -> None:
    numbers, times = array("q"), array("q")

    def heard(value: str) -> None:
        now_ns = time.monotonic_ns()
        if (number := number_of(value)) >= 0:
            times.append(now_ns)
            numbers.append(number)

    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with hearing(settings["target"], heard):
        say("ready")
        told = 0
        while not ending.is_set():
            if len(numbers) != told:
                told = len(numbers)
                say("heard", count=told)
            await event_within(ending, _REPORT_S)
        # Before it leaves, which may take a while: the other side waits for the file.
        np.save(Path(settings["file"]), np.array([numbers, times], dtype=np.int64))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
