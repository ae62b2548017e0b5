"""A worker as a process of its own, for tests that kill it. Says on standard output when it is ready, and what it owns.

Usage: worker_process.py SERVERS STORE KEY WORKER_ID
"""

from __future__ import annotations

import asyncio
import sys

from ringcast import Worker


async def main(servers: str, store: str, key: str, worker_id: str) -> None:
    """Runs until it is killed."""

    def tell(key: str, partitions: frozenset[int]) -> None:
        print("assigned", key, len(partitions), flush=True)

    async with Worker(servers=servers, store=store, keys=[key], worker_id=worker_id, on_assigned=tell) as worker:
        await worker.wait_ready()
        print("ready", len(worker.owned(key)), flush=True)
        await worker.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
