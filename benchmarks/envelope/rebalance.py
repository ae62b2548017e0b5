"""What it takes to share partitions out anew when a worker joins, leaves or crashes."""

from __future__ import annotations

from pathlib import Path

from ringcast_client import ConfigServiceClient, RowWrite

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import Case, Figure
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY
from benchmarks.envelope.values import value_of

REBALANCE = "rebalance"
STEPS = ("join", "leave", "crash")
_WORKERS = (10, 50, 200)
_PARTITIONS = (256, 1_024, 4_096)
_ROWS_A_PARTITION = 4
_START_S = 150.0
_STEP_S = 150.0


def rebalance(run: Run) -> None:
    """10, 50 and 200 workers with 256, 1,024 and 4,096 partitions."""
    for workers in (3,) if run.quick else _WORKERS:
        # A broker of its own for each size: what the workers of one leave behind is no load for the next.
        with run.directory() as directory, running(directory) as system:
            for partitions in (16,) if run.quick else _PARTITIONS:
                name = f"{workers} workers, {partitions} partitions"
                with run.case(REBALANCE, name, {"workers": workers, "partitions": partitions}) as case:
                    _measure(case, system, directory, gently=run.quick)


def _measure(case: Case, system: System, directory: Path, *, gently: bool) -> None:
    workers, partitions = case.params["workers"], case.params["partitions"]
    store = f"rebalance{workers}x{partitions}"
    run_coroutine(_fill(system.service.address, store, partitions))
    settings = {"servers": system.nats.url, "store": store, "workers": workers, "partitions": partitions}
    meter = CpuMeter(system.pids())
    with Child(
        "fleet", "benchmarks.envelope.fleet", {**settings, "directory": str(directory), "gently": gently}
    ) as fleet:
        most = fleet.wait_for("started", _START_S)["most"]
        case.figures = {"most partitions over mean": Figure(most / (partitions / workers), "times")}
        for step in STEPS:
            found = fleet.wait_for(step, _STEP_S)
            case.figures = {
                **case.figures,
                f"{step}_ms": Figure(found["took_ms"], "ms"),
                f"{step}, moved": Figure(found["moved"], "partitions"),
                f"{step}, moved over ideal": Figure(found["moved"] / max(found["ideal"], 1), "times"),
            }
        fleet.wait_for("done", _STEP_S)
    cpu_s = meter.seconds()
    case.figures = {**case.figures, **{f"cpu, {name}": Figure(seconds, "s") for name, seconds in cpu_s.items()}}


async def _fill(service: str, store: str, partitions: int) -> None:
    await create_store(service, store, partitions)
    rows = (RowWrite(f"row-{number}", value_of(number, 16)) for number in range(partitions * _ROWS_A_PARTITION))
    async with ConfigServiceClient(service) as client:
        async for _ in client.bulk_write(store, KEY, rows):
            pass
