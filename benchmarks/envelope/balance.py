"""How even the work of a fleet gets where its leader balances by load: workers whose partitions are written unequally.

The workers, the service and the broker are real, and the leader knows of the writes what the workers report. How often
each partition is written is drawn here, so that the true load of each worker is known without a measurement.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from ringcast import Change, Worker
from ringcast.topology import read_topology
from ringcast.wishes import set_balance
from ringcast_client import ConfigServiceClient
from ringcast_core import row_partition
from ringcast_wire import Strategy

from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.results import Figure
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY

BALANCE: Final = "balance"
STORE: Final = "balanced"
EVEN: Final = 1.25
_EXPONENT: Final = 0.6
_TICK_S: Final = 0.02
_LOOK_S: Final = 1.0
_PATIENCE_S: Final = 300.0
_WRITTEN_SHARE: Final = 0.8
_REST_SHARE: Final = 3
"""One of so many parts of the time, the last, in which nothing should move any more."""


def balance(run: Run) -> None:
    """Twenty workers, 256 partitions, and writes whose rates fall by the rank of the partition to the power of 0.6."""
    params = {
        "workers": run.size(20, 3),
        "partitions": run.size(256, 12),
        "changes_per_s": run.size(400, 100),
        "lease_ttl_ms": run.size(4_000, 1_000),
        "watch_s": run.size(420, 12),
    }
    with run.directory() as directory, running(directory) as system:
        name = f"{params['workers']} workers, {params['partitions']} partitions, zipf({_EXPONENT})"
        with run.case(BALANCE, name, params) as case:
            case.figures = run_coroutine(_measure(system, params))


async def _measure(system: System, params: Mapping[str, int]) -> dict[str, Figure]:
    partitions, ttl_ms = params["partitions"], params["lease_ttl_ms"]
    weights = _weights(partitions)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ConfigServiceClient(system.service.address))
        await client.create_store(
            STORE,
            partition_count=partitions,
            strategy=Strategy.STICKY,
            lease_ttl_ms=ttl_ms,
            call_bound_ms=ttl_ms // 10,
        )
        await client.put(STORE, KEY, "first", "0")
        for number in range(params["workers"]):
            worker = Worker(
                servers=system.nats.url, store=STORE, keys=[KEY], worker_id=f"w{number:02d}", handler=_handle
            )
            await stack.enter_async_context(worker)
        fleet = _Fleet(system.nats.url, weights, params["workers"])
        by_number = await fleet.settled()
        await set_balance(system.nats.url, STORE, "load")
        writer = _Writer(client, partitions, weights, params["changes_per_s"])
        writing = asyncio.create_task(writer.run())
        stack.push_async_callback(_ended, writing)
        figures = {
            "by number, busiest over mean": Figure(by_number, "times"),
            **await fleet.watch(params["watch_s"], writer),
        }
        if writing.done():
            raise RuntimeError(f"the writer has ended: {writing.exception()}")
        if (written := figures["changes written"].value) < _WRITTEN_SHARE * params["changes_per_s"]:
            raise RuntimeError(f"only {written:.0f} of {params['changes_per_s']} changes/s were written")
        return figures


class _Fleet:
    """What the table says who owns, and how much of the true load each of them has by that."""

    def __init__(self, servers: str, weights: Sequence[float], workers: int) -> None:
        self._servers = servers
        self._weights = weights
        self._workers = workers

    async def settled(self) -> float:
        """Waits until each worker has its number of partitions; how uneven that is."""
        least, rest = divmod(len(self._weights), self._workers)
        due = time.monotonic() + _PATIENCE_S
        while True:
            owners, moving = await self._owners()
            shares = [owners.count(owner) for owner in set(owners)]
            if not moving and len(shares) == self._workers and all(least <= n <= least + (rest > 0) for n in shares):
                return self._skew(owners)
            if time.monotonic() > due:
                raise TimeoutError(f"{len(shares)} of {self._workers} workers own {sorted(shares)} partitions")
            await asyncio.sleep(_LOOK_S)

    async def watch(self, seconds: float, writer: _Writer) -> dict[str, Figure]:
        """Looks who owns what for so long. One that moves counts for its former owner until it has another."""
        began_s = time.monotonic()
        before, _ = await self._owners()
        looks: list[tuple[float, float]] = []
        moved_s: list[float] = []
        while not looks or looks[-1][0] < seconds:
            await asyncio.sleep(_LOOK_S)
            found, _ = await self._owners()
            at_s = time.monotonic() - began_s
            owners = [new or old for new, old in zip(found, before, strict=True)]
            moved_s += [at_s for one, other in zip(before, owners, strict=True) if one != other]
            before = owners
            looks.append((at_s, self._skew(owners)))
        late_s = seconds * (1 - 1 / _REST_SHARE)
        last = [skew for at_s, skew in looks if at_s > late_s]
        return {
            "by load, busiest over mean": Figure(max(last), "times", last),
            f"until it stays below {EVEN}": Figure(max((at for at, skew in looks if skew > EVEN), default=0.0), "s"),
            "moves": Figure(len(moved_s), "partitions"),
            "moves in the last third": Figure(sum(at_s > late_s for at_s in moved_s), "partitions"),
            "changes written": Figure(writer.written / looks[-1][0], "1/s", smaller_is_better=False),
        }

    async def _owners(self) -> tuple[list[str], bool]:
        """Who owns each partition, and whether one is on its way to another worker."""
        found = (await read_topology(self._servers, STORE, KEY)).exclusive
        if found is None:
            return [""] * len(self._weights), True
        return [each.owner or "" for each in found.partitions], any(each.next_owner for each in found.partitions)

    def _skew(self, owners: Sequence[str]) -> float:
        loads: dict[str, float] = {}
        for owner, weight in zip(owners, self._weights, strict=True):
            loads[owner] = loads.get(owner, 0.0) + weight
        return max(loads.values()) / (sum(self._weights) / self._workers)


class _Writer:
    """Writes a row of each partition as often as its weight says, over one stream."""

    def __init__(
        self, client: ConfigServiceClient, partitions: int, weights: Sequence[float], changes_per_s: int
    ) -> None:
        self.written = 0
        self._client = client
        self._weights = weights
        self._rate = changes_per_s
        self._random = random.Random(1)
        self._rows = _row_of_each(partitions)

    async def run(self) -> None:
        """Writes until cancelled; a write that is late makes those after it late, and no more of them."""
        begun, began_s = 0, time.monotonic()
        async with self._client.changes(STORE, KEY) as changes:
            while True:
                await asyncio.sleep(_TICK_S)
                due = round((time.monotonic() - began_s) * self._rate)
                chosen = self._random.choices(self._rows, self._weights, k=min(due - begun, self._rate))
                begun = due
                await asyncio.gather(*(changes.put(row_id, str(begun)) for row_id in chosen))
                self.written += len(chosen)


def _row_of_each(partitions: int) -> list[str]:
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(row_partition(str(number), partitions), str(number))
        number += 1
    return [found[partition] for partition in range(partitions)]


def _weights(partitions: int) -> list[float]:
    """Of each partition, in no order."""
    weights = [(rank + 1) ** -_EXPONENT for rank in range(partitions)]
    random.Random(2).shuffle(weights)
    return weights


async def _handle(_change: Change) -> None:
    """Takes it."""


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
