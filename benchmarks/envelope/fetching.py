"""The processes that fetch a partition, and that answer with ready-made bytes instead of the config service.

The ``responder`` says ``ready``; the ``client`` says ``measured``, with the milliseconds of each round: from the
assignment until the handler has the last row (and from the start of the worker), of a fetch without decoding, and of
the same bytes from the responder. The three take turns.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from typing import Any

import nats
import ringcast
from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast_wire import ChunkAssembler, names, split_chunks

from benchmarks.envelope.reporting import say
from benchmarks.envelope.targets import KEY

_SUBJECT = "bench.bootstrap"
_TIMEOUT_S = 30.0


async def request(connection: Client, subject: str) -> bytes:
    """Sends a request and puts the chunks of its answer together."""
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, pending_bytes_limit=1 << 28)
    assembler = ChunkAssembler()
    await connection.publish(subject, b"", reply=inbox)
    while True:
        msg = await subscription.next_msg(timeout=_TIMEOUT_S)
        headers = msg.headers or {}
        if names.HEADER_ERROR in headers:
            raise RuntimeError(msg.data.decode())
        if (body := assembler.add(headers.get(names.HEADER_CHUNK), msg.data)) is not None:
            await subscription.unsubscribe()
            return body


async def responder(settings: dict[str, Any]) -> None:
    """Answers every request with what the service said once."""
    connection = await nats.connect(settings["servers"])
    body = await request(connection, names.fetch_subject(settings["store"], KEY, 0))
    chunks = [(chunk.header, chunk.data) for chunk in split_chunks(body, connection.max_payload)]

    async def answer(msg: Msg) -> None:
        for header, data in chunks:
            await connection.publish(msg.reply, data, headers={names.HEADER_CHUNK: header})

    await connection.subscribe(_SUBJECT, cb=answer)
    await connection.flush()
    say("ready", bytes=len(body))
    await asyncio.Event().wait()


async def client(settings: dict[str, Any]) -> None:
    """One round more than is counted: the first makes caches and connections."""
    connection = await nats.connect(settings["servers"])
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(settings["rounds"] + 1):
        measured: dict[str, float] = {}
        measured |= await start_worker(settings, f"w{number}")
        for what, subject in (
            ("fetch", names.fetch_subject(settings["store"], KEY, 0)),
            ("transport", _SUBJECT),
        ):
            began_s, cpu_s = time.perf_counter(), time.process_time()
            await request(connection, subject)
            measured[what] = time.perf_counter() - began_s
            measured[f"{what} cpu"] = time.process_time() - cpu_s
        if number:
            for what, seconds in measured.items():
                found[what].append(seconds * 1e3)
    say("measured", **found)
    await connection.close()


async def start_worker(settings: dict[str, Any], worker_id: str) -> dict[str, float]:
    """A worker that owns the partition alone, until its handler has every row."""
    assigned_s = cpu_s = 0.0
    left = settings["rows"]
    loaded = asyncio.Event()

    def on_assigned(_key: str, _partitions: frozenset[int]) -> None:
        nonlocal assigned_s, cpu_s
        assigned_s, cpu_s = time.perf_counter(), time.process_time()

    def handler(_change: ringcast.Change) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            loaded.set()

    began_s = time.perf_counter()
    worker = ringcast.Worker(
        servers=settings["servers"],
        store=settings["store"],
        keys=[KEY],
        worker_id=worker_id,
        handler=handler,
        on_assigned=on_assigned,
    )
    async with worker:
        await loaded.wait()
        now_s = time.perf_counter()
        cpu_s = time.process_time() - cpu_s
    return {"worker": now_s - assigned_s, "worker from its start": now_s - began_s, "worker cpu": cpu_s}


async def main(settings: dict[str, Any]) -> None:
    await {"responder": responder, "client": client}[settings["who"]](settings)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
