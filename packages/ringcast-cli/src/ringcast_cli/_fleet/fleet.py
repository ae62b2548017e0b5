"""The workers of stores, as they say themselves how far they are: the report rounds of all keys, put together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ringcast.fleet import FleetReader, KeyLag, WorkerLag
from ringcast_client import ConfigServiceClient
from ringcast_wire import ErrorCode, NodePhase, RingcastError, event_within
from ringcast_wire.reports import WorkerKind, WorkerReport

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.output import visible
from ringcast_cli._fleet.lag_command import seconds

MOST_KEYS: Final = 256
"""Keys whose workers are asked in one look; the others are left out, and that is said."""
WORKER_COLUMNS: Final = [
    *("store", "worker", "state", "partitions", "rows", "bytes", "applied/s", "behind", "oldest", "stale", "handler"),
    *("blocked", "dead", "problem"),
]
WORKER_NUMBERS: Final = frozenset(range(3, 13))
"""The columns whose cells are numbers."""
_STORES_AT_ONCE: Final = 6
_STORES_ANEW_S: Final = 30.0
_NO_STORE: Final = (ErrorCode.UNKNOWN_STORE, ErrorCode.STORE_DELETED)
_SERVICE_WAIT_S: Final = 5.0
"""How long the config service is waited for, which says which stores and keys there are."""
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class FleetWorker:
    """One worker of a store, over all of its keys that were asked: sums, and of times the longest, in seconds.

    ``state``: ``active``, ``joining``, ``leaving``, ``groups`` (of an agent), ``observer``, or ``unknown`` for one that
    has not answered for every key. ``problem``: what is wrong with it, or nothing. ``applied_per_s``: revisions that
    went through its handler; ``None``: not known yet. ``rows``, ``row_bytes``: live rows that it holds; ``None``: its
    build does not say.
    """

    store: str
    worker_id: str
    state: str
    answered: bool
    problem: str
    keys: tuple[str, ...]
    host: str | None
    pid: int | None
    version: str
    partitions: int
    loading: int
    rows: int | None
    row_bytes: int | None
    applied_per_s: float | None
    behind: int | None
    oldest_s: float
    stale_s: float
    handler_s: float
    blocked: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class FleetLook:
    """All workers that were heard or should have been. ``missing``: sentences that say why this is not the whole fleet;
    empty: it is."""

    workers: tuple[FleetWorker, ...] = ()
    missing: tuple[str, ...] = ()
    unowned: Mapping[str, int] = field(default_factory=dict)
    """Partitions that no worker that answered owns, by ``store/key``; only keys that have some."""


class Fleet:
    """Looks at the workers of ``stores``, or of all stores that this client may see, again and again.

    Use as an async context manager. What fails is said in the look, which then is not whole. Nothing is raised, but
    for a store of ``stores`` that the first look does not find: no later one would have its workers.
    """

    def __init__(self, config: CliConfig, stores: Sequence[str], patience_s: float) -> None:
        self._config = config
        self._wanted = stores
        self._patience_s = patience_s
        self._stack = AsyncExitStack()
        self._client: ConfigServiceClient | None = None
        self._known: dict[str, list[str]] = {}
        self._known_at: float | None = None
        self._rates = _Rates()
        self._latest = FleetLook()
        self._looked_at: float | None = None
        self._looked = asyncio.Event()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def look(self) -> FleetLook:
        """Asks all workers once.

        Raises:
            RingcastError: a store that is asked for is not there, or is deleted; only the first time that it is looked
                for.
        """
        missing: list[str] = []
        asked, left_out = _first(await self._stores(missing), MOST_KEYS)
        if left_out:
            missing.append(f"{left_out} keys are left out: {MOST_KEYS} are asked in one look, --store narrows it")
        lags = await self._ask(asked, missing) if asked else []
        missing += [sentence for lag in lags for sentence in _unheard(lag)]
        return FleetLook(
            tuple(sorted(self._workers(lags), key=_worst_first)),
            tuple(missing),
            {f"{lag.store}/{lag.key}": len(lag.unowned) for lag in lags if lag.unowned},
        )

    async def run(self, every_s: float) -> None:
        """Looks again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._latest = await self.look()
            self._looked_at = loop.time()
            self._looked.set()
            await asyncio.sleep(every_s)

    async def looked(self, within_s: float) -> None:
        """Returns after the first look of :meth:`run`, or when it takes longer than that."""
        await event_within(self._looked, within_s)

    def latest(self, most_s: float) -> FleetLook:
        """The last look of :meth:`run`. One that is older than that is not whole."""
        if self._looked_at is None:
            return FleetLook(missing=("no worker was heard yet",))
        age_s = asyncio.get_running_loop().time() - self._looked_at
        if age_s <= most_s:
            return self._latest
        old = f"the workers were asked {age_s:.0f} s ago, and not since: NATS or the config service does not answer"
        return replace(self._latest, missing=(old, *self._latest.missing))

    async def _stores(self, missing: list[str]) -> dict[str, list[str]]:
        """The keys of each store; those of before where the config service does not say."""
        now = asyncio.get_running_loop().time()
        if self._known_at is not None and now < self._known_at + _STORES_ANEW_S:
            return self._known
        try:
            if self._client is None:
                soon = replace(self._config, timeout_s=min(self._config.timeout_s, _SERVICE_WAIT_S))
                self._client = await self._stack.enter_async_context(service_client(soon))
            if self._wanted:
                found = [await self._client.get_store(store) for store in dict.fromkeys(self._wanted)]
            else:
                found = await self._client.list_stores()
        except RingcastError as error:
            if self._wanted and self._known_at is None and error.code in _NO_STORE:
                raise
            before = ", these are those of before" if self._known else ""
            missing.append(f"it is not known which stores and keys there are{before}: {error}")
            return self._known
        self._known = {each.name: [key.name for key in each.keys if key.deletion is None] for each in found}
        self._known_at = now
        return self._known

    async def _ask(self, stores: Mapping[str, Sequence[str]], missing: list[str]) -> list[KeyLag]:
        turns = asyncio.Semaphore(_STORES_AT_ONCE)

        async def one(reader: FleetReader, store: str) -> list[KeyLag]:
            async with turns:
                try:
                    return await reader.lags(store, stores[store], patience_s=self._patience_s)
                except RingcastError as error:
                    missing.append(f"{store}: {error}")
                    return []

        # A connection for each look: one that was lost does not come back by itself.
        try:
            async with FleetReader.open(self._config.servers, timeout_s=self._config.timeout_s) as reader:
                try:
                    async with asyncio.TaskGroup() as tasks:
                        made = [tasks.create_task(one(reader, store)) for store in stores]
                except BaseExceptionGroup as group:
                    raise group.exceptions[0] from None
        except RingcastError as error:
            missing.append(str(error))
            return []
        return [lag for task in made for lag in task.result()]

    def _workers(self, lags: Sequence[KeyLag]) -> list[FleetWorker]:
        parts: defaultdict[tuple[str, str], list[tuple[KeyLag, WorkerLag]]] = defaultdict(list)
        for lag in lags:
            for worker in lag.workers:
                parts[lag.store, worker.worker_id].append((lag, worker))
        rates = self._rates.of(lags)
        return [_together(store, name, of_worker, rates) for (store, name), of_worker in parts.items()]


