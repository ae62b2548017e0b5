"""What a worker that has ended still answers, and what a process that was forked off may do with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest
from ringcast import InUseError, UnavailableError, Worker
from ringcast._common.lasting import lasting
from ringcast_testkit import PATIENCE_S
from ringcast_wire import LeaseRecord, encode_record, names

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

WAITS: dict[str, Callable[[Worker], Awaitable[None]]] = {
    "ready": lambda worker: worker.wait_ready(),
    "revision": lambda worker: worker.wait_for("list", 0, 1 << 40),
    "condition": lambda worker: worker.wait_until("list", lambda: False),
}


async def within(wait: Awaitable[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await wait


async def test_who_waits_while_a_worker_stops_is_told(store: Store) -> None:
    await store.create()
    worker = store.worker()
    await worker.start()
    waiting = [asyncio.create_task(within(WAITS[name](worker))) for name in ("revision", "condition")]
    await asyncio.sleep(0)
    await worker.stop()
    for task in waiting:
        with pytest.raises(UnavailableError, match="the worker has ended"):
            await task


@pytest.mark.parametrize("name", WAITS)
async def test_waits_on_a_worker_that_has_ended_raise_at_once(store: Store, name: str) -> None:
    await store.create()
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert worker.staleness() == 0
    with pytest.raises(UnavailableError, match="the worker has ended"):
        await within(WAITS[name](worker))
    assert worker.staleness() > 0
    assert not worker.health().ready


async def test_waits_on_a_worker_that_has_failed_raise_what_it_failed_with(store: Store) -> None:
    await store.create()
    worker = store.worker()
    await worker.start()
    await worker.wait_ready(timeout_s=PATIENCE_S)
    nc = await nats.connect(store.nats_url)
    thief = LeaseRecord(incarnation="f" * 16, host="other", pid=1, started_at_ms=1)
    subject = f"$KV.{names.LEASES_BUCKET}.{worker.config.worker_id}"
    await nc.jetstream().publish(subject, encode_record(thief))
    await nc.close()
    with pytest.raises(InUseError):
        await within(worker.wait_closed())
    for wait in WAITS.values():
        with pytest.raises(InUseError):
            await within(wait(worker))
    await worker.stop()


async def test_a_task_of_the_worker_that_ends_is_an_error() -> None:
    async def cancelled() -> None:
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    async def returns() -> None:
        pass

    for run in (cancelled, returns):
        with pytest.raises(RuntimeError, match="the task that keeps watch has ended"):
            await lasting("keeps watch", run)
    task = asyncio.create_task(lasting("waits", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


FORKS = """
import asyncio, json, os, sys
import ringcast

settings = json.loads(sys.argv[1])


def child(run):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            said = run()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, str(said).encode())
        os._exit(0)
    os.close(write)
    return os.fdopen(read).read


async def takes_part():
    async with ringcast.Worker(**settings) as worker:
        await worker.wait_ready()
        uses = child(lambda: worker.health())
        reads = child(lambda: worker.row_count("list"))
        another = child(lambda: asyncio.run(starts()))
        return [await asyncio.to_thread(said) for said in (uses, reads, another)]


async def starts():
    async with ringcast.Worker(**settings):
        return "started"


print(json.dumps(asyncio.run(takes_part())))
"""


def run(script: str, settings: Mapping[str, object]) -> list[str]:
    command = [sys.executable, "-c", script, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


async def test_a_child_can_not_use_its_parents_worker_and_is_another_process_to_it(store: Store) -> None:
    """Two processes with one incarnation would both think that the lease is theirs."""
    await store.create()
    settings = {"store": store.name, "keys": ["list"], "servers": store.nats_url, "worker_id": f"{store.name}-w"}
    uses, reads, another = await asyncio.to_thread(run, FORKS, settings)
    for said in (uses, reads):
        assert said.startswith(f"RuntimeError: worker {store.name}-w runs in the process that this one was forked from")
    assert another.startswith("InUseError: worker id")


HOLDS = """
import asyncio, json, os, signal, sys
import ringcast

settings = json.loads(sys.argv[1])


async def lives_on():
    async with ringcast.Worker(**settings) as worker:
        await worker.wait_ready()
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        return pid


async def starts():
    async with ringcast.Worker(**settings, start_timeout_s=60.0) as worker:
        return [worker.health().cache.failing_because, "started"]


pid = asyncio.run(lives_on())
try:
    print(json.dumps(asyncio.run(starts())))
finally:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


async def test_a_child_does_not_keep_the_lock_of_the_cache(store: Store, tmp_path: Path) -> None:
    await store.create()
    settings = {
        "store": store.name,
        "keys": ["list"],
        "servers": store.nats_url,
        "worker_id": f"{store.name}-w",
        "cache_dir": str(tmp_path),
    }
    assert await asyncio.to_thread(run, HOLDS, settings) == ["", "started"]
