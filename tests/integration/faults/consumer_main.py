"""The process behind :class:`~tests.integration.faults.dispatch_arena.ConsumerProcess`: a consumer of a group.

It reports each delivery when its handler is called and before it is answered, in the lines of the worker processes. The
handler takes some milliseconds, and fails now and then.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from ringcast.dispatch import Consumer, Delivery
from ringcast_testkit._worker_main import report

PARALLEL = 8


async def main(settings: dict[str, Any]) -> None:
    consumer = Consumer(**settings["consumer"])

    async def handle(delivery: Delivery) -> None:
        agent = consumer.agent
        told = {"agent": agent, "offset": delivery.offset, "attempt": delivery.attempt, "row_id": delivery.row_id}
        row = {"version": delivery.version, "partition": delivery.partition, "value": delivery.value}
        report("delivered", key=settings["consumer"]["key"], **told, **row)
        await asyncio.sleep(settings["delay_s"] * random.uniform(0, 2))
        fails = random.random() < settings["fails"]
        report("answered", key=settings["consumer"]["key"], **told, **row, rejected=fails)
        if fails:
            raise RuntimeError("now and then")

    async with consumer:
        report("registered")
        await consumer.run(handle, parallel=PARALLEL)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