class _Rates:
    """How many revisions workers apply in a second, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str, str], WorkerReport] = {}

    def of(self, lags: Sequence[KeyLag]) -> dict[tuple[str, str, str], float]:
        """By store, key and worker. One that was not heard before has what it reports itself, if it reports loads."""
        found: dict[tuple[str, str, str], float] = {}
        now: dict[tuple[str, str, str], WorkerReport] = {}
        for lag in lags:
            for worker_id, report in lag.reports.items():
                place = (lag.store, lag.key, worker_id)
                now[place] = report
                rate = _rate(self._before.get(place), report)
                if rate is None:
                    rate = lag.loads.get(worker_id)
                if rate is not None:
                    found[place] = rate
        self._before = now
        return found


def _rate(before: WorkerReport | None, now: WorkerReport) -> float | None:
    """By the worker's own clock, over the partitions that it has had all the time."""
    if before is None or (before.incarnation, before.history) != (now.incarnation, now.history):
        return None
    if now.clock_ms <= before.clock_ms:
        return None
    had = dict(before.partitions())
    applied = sum(max(0, revision - had[number]) for number, revision in now.partitions() if number in had)
    return applied * 1000 / (now.clock_ms - before.clock_ms)


def _together(
    store: str, worker_id: str, parts: Sequence[tuple[KeyLag, WorkerLag]], rates: Mapping[tuple[str, str, str], float]
) -> FleetWorker:
    workers = [worker for _, worker in parts]
    heard = [worker for worker in workers if worker.answered]
    known = [rate for lag, _ in parts if (rate := rates.get((store, lag.key, worker_id))) is not None]
    problems = {worker.problem: lag.key for lag, worker in reversed(parts) if worker.problem}
    problem = "; ".join(f"{why} ({key})" if len(parts) > 1 else why for why, key in reversed(problems.items()))
    return FleetWorker(
        store=store,
        worker_id=worker_id,
        state=_state(workers),
        answered=len(heard) == len(workers),
        problem=problem,
        keys=tuple(lag.key for lag, _ in parts),
        host=next((worker.host for worker in workers if worker.host), None),
        pid=next((worker.pid for worker in workers if worker.pid), None),
        version=next((worker.build for worker in heard if worker.build), ""),
        partitions=sum(worker.partitions for worker in heard),
        loading=sum(worker.loading for worker in heard),
        rows=_sum([worker.rows for worker in heard]),
        row_bytes=_sum([worker.row_bytes for worker in heard]),
        applied_per_s=sum(known) if known else None,
        behind=_sum([worker.behind for worker in heard]),
        oldest_s=max((worker.oldest_s for worker in heard), default=0.0),
        stale_s=max((worker.stale_s for worker in heard), default=0.0),
        handler_s=max((worker.handler_s for worker in heard), default=0.0),
        blocked=sum(worker.blocked for worker in heard),
        dead_lettered=sum(worker.dead_lettered for worker in heard),
    )


