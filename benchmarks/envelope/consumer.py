"""The process that is one consumer of an agent's group: takes each delivery and acknowledges it.

It says ``ready``, then ``heard`` now and then, with how many there were so far and when the last one came (the
machine's monotonic clock, ns), until it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from ringcast.dispatch import Consumer

from benchmarks.envelope.reporting import say
from benchmarks.envelope.targets import KEY

_REPORT_S = 0.1


async def main(settings: dict[str, Any]) -> None:
    count, last_ns = 0, 0

    async def report() -> None:
        told = 0
        while True:
            if count != told:
                told = count
                say("heard", count=told, last_ns=last_ns)
            await asyncio.sleep(_REPORT_S)

    place = {"store": settings["store"], "key": KEY, "group": "bench", "name": settings["name"]}
    more = {"filters": settings["filters"], "changes_only": True, "token": settings["token"]}
    async with Consumer(settings["address"], **place, **more) as consumer, asyncio.TaskGroup() as tasks:
        say("ready")
        tasks.create_task(report())
        async for delivery in consumer:
            count += 1
            last_ns = time.monotonic_ns()
            delivery.ack()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
