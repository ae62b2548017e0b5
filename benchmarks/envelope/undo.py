"""How long it takes until every handler has its old rows again: after a release is undone, and after a gate has failed.

The release changes every row of a key of 100,000. It is undone whole, by a call; or its first wave, 1 % of the
partitions, has rows that the handlers refuse, so that the service undoes it by itself. Two worker processes own the
partitions and say how many rows of the release their handlers have, and when the last call was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_wire import ReleaseState

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import Figure
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import DATABASES, System, running
from benchmarks.envelope.targets import KEY
from benchmarks.envelope.undone import BAD, NEW, OLD

UNDO: Final = "undo"
_WORKERS: Final = 2
_PARTITIONS: Final = 1_024
_QUIET_S: Final = 1.0
"""After so long without a call nothing is on its way to a handler."""
_PATIENCE_S: Final = 120.0
_LOOK_S: Final = 0.005


def undo(run: Run) -> None:
    """A release of 100,000 rows, and a bad first wave of 1 %, on each database."""
    for database in DATABASES:
        with run.directory() as directory, running(directory, database) as system:
            params = {"rows": run.size(100_000, 1_000), "partitions": _PARTITIONS, "workers": _WORKERS}
            params["bad_one_in"] = run.size(50, 2)
            with run.case(UNDO, f"{database}, {params['rows']} rows", params) as case:
                case.figures = _measure(system, "whole", params["rows"])
            with run.case(UNDO, f"{database}, a bad wave of 1 %", params) as case:
                case.figures = _measure(system, "wave", params["rows"], params["bad_one_in"])


def _measure(system: System, store: str, rows: int, bad_one_in: int = 0) -> dict[str, Figure]:
    """``bad_one_in``: of so many rows handlers refuse one; 0: of none, and the release is undone by a call."""
    address = system.service.address
    run_coroutine(create_store(address, store, _PARTITIONS))
    run_coroutine(_fill(address, store, rows))
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(system, store, number)) for number in range(_WORKERS)]
        for worker in workers:
            worker.wait_for("ready", _PATIENCE_S)
        pids = {**system.pids(), "workers": [worker.process.pid for worker in workers]}
        return run_coroutine(_undo(address, store, rows, workers, pids, bad_one_in))


def _worker(system: System, store: str, number: int) -> Child:
    settings = {"servers": system.nats.url, "store": store, "worker_id": f"w{number}", "keys": [KEY]}
    return Child(f"w{number}", "benchmarks.envelope.undone", settings)


async def _fill(address: str, store: str, rows: int) -> None:
    async with ConfigServiceClient(address) as client:
        async for _ in client.bulk_write(store, KEY, [RowWrite(f"row{number}", OLD) for number in range(rows)]):
            pass


async def _undo(
    address: str, store: str, rows: int, workers: Sequence[Child], pids: dict[str, list[int]], bad_one_in: int
) -> dict[str, Figure]:
    values = [BAD if bad_one_in and number % bad_one_in == 0 else NEW for number in range(rows)]
    async with ConfigServiceClient(address) as client:
        staged = await client.stage_release(
            store, {KEY: [RowWrite(f"row{number}", value) for number, value in enumerate(values)]}
        )
        assert staged.release is not None
        number = staged.release.number
        meter = CpuMeter(pids)
        began_s = failed_s = time.monotonic()
        await client.publish_release(store, number, waves=[1, 100] if bad_one_in else [])
        if not bad_one_in:
            await client.follow_release(store, number)
            published_s = time.monotonic()
            await _settled(workers, rows)
            meter = CpuMeter(pids)
            began_s, published = time.monotonic(), Figure(published_s - began_s, "s")
            await client.undo_release(store, number)
        else:
            while True:
                asked_s = time.monotonic()
                if (await client.release(store, number)).state is not ReleaseState.PUBLISHING:
                    break
                failed_s = asked_s  # or later: it was being published when this was asked
                await asyncio.sleep(_LOOK_S)
            began_s, published = failed_s, Figure(failed_s - began_s, "s")
        release = await client.follow_release(store, number)
        undone_s = time.monotonic()
        if release.state is not ReleaseState.UNDONE or release.undone != release.published:
            raise RuntimeError(
                f"{release.undone} of {release.published} rows are undone, and the release {release.state}"
            )
        last_s = await _settled(workers, 0)
        cpu_s = meter.seconds()
    return {
        "publish to failed gate" if bad_one_in else "publish": published,
        "rows undone": Figure(release.undone, "rows"),
        "undone in the record": Figure(undone_s - began_s, "s"),
        "undone at the handlers": Figure(last_s - began_s, "s"),
        **{f"cpu, {name}": Figure(used, "s") for name, used in cpu_s.items()},
    }


async def _settled(workers: Sequence[Child], changed: int) -> float:
    """Waits until the handlers have so many rows of the release, and go on to; returns when the last call was.

    A row that is undone before its handler was called with it has no call at all.

    Raises:
        TimeoutError: they have others.
    """
    due_s = time.monotonic() + _PATIENCE_S
    while True:
        said: list[dict[str, Any]] = [report for worker in workers if (report := worker.said("rows")) is not None]
        found, last_s = sum(report["changed"] for report in said), max(float(report["at_s"]) for report in said)
        if found == changed and time.monotonic() > last_s + _QUIET_S:
            return last_s
        if time.monotonic() > due_s:
            raise TimeoutError(f"the handlers have {found} rows of the release, not {changed}")
        await asyncio.sleep(_LOOK_S)
