"""The process of a worker that only holds its rows. It says ``ready`` once all are loaded, and is killed."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import ringcast

from benchmarks.envelope.reporting import say


async def main(settings: dict[str, Any]) -> None:
    async with ringcast.Worker(**settings) as worker:
        await worker.wait_ready()
        say("ready", rows=sum(worker.row_count(key) for key in settings["keys"]))
        await worker.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
