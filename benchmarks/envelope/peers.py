"""The same job on Ringcast and on what else could do it: change a value, until every subscriber's callback has it.

The store is one where every worker holds everything, since that is what the peers do. Their servers come from the
system's packages; what is not installed is left out, with a notice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from ringcast_testkit import ManagedProcess, NatsServer, ReservedPort
from ringcast_wire import Mode

from benchmarks.envelope.changes import create_store, workers
from benchmarks.envelope.drive import Load, drive
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.results import Case, Figure
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import running
from benchmarks.envelope.targets import BUCKET

PEERS = "peers"
OURS = "ringcast"
_STORE = "peers"
_RATES = (100, 500)
_SECONDS = 10
_ROWS = 200
_LAST_WORD = "p50_ms", "p99_ms"


@dataclass(frozen=True, slots=True)
class Peer:
    """Where its writers and subscribers go, and its processes."""

    target: dict[str, Any]
    pids: dict[str, list[int]]


Start = Callable[[Path], AbstractContextManager[Peer]]


@contextmanager
def _ringcast(directory: Path) -> Iterator[Peer]:
    with running(directory) as system:
        service = system.service.address
        run_coroutine(create_store(service, _STORE, 16, mode=Mode.FULL))
        target = {"kind": OURS, "servers": system.nats.url, "service": service, "store": _STORE}
        yield Peer(target, system.pids())


@contextmanager
def _nats_kv(directory: Path) -> Iterator[Peer]:
    async def create(url: str) -> None:
        connection = await nats.connect(url)
        await connection.jetstream().create_key_value(bucket=BUCKET)
        await connection.close()

    with NatsServer(directory) as server:
        run_coroutine(create(server.url))
        yield Peer({"kind": "nats-kv", "servers": server.url}, {"nats-server": [server.process.pid]})


@contextmanager
def _etcd(directory: Path) -> Iterator[Peer]:
    reserved = ReservedPort(), ReservedPort()
    client, peer = (f"http://{port.address}" for port in reserved)
    words = ["--data-dir", directory, "--listen-client-urls", client, "--advertise-client-urls", client]
    words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    with _server("etcd", words, "ready to serve client requests") as process:
        yield Peer({"kind": "etcd", "address": client.removeprefix("http://")}, {"etcd": [process.pid]})


@contextmanager
def _redis(directory: Path) -> Iterator[Peer]:
    directory.mkdir()
    port = ReservedPort()
    # As durable as the stream behind a NATS bucket: on the disk within a second.
    words = ["--port", port.number, "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "yes"]
    with _server("redis-server", [*words, "--notify-keyspace-events", "KA"], "Ready to accept connections") as process:
        yield Peer({"kind": "redis", "address": port.address}, {"redis": [process.pid]})


@contextmanager
def _server(program: str, words: list[Any], ready: str) -> Iterator[ManagedProcess]:
    process = ManagedProcess(program, [program, *map(str, words)])
    try:
        process.wait_until(lambda: any(ready in line for line in list(process.log)))
        yield process
    finally:
        process.kill()


_TARGETS: dict[str, tuple[Start, str, str]] = {
    OURS: (_ringcast, "", ""),
    "nats-kv": (_nats_kv, "", ""),
    "etcd": (_etcd, "etcd", "etcd-server"),
    "redis": (_redis, "redis-server", "redis-server"),
}
"""How to start each, the program that it needs, and Debian's package of that."""


def peers(run: Run) -> None:
    """Each target in turn with the same changes, then each peer beside Ringcast."""
    found: dict[tuple[str, int], Case] = {}
    rates = _RATES[: run.size(len(_RATES), 1)]
    for name, (start, program, package) in _TARGETS.items():
        if program and shutil.which(program) is None:
            run.skip(PEERS, name, f"there is no {program} here: Debian's package {package} has it")
            continue
        with run.directory() as directory, start(directory / "data") as peer:
            for rate in rates:
                load = Load(rate=rate, count=run.size(rate * _SECONDS, 20), rows=_ROWS)
                found[name, rate] = _measure(run, name, peer, load)
    for (name, rate), case in found.items():
        if name != OURS:
            _beside(run, f"beside {name}, {rate}/s", found[OURS, rate], case)


def _measure(run: Run, name: str, peer: Peer, load: Load) -> Case:
    count = run.size(4, 1)
    subscribers = workers(peer.target, count) if name == OURS else [peer.target] * count
    with run.case(PEERS, f"{name}, {load.rate}/s", load.params) as case, run.directory() as directory:
        found = drive(directory, load, target=peer.target, subscribers=subscribers, by_all=True, servers=peer.pids)
        case.params, case.figures, case.histogram, case.note = found.params, found.figures, found.histogram, found.note
    return case


def _beside(run: Run, name: str, ours: Case, theirs: Case) -> None:
    """Ratios of the same figures of the same run."""
    if ours.status != "ok" or theirs.status != "ok":
        run.skip(PEERS, name, "one of the two was not measured")
        return
    with run.case(PEERS, name, {"rate": ours.params["rate"]}) as case:
        case.figures = {
            f"{label.removesuffix('_ms')}, ours over theirs": Figure(
                ours.figures[label].value / theirs.figures[label].value,
                "times",
                [
                    ours_part / theirs_part
                    for ours_part, theirs_part in zip(
                        ours.figures[label].samples, theirs.figures[label].samples, strict=False
                    )
                ],
            )
            for label in _LAST_WORD
        }
