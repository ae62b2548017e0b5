"""What it takes to share partitions out anew when a worker joins, leaves or crashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_wire import Strategy

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.fleet import UNDER_AGENT
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import Case, Figure
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY
from benchmarks.envelope.values import value_of

REBALANCE, OWNERSHIP = "rebalance", "ownership"
STEPS = ("join", "leave", "crash")
_WORKERS = (10, 50, 200)
_PARTITIONS = (256, 1_024, 4_096)
_EXCLUSIVE = ((10, 256), (50, 1_024))
"""Workers and partitions, with each strategy."""
_ROWS_A_PARTITION = 4
_CRASHES = 10
"""Processes that are killed under an agent, one after another."""
_START_S = 150.0
_STEP_S = 150.0


def rebalance(run: Run) -> None:
    """10, 50 and 200 workers with 256, 1,024 and 4,096 partitions."""
    for workers in (3,) if run.quick else _WORKERS:
        # A broker of its own for each size: what the workers of one leave behind is no load for the next.
        with run.directory() as directory, running(directory) as system:
            for partitions in (16,) if run.quick else _PARTITIONS:
                name = f"{workers} workers, {partitions} partitions"
                params = {"workers": workers, "partitions": partitions, "strategy": Strategy.JUMP}
                with run.case(REBALANCE, name, params) as case:
                    _measure(case, system, directory, gently=run.quick)


def ownership(run: Run) -> None:
    """10 workers with 256 partitions and 50 with 1,024, with each strategy in turn; also crashes under an agent."""
    for workers, partitions in ((3, 16),) if run.quick else _EXCLUSIVE:
        for strategy in (Strategy.JUMP, Strategy.STICKY):
            with run.directory() as directory, running(directory) as system:
                params = {"workers": workers, "partitions": partitions, "strategy": strategy}
                with run.case(OWNERSHIP, f"{strategy}, {workers} workers, {partitions} partitions", params) as case:
                    _measure(case, system, directory, gently=run.quick, crashes=run.size(_CRASHES, 1))


def _measure(case: Case, system: System, directory: Path, *, gently: bool, crashes: int = 0) -> None:
    workers, partitions, strategy = (case.params[name] for name in ("workers", "partitions", "strategy"))
    store = f"{case.scenario}{workers}x{partitions}"
    run_coroutine(_fill(system.service.address, store, partitions, strategy))
    settings = {"servers": system.nats.url, "store": store, **case.params}
    settings |= {"directory": str(directory), "gently": gently, "agent_rounds": crashes}
    meter = CpuMeter(system.pids())
    with Child("fleet", "benchmarks.envelope.fleet", settings) as fleet:
        most = fleet.wait_for("started", _START_S)["most"]
        case.figures = {"most partitions over mean": Figure(most / (partitions / workers), "times")}
        for step in STEPS:
            found = fleet.wait_for(step, _STEP_S)
            case.figures = {
                **case.figures,
                f"{step}_ms": Figure(found["took_ms"], "ms"),
                f"{step}, cpu of the workers in one process_ms": Figure(found["cpu_ms"], "ms"),
                f"{step}, moved": Figure(found["moved"], "partitions"),
                f"{step}, moved over ideal": Figure(found["moved"] / max(found["ideal"], 1), "times"),
            }
            if case.scenario == OWNERSHIP:
                case.figures = {**case.figures, **_dark(step, found["dark_ms"])}
        under_agent = [fleet.wait_for(f"{UNDER_AGENT}, {number}", _STEP_S)["dark_ms"] for number in range(crashes)]
        fleet.wait_for("done", _STEP_S)
    cpu_s = meter.seconds()
    case.figures = {**case.figures, **_under_agent(under_agent)}
    case.figures = {**case.figures, **{f"cpu, {name}": Figure(seconds, "s") for name, seconds in cpu_s.items()}}


def _dark(step: str, dark_ms: list[float]) -> dict[str, Figure]:
    """How long partitions had no owner, and for how long some had two."""
    if not dark_ms:
        return {}
    owned_twice_ms = [-taken for taken in dark_ms if taken < 0]
    return {
        f"{step}, dark p50_ms": Figure(float(np.percentile(dark_ms, 50)), "ms"),
        f"{step}, dark p99_ms": Figure(float(np.percentile(dark_ms, 99)), "ms"),
        f"{step}, owned twice": Figure(len(owned_twice_ms), "partitions"),
        f"{step}, owned twice at most_ms": Figure(max(owned_twice_ms, default=0.0), "ms"),
    }


def _under_agent(rounds: list[list[float]]) -> dict[str, Figure]:
    """The same of crashes one after another, with the longest that any partition had no owner in each."""
    worst_ms = [max(dark_ms) for dark_ms in rounds if dark_ms]
    if not worst_ms:
        return {}
    figures = _dark(UNDER_AGENT, [taken for dark_ms in rounds for taken in dark_ms])
    return {**figures, f"{UNDER_AGENT}, dark at most_ms": Figure(max(worst_ms), "ms", tuple(worst_ms))}


async def _fill(service: str, store: str, partitions: int, strategy: Strategy) -> None:
    await create_store(service, store, partitions, strategy=strategy)
    rows = (RowWrite(f"row-{number}", value_of(number, 16)) for number in range(partitions * _ROWS_A_PARTITION))
    async with ConfigServiceClient(service) as client:
        async for _ in client.bulk_write(store, KEY, rows):
            pass
