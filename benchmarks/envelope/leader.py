"""What the leader of a key of exclusive ownership takes: it alone writes the table that all others follow.

The leader and one that follows are whole workers. The others are their coordinators alone (``owners.py``): two hundred
workers with their rows, which no user has on one machine, take both cores whole for it and lose their leases.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product
from typing import Any

from ringcast.topology import read_topology
from ringcast_wire import DEFAULT_CALL_BOUND_MS, DEFAULT_LEASE_TTL_MS, Strategy

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import Case, Figure
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY

LEADER = "leader"
_OURS = ("first", "second")
"""Workers that are processes of their own, one of which leads: they were there before any other."""
_SIZES = ((20, 1_024, 1), (100, 4_096, 4), (200, 4_096, 4))
"""Workers, partitions, and processes that hold the workers that are not ours: one event loop of two hundred can't
refresh all their leases."""
_AT_ONCE = 8
"""Peers that start together: each wave moves partitions of all before it."""
_START_S = 1_000.0
_STEP_S = 600.0
"""Longer than the workers of another process wait until all have their shares."""


def leader(run: Run) -> None:
    """20, 100 and 200 workers, with `jump` and with `sticky`: at rest, and while one leaves and one joins."""
    sizes = [(5, 20, 1)] if run.quick else _SIZES
    for (workers, partitions, processes), strategy in product(sizes, (Strategy.JUMP, Strategy.STICKY)):
        with run.directory() as directory, running(directory) as system:
            params = {
                "strategy": strategy.value,
                "workers": workers,
                "partitions": partitions,
                "processes": processes,
                "seconds": run.size(20, 1),
            }
            with run.case(LEADER, f"{strategy.value}, {workers} workers, {partitions} partitions", params) as case:
                run_coroutine(create_store(system.service.address, LEADER, partitions, **_of_store(strategy)))
                with _worker(system, "first") as first:
                    first.wait_for("ready", _START_S)
                    with _worker(system, "second") as second:
                        second.wait_for("ready", _START_S)
                        _measure(case, system, {"first": first, "second": second})


def _measure(case: Case, system: System, ours: Mapping[str, Child]) -> None:
    pids = {name: [worker.process.pid] for name, worker in ours.items()}
    with ExitStack() as stack:
        fleet = _fleets(case, system, len(ours), stack)
        roles = _roles(case, system)
        for phase, end in (("at rest", "moving"), ("while one leaves and one joins", "join")):
            meter, began_s, before = CpuMeter(pids), time.monotonic(), _messages(system)
            fleet.wait_for(end, _STEP_S)
            took_s, after, cpu_s = time.monotonic() - began_s, _messages(system), meter.seconds()
            for name, role in roles.items():
                written, read = (after[name][way] - before[name][way] for way in range(2))
                case.figures = {
                    **case.figures,
                    f"{phase}, {role}, cpu": Figure(cpu_s[name] / took_s * 1e3, "ms/s"),
                    f"{phase}, {role}, messages to the broker": Figure(written / took_s, "1/s"),
                    f"{phase}, {role}, messages from the broker": Figure(read / took_s, "1/s"),
                }
            case.figures = {**case.figures, f"{phase}, seconds": Figure(took_s, "s")}
        if (now := _roles(case, system)) != roles:
            raise RuntimeError(f"the roles are {now} at the end, and were {roles} before")


def _roles(case: Case, system: System) -> dict[str, str]:
    """What our workers are. Which of them leads is not said beforehand. Of peers all do the same."""
    if case.params["strategy"] == Strategy.JUMP:
        return {_OURS[0]: "peer"}
    leading = _leading(system)
    return {leading: "leader", **{name: "follower" for name in _OURS if name != leading}}


def _leading(system: System) -> str:
    """Which of our workers leads."""
    exclusive = run_coroutine(read_topology(system.nats.url, LEADER, KEY)).exclusive
    if exclusive is None or exclusive.leader not in _OURS:
        raise RuntimeError(f"{exclusive and exclusive.leader} leads, none of {', '.join(_OURS)}")
    return exclusive.leader


def _of_store(strategy: Strategy) -> dict[str, Any]:
    """Its settings: the times are the default ones, which the processes without a worker have to know too."""
    times = {"lease_ttl_ms": DEFAULT_LEASE_TTL_MS, "call_bound_ms": DEFAULT_CALL_BOUND_MS}
    return {"strategy": strategy, **(times if strategy is Strategy.STICKY else {})}


def _fleets(case: Case, system: System, ours: int, stack: ExitStack) -> Child:
    """Starts the other workers, a process after the other; returns the last, where one leaves and one joins."""
    strategy, partitions = Strategy(case.params["strategy"]), case.params["partitions"]
    settings = {"servers": system.nats.url, "store": LEADER, "rest_s": case.params["seconds"]}
    if strategy is Strategy.STICKY:
        module = "benchmarks.envelope.owners"
        settings["of_store"] = {"partition_count": partitions, **_of_store(strategy)}
    else:
        module = "benchmarks.envelope.fleet"
        settings |= {"partitions": partitions, "at_once": _AT_ONCE, "crash": False, "strategy": strategy}
    others, count = ours, case.params["processes"]
    for number in range(count):
        workers = (case.params["workers"] - others) // (count - number)
        mine = {"prefix": f"f{number}-", "workers": workers, "others": others, "holds": number < count - 1}
        fleet = stack.enter_context(Child(f"fleet {number}", module, {**settings, **mine}))
        fleet.wait_for("started", _START_S)
        others += workers
    return fleet


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
