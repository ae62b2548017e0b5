"""A client that writes and reads until a line of standard input tells it to stop, and says of each call how it ended.

Run as a file, so that it imports the packages of the build that ``PYTHONPATH`` names. A line of JSON for each call:
``written`` with the row's id and its value (``null``: deleted), ``read``, or ``failed``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_wire import RingcastError

ROWS = 120
PAUSE_S = 0.01
"""Between two calls: some are always under way, and the machine is not busy with them alone."""
TIMEOUT_S = 60.0


def say(**fields: Any) -> None:
    """One line to whoever started it."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def call(client: ConfigServiceClient, store: str, name: str, number: int) -> None:
    """One call, each kind in its turn."""
    row_id, value = f"{name}-{number % ROWS}", f"{name} {number}"
    match number % 10:
        case 3:
            await client.delete(store, "list", row_id)
            say(written=row_id, value=None)
        case 6:
            found = await client.get(store, "list", [row_id])
            say(read=len(found))
        case 9:
            say(read=len([row async for row in client.list(store, "list", limit=ROWS)]))
        case _:
            await client.put(store, "list", row_id, value)
            say(written=row_id, value=value)


async def single_calls(client: ConfigServiceClient, store: str, name: str, over: asyncio.Event) -> None:
    """Calls, one after the other."""
    number = 0
    while not over.is_set():
        try:
            await call(client, store, name, number)
        except RingcastError as error:
            say(failed=f"{name} call {number}: {error!r}")
        number += 1
        await asyncio.sleep(PAUSE_S)


async def one_stream(client: ConfigServiceClient, store: str, name: str, over: asyncio.Event) -> None:
    """One bulk write that lasts until the end."""
    sent = 0

    async def rows() -> AsyncIterator[RowWrite]:
        nonlocal sent
        while not over.is_set():
            yield RowWrite(f"{name}-bulk-{sent % ROWS}", str(sent))
            sent += 1
            await asyncio.sleep(PAUSE_S)

    try:
        async for _ in client.bulk_write(store, "list", rows(), batch_rows=10):
            pass
    except RingcastError as error:
        say(failed=f"{name} bulk: {error!r}")
    for number in range(max(0, sent - ROWS), sent):
        say(written=f"{name}-bulk-{number % ROWS}", value=str(number))


async def main() -> None:
    services, store, name = sys.argv[1:]
    over = asyncio.Event()
    async with ConfigServiceClient(services, timeout_s=TIMEOUT_S) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(single_calls(client, store, name, over))
        tasks.create_task(one_stream(client, store, name, over))
        await asyncio.to_thread(sys.stdin.readline)
        over.set()


if __name__ == "__main__":
    asyncio.run(main())