def _sum(amounts: Sequence[int | None]) -> int | None:
    """``None``: one of them is not known, or there are none."""
    return None if None in amounts or not amounts else sum(each or 0 for each in amounts)


def _state(workers: Sequence[WorkerLag]) -> str:
    if not all(worker.answered for worker in workers):
        return "unknown"
    for phase in (NodePhase.LEAVING, NodePhase.JOINING):
        if any(worker.phase is phase for worker in workers):
            return str(phase)
    kind = workers[0].kind
    return "active" if kind in (None, WorkerKind.APPLICATION) else str(kind)


def _unheard(lag: KeyLag) -> list[str]:
    place = f"{lag.store}/{lag.key}"
    found = []
    if lag.silent:
        more = f" and {len(lag.silent) - _SHOWN} more" if len(lag.silent) > _SHOWN else ""
        found.append(f"{place}: no answer of {', '.join(lag.silent[:_SHOWN])}{more}")
    found += [f"{place}: the answer of {worker_id} can't be read: {why}" for worker_id, why in lag.unreadable.items()]
    if lag.left_out:
        found.append(f"{place}: {lag.left_out} answers came twice or were too many, and were left out")
    if lag.behind is None and all(worker.answered for worker in lag.workers):
        found.append(f"{place}: it is not known what there is to apply")
    return found


def _worst_first(worker: FleetWorker) -> tuple[bool, bool, int, str, str]:
    return worker.answered, not worker.problem, -(worker.behind or 0), worker.store, worker.worker_id


def _first(stores: Mapping[str, Sequence[str]], most: int) -> tuple[dict[str, Sequence[str]], int]:
    """As many keys, and how many are left out."""
    taken: dict[str, Sequence[str]] = {}
    left, out = most, 0
    for store, keys in stores.items():
        some = keys[:left]
        left, out = left - len(some), out + len(keys) - len(some)
        if some:
            taken[store] = some
    return taken, out


def worker_row(worker: FleetWorker) -> list[str]:
    """By :data:`WORKER_COLUMNS`."""
    names = [worker.store, worker.worker_id, worker.state]
    if not worker.answered and not worker.partitions:
        return [*names, *["-"] * 10, worker.problem]
    return [
        *names,
        f"{worker.partitions}" + (f" ({worker.loading} loading)" if worker.loading else ""),
        "?" if worker.rows is None else str(worker.rows),
        "?" if worker.row_bytes is None else str(worker.row_bytes),
        "-" if worker.applied_per_s is None else f"{worker.applied_per_s:.1f}",
        "?" if worker.behind is None else str(worker.behind),
        *(seconds(each) for each in (worker.oldest_s, worker.stale_s, worker.handler_s)),
        str(worker.blocked),
        str(worker.dead_lettered),
        worker.problem,
    ]


def worker_document(worker: FleetWorker) -> dict[str, Any]:
    """As JSON."""
    rate = worker.applied_per_s
    said = {name: getattr(worker, name) for name in FleetWorker.__slots__ if name != "worker_id"}
    return {"kind": "worker", "id": worker.worker_id, **said, "applied_per_s": rate and round(rate, 2)}


def fleet_document(look: FleetLook) -> dict[str, Any]:
    """How much of the fleet a look has, as JSON."""
    return {
        "kind": "fleet",
        "whole": not look.missing,
        "missing": look.missing,
        "unowned": look.unowned,
    }


def fleet_headline(look: FleetLook) -> str:
    """How many workers there are, and whether these are all."""
    stores = len({worker.store for worker in look.workers})
    what = f"{len(look.workers)} workers of {stores} stores"
    if not look.missing:
        rate = sum(worker.applied_per_s or 0.0 for worker in look.workers)
        return f"{what}, {rate:.1f} changes applied a second"
    silent = sum(not worker.answered for worker in look.workers)
    return f"PARTLY HEARD: {what}, {silent} of them did not answer; this is not the whole fleet"


def fleet_warnings(look: FleetLook) -> list[str]:
    """Why it is not the whole fleet, and which partitions nobody has, in sentences."""
    found = [visible(sentence) for sentence in look.missing]
    if look.unowned:
        some = [f"{place} ({count})" for place, count in list(look.unowned.items())[:_SHOWN]]
        more = f" and of {len(look.unowned) - _SHOWN} more keys" if len(look.unowned) > _SHOWN else ""
        found.append(f"no worker that answered owns partitions of {', '.join(some)}{more}")
    return found
