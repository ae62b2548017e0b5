"""How long a change takes from the call that writes it to the handler, and how many changes a second get through."""

from __future__ import annotations

from typing import Any

from ringcast_client import ConfigServiceClient

from benchmarks.envelope.drive import Load, drive
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import DATABASES, System, running

LATENCY = "latency"
SUSTAINED = "sustained"
_WORKERS = 2
_RATES = ((1, 20), (100, 12), (1_000, 15), (5_000, 15))
"""Changes a second, and for how many seconds."""
_CALLS_RATE = 1_000
_QUICK_RATES = {"sqlite": _RATES[-1:], "postgresql": _RATES[1:2]}
"""One of each way of writing."""
_SUSTAINED_RATE = 5_000
_ROWS = 10_000
_PARTITIONS = 256


def change_to_handler(run: Run) -> None:
    """At 1, 100, 1,000 and 5,000 changes/s, on each database; at 1,000 also with a call for each change."""
    for database in DATABASES:
        with run.directory() as directory, running(directory, database) as system:
            for number, (rate, seconds) in enumerate(_RATES if not run.quick else _QUICK_RATES[database]):
                load = Load(rate=rate, count=run.size(rate * seconds, rate // 10), rows=_ROWS)
                _measure(run, LATENCY, f"{database}, {rate}/s", system, f"latency{number}", _PARTITIONS, load)
                if rate == _CALLS_RATE:
                    name = f"{database} by calls, {rate}/s"
                    _measure(run, LATENCY, name, system, f"calls{number}", _PARTITIONS, load, calls=True)


def sustained(run: Run) -> None:
    """5,000 changes/s for a minute into one partition, and into 256."""
    with run.directory() as directory, running(directory) as system:
        for partitions, seconds in ((1, 60), (_PARTITIONS, 30))[: run.size(2, 1)]:
            count = run.size(_SUSTAINED_RATE * seconds, 500)
            load = Load(rate=_SUSTAINED_RATE, count=count, rows=_ROWS)
            name = f"{_SUSTAINED_RATE}/s into {partitions} partition{'s' if partitions > 1 else ''}"
            _measure(run, SUSTAINED, name, system, f"sustained{partitions}", partitions, load)


def _measure(
    run: Run,
    scenario: str,
    name: str,
    system: System,
    store: str,
    partitions: int,
    load: Load,
    *,
    calls: bool = False,
) -> None:
    with run.case(scenario, name, load.params) as case, run.directory() as directory:
        run_coroutine(create_store(system.service.address, store, partitions))
        where = {"kind": "ringcast", "servers": system.nats.url, "service": system.service.address, "store": store}
        found = drive(
            directory,
            load,
            target={**where, "calls": calls},
            subscribers=workers(where, min(_WORKERS, partitions)),
            by_all=False,
            servers=system.pids(),
        )
        case.params, case.figures, case.histogram, case.note = found.params, found.figures, found.histogram, found.note


def workers(where: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The targets of so many worker processes."""
    return [{**where, "worker": {"worker_id": f"w{number}"}} for number in range(count)]


async def create_store(service: str, store: str, partitions: int, **settings: Any) -> None:
    """A store with nothing in it."""
    async with ConfigServiceClient(service) as client:
        await client.create_store(store, partition_count=partitions, **settings)
