"""How long a worker takes to load a partition, beside the bare transport of the same bytes in the same chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringcast_client import ConfigServiceClient, RowWrite

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child
from benchmarks.envelope.results import Case, Figure, median_of
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY

BOOTSTRAP = "bootstrap"
_MEGABYTES = (1, 8)
_VALUE_BYTES = 1_000
_ROUNDS = 15
_TIMEOUT_S = 90.0


def bootstrap(run: Run) -> None:
    """1 MB and 8 MB, which are the target and the hard limit of a partition."""
    with run.directory() as directory, running(directory) as system:
        for megabytes in _MEGABYTES[: run.size(len(_MEGABYTES), 1)]:
            rows = megabytes * 1_000_000 // _VALUE_BYTES
            params = {"rows": rows, "row_bytes": _VALUE_BYTES, "rounds": run.size(_ROUNDS, 2)}
            with run.case(BOOTSTRAP, f"{megabytes} MB", params) as case:
                _measure(case, system, f"bootstrap{megabytes}")


def _measure(case: Case, system: System, store: str) -> None:
    run_coroutine(_fill(system.service.address, store, case.params["rows"]))
    settings = {"servers": system.nats.url, "store": store, "rows": case.params["rows"]}
    with Child("responder", "benchmarks.envelope.fetching", {**settings, "who": "responder"}) as responder:
        responder.wait_for("ready", _TIMEOUT_S)
        fetching = {**settings, "who": "client", "rounds": case.params["rounds"]}
        with Child("client", "benchmarks.envelope.fetching", fetching) as client:
            case.figures = _figures(client.wait_for("measured", _TIMEOUT_S))


async def _fill(service: str, store: str, rows: int) -> None:
    """Every row in the one partition; ids count as bytes too."""
    await create_store(service, store, 1)
    ids = [f"row-{number:06d}" for number in range(rows)]
    async with ConfigServiceClient(service) as client:
        async for _ in client.bulk_write(store, KEY, [RowWrite(id_, "x" * (_VALUE_BYTES - len(id_))) for id_ in ids]):
            pass


def _figures(found: Mapping[str, Any]) -> dict[str, Figure]:
    def ratio(ours: str, theirs: str) -> Sequence[float]:
        return [a / b for a, b in zip(found[ours], found[theirs], strict=True)]

    return {
        "worker_ms": median_of(found["worker"], "ms"),
        "worker, with its start_ms": median_of(found["worker from its start"], "ms"),
        "one fetch_ms": median_of(found["fetch"], "ms"),
        "bare transport_ms": median_of(found["transport"], "ms"),
        "worker over bare transport": median_of(ratio("worker", "transport"), "times"),
        "one fetch over bare transport": median_of(ratio("fetch", "transport"), "times"),
        "cpu, worker": median_of(found["worker cpu"], "ms"),
        "cpu, bare transport": median_of(found["transport cpu"], "ms"),
    }
