"""What a worker costs while nothing happens: memory for its rows, the time of its start, CPU and messages when idle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import psutil
from ringcast_client import ConfigServiceClient, RowWrite

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import Case, Figure, median_of
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY

RESOURCES = "resources"
_PARTITIONS = 256
_START_S = 120.0
_VALUE_BYTES = 60
_MIB = 1 << 20


def resources(run: Run) -> None:
    """Memory by rows, start-up, and idling by workers and by keys."""
    with run.directory() as directory, running(directory) as system:
        for rows in (0, 100_000, 300_000) if not run.quick else (0, 2_000):
            with run.case(RESOURCES, f"start with {rows:,} rows", {"rows": rows, "value_bytes": _VALUE_BYTES}) as case:
                _start(case, system, f"rows{rows}", rounds=run.size(3, 1))
        _a_million(run)
        for workers, keys in ((1, 1), (5, 1), (10, 1), (5, 20)) if not run.quick else ((1, 2),):
            with run.case(RESOURCES, f"idle, {_count(workers, 'worker')}, {_count(keys, 'key')}", {}) as case:
                case.params = {"workers": workers, "keys": keys, "seconds": run.size(12, 1), "after_s": run.size(3, 0)}
                _idle(case, system, f"idle{workers}x{keys}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _start(case: Case, system: System, store: str, rounds: int) -> None:
    rows = case.params["rows"]
    run_coroutine(_fill(system.service.address, store, rows))
    starts, memory = [], []
    for number in range(rounds):
        began_s = time.monotonic()
        with _worker(system, store, number, keys=[KEY]) as worker:
            worker.wait_for("ready", _START_S)
            starts.append((time.monotonic() - began_s) * 1e3)
            memory.append(psutil.Process(worker.process.pid).memory_full_info().uss / _MIB)
    case.figures = {"from exec to ready_ms": median_of(starts, "ms"), "memory": median_of(memory, "MiB")}


def _a_million(run: Run) -> None:
    """What the rows themselves take, from the smallest and the largest of the starts: a worker grows in steps."""
    starts = [case for case in run.results.cases if case.scenario == RESOURCES and "memory" in case.figures]
    if len(starts) < 2:
        run.skip(RESOURCES, "a million rows", "fewer than two sizes were measured")
        return
    least, most = starts[0], starts[-1]
    with run.case(RESOURCES, "a million rows", {"from": [case.name for case in (least, most)]}) as case:
        rows = most.params["rows"] - least.params["rows"]
        grown = most.figures["memory"].value - least.figures["memory"].value
        case.figures = {"memory": Figure(grown / rows * 1e6, "MiB")}
        case.note = f"extrapolated from {rows:,} rows"


def _idle(case: Case, system: System, store: str) -> None:
    workers, keys, seconds = (case.params[name] for name in ("workers", "keys", "seconds"))
    names = [f"list{number}" for number in range(keys)]
    run_coroutine(create_store(system.service.address, store, _PARTITIONS))
    with ExitStack() as stack:
        running_workers = [stack.enter_context(_worker(system, store, number, keys=names)) for number in range(workers)]
        for worker in running_workers:
            worker.wait_for("ready", _START_S)
        # What the start has left to do is no idling.
        time.sleep(case.params["after_s"])
        meter = CpuMeter({**system.pids(), "workers": [worker.process.pid for worker in running_workers]})
        began_s, before = time.monotonic(), _messages(system)
        time.sleep(seconds)
        took_s, after = time.monotonic() - began_s, _messages(system)
        cpu_s = meter.seconds()
    case.figures = {
        "messages to the broker": Figure((after[0] - before[0]) / took_s, "1/s"),
        "messages from the broker": Figure((after[1] - before[1]) / took_s, "1/s"),
        **{f"cpu, {name}": Figure(used / took_s * 1e3, "ms/s") for name, used in cpu_s.items()},
    }


def _messages(system: System) -> tuple[int, int]:
    """In and out of the broker since it started."""
    found = system.monitored("varz")
    return found["in_msgs"], found["out_msgs"]


def _worker(system: System, store: str, number: int, keys: Sequence[str]) -> Child:
    settings = {"servers": system.nats.url, "store": store, "worker_id": f"w{number}", "keys": list(keys)}
    return Child(f"worker {number}", "benchmarks.envelope.idler", settings)


async def _fill(service: str, store: str, rows: int) -> None:
    await create_store(service, store, _PARTITIONS)
    written = (RowWrite(f"row-{number:08d}", "x" * _VALUE_BYTES) for number in range(rows))
    async with ConfigServiceClient(service) as client:
        async for _ in client.bulk_write(store, KEY, written):
            pass
