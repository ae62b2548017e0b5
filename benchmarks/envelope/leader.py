"""What the leader of a key of exclusive ownership takes: it alone writes the table that all others follow."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ringcast_wire import Strategy

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import Case, Figure
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY

LEADER = "leader"
_OURS = ("first", "second")
"""Workers that are processes of their own. The first that is there leads."""
_WORKERS, _PARTITIONS = 200, 4_096
_AT_ONCE = 8
"""Four thousand partitions are so much for two hundred workers of one process that twenty more at once cost leases."""
_START_S = 400.0
_STEP_S = 150.0


def leader(run: Run) -> None:
    """200 workers with 4,096 partitions: the leader and a follower, at rest and while two leave and join."""
    workers, partitions = run.size(_WORKERS, 5), run.size(_PARTITIONS, 20)
    with run.directory() as directory, running(directory) as system:
        params = {"workers": workers, "partitions": partitions, "seconds": run.size(20, 1)}
        with run.case(LEADER, f"{workers} workers, {partitions} partitions", params) as case:
            run_coroutine(create_store(system.service.address, LEADER, partitions))
            with _worker(system, "first") as first:
                first.wait_for("ready", _START_S)
                with _worker(system, "second") as second:
                    second.wait_for("ready", _START_S)
                    _measure(case, system, {"first": first, "second": second})


def _measure(case: Case, system: System, ours: Mapping[str, Child]) -> None:
    settings = {
        "servers": system.nats.url,
        "store": LEADER,
        "workers": case.params["workers"] - len(ours),
        "partitions": case.params["partitions"],
        "strategy": Strategy.JUMP,
        "migrates_at": system.service.address,
        "others": len(ours),
        "at_once": _AT_ONCE,
        "rest_s": case.params["seconds"],
        "crash": False,
    }
    pids = {name: [worker.process.pid] for name, worker in ours.items()}
    with Child("fleet", "benchmarks.envelope.fleet", settings) as fleet:
        fleet.wait_for("started", _START_S)
        for phase, end in (("at rest", "moving"), ("while two workers leave and join", "done")):
            meter, began_s, before = CpuMeter(pids), time.monotonic(), _messages(system)
            fleet.wait_for(end, _STEP_S)
            took_s, after, cpu_s = time.monotonic() - began_s, _messages(system), meter.seconds()
            for name, who in zip(_OURS, ("leader", "follower"), strict=True):
                written, read = (after[name][way] - before[name][way] for way in range(2))
                case.figures = {
                    **case.figures,
                    f"{phase}, {who}, cpu": Figure(cpu_s[name] / took_s * 1e3, "ms/s"),
                    f"{phase}, {who}, messages to the broker": Figure(written / took_s, "1/s"),
                    f"{phase}, {who}, messages from the broker": Figure(read / took_s, "1/s"),
                }


def _messages(system: System) -> dict[str, tuple[int, int]]:
    """In and out of the broker since each of our workers connected."""
    return {
        name: (connection["in_msgs"], connection["out_msgs"])
        for connection in system.monitored("connz?limit=1024")["connections"]
        for name in _OURS
        if connection.get("name", "").endswith(name)
    }


def _worker(system: System, worker_id: str) -> Child:
    settings = {"servers": system.nats.url, "store": LEADER, "worker_id": worker_id, "keys": [KEY]}
    return Child(worker_id, "benchmarks.envelope.idler", settings)
