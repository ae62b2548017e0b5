"""How far the workers of a config key are: what each of them says, held against the buckets of the store and the
revisions that the config service has.

It is a look from outside, at one moment. Nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ringcast_core import row_partition
from ringcast_wire import (
    HeadsReply,
    InvalidInputError,
    Mode,
    NodePhase,
    ProtocolError,
    StoreSettings,
    UnavailableError,
    UnknownKeyError,
    decode_event,
    decode_heads_reply,
    names,
)
from ringcast_wire.reports import ReportAsker, ReportRound, WorkerKind, WorkerReport, assignment_digest

from ringcast._bus.tools import ToolBus, answered_within, fetch, last_event, open_bus, read_bucket
from ringcast._common.lasting import first_error
from ringcast.topology import DEFAULT_TIMEOUT_S, Member, Topology, servers_of, topology_over

DEFAULT_PATIENCE_S: Final = 2.0
"""How long the answers of workers are waited for."""
_KEYS_AT_ONCE: Final = 8
_TRIES: Final = 20
"""How often an event is looked for that a server which lags behind may not have yet."""
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class WorkerLag:
    """One worker of a key. Where it has not ``answered``, only what is registered is known.

    ``problem``: why it can't be counted on, in a few words, or nothing. Times are seconds.
    """

    worker_id: str
    answered: bool
    problem: str
    host: str | None = None
    pid: int | None = None
    phase: NodePhase | None = None
    """``None`` for one that is not registered: an observer."""
    kind: WorkerKind | None = None
    build: str = ""
    partitions: int = 0
    """How many it owns, as it says itself."""
    loading: int = 0
    behind: int | None = None
    """Revisions of its partitions that it has not applied, all together; ``None``: not known."""
    most_behind: int | None = None
    """The partition that lacks most of them."""
    oldest_s: float = 0.0
    """How long ago the oldest event was stored that has come and is not applied."""
    stale_s: float = 0.0
    handler_s: float = 0.0
    blocked: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    unopened: int = 0
    last_error: str = ""
    last_error_s: float = 0.0
    history: str = ""
    """The history of the key that it has; empty: it has none yet."""
    clock_s: float = 0.0
    """Its clock (Unix) when it answered."""
    labels: tuple[str, ...] = ()
    provisional_release: int = 0
    """The release whose provisional rows it shows in place of what it has; 0: none."""
    provisional_rows: int = 0
    rows: int | None = None
    """Live rows that it holds; ``None``: its build does not say."""
    row_bytes: int | None = None
    """Of their ids, values and metadata."""


@dataclass(frozen=True, slots=True)
class KeyLag:
    """How far the workers of one key are.

    ``behind``: revisions that the workers lack, all together; ``None``: no config service said what there is.
    ``unowned``: partitions that no worker that answered owns. ``converged``: every partition has an owner that has
    applied everything, all workers have answered, and they agree on who owns what. ``unreadable``: by worker id.
    """

    store: str
    key: str
    settings: StoreSettings
    converged: bool
    behind: int | None
    unowned: tuple[int, ...]
    workers: tuple[WorkerLag, ...]
    silent: tuple[str, ...]
    unreadable: Mapping[str, str]
    left_out: int
    """Answers that were too many, or came twice."""
    took_s: float
    """How long the workers took to answer."""
    history: str = ""
    """The history of the key that the config service has; empty: none said."""
    reports: Mapping[str, WorkerReport] = field(default_factory=dict)
    """What each worker that answered said, by its id."""
    loads: Mapping[str, float] = field(default_factory=dict)
    """The changes a second of what a worker owns, by worker: in stores of exclusive ownership, where they report it."""


@dataclass(frozen=True, slots=True)
class RowAnswers:
    """What the workers of a key know of one row. ``published``: the revision that the newest event of its partition
    took it to; ``None``: no event is stored. ``history``: that which the config service has of the key now, empty if it
    does not say. Revisions of two histories can't be compared. ``unread``: why this build can't read that event, and
    what to do; its message id then says the revision, or it is ``None`` where that can't be read either."""

    topology: Topology
    partition: int
    round: ReportRound
    published: int | None
    published_history: str = ""
    history: str = ""
    unread: str = ""


class _Published(NamedTuple):
    """What the newest event of a partition says; ``unread``: why it can't be read."""

    rev: int | None
    history: str
    unread: str = ""


_NOTHING: Final = _Published(None, "")


class FleetReader:
    """Asks the workers of a store, over one connection. Calls at about the same time share their requests."""

    def __init__(self, client: ToolBus, servers: Sequence[str], timeout_s: float) -> None:
        self._client = client
        self._servers = servers
        self._timeout_s = timeout_s
        self._asker = ReportAsker(client)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, servers: str | Sequence[str] | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> AsyncIterator[FleetReader]:
        """``servers`` are NATS URLs; ``None``: the environment variable RINGCAST_SERVERS, or nats://127.0.0.1:4222.

        Raises:
            UnavailableError: NATS can't be reached, or does not answer within ``timeout_s``.
        """
        urls = servers_of(servers)
        async with open_bus(urls, timeout_s=timeout_s, name="ringcast-fleet") as client:
            yield cls(client, urls, timeout_s)

    async def lag(self, store: str, key: str, *, patience_s: float = DEFAULT_PATIENCE_S) -> KeyLag:
        """How far the workers of a key are. Those that have not answered within ``patience_s`` are ``silent``.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: the key has no workers, and the config service says that it was never written to.
            UnavailableError: NATS does not answer.
        """
        # Revisions first: what is applied after that can't make a worker look behind.
        async with answered_within(self._servers, self._timeout_s):
            topology = await topology_over(self._client, store, key, timeout_s=self._timeout_s)
        heads = await self._heads(topology)
        found = await self._ask(topology, patience_s=patience_s)
        return _lag(topology, heads, found)

    async def leases(self) -> int | None:
        """How many processes have a lease; ``None``: there is no bucket of leases.

        Where NATS does not answer or has no JetStream, :meth:`open` raises UnavailableError at its end.
        """
        async with answered_within(self._servers, self._timeout_s):
            found = await read_bucket(self._client, names.LEASES_BUCKET, timeout_s=self._timeout_s)
        return None if found is None else len(found)

    async def lags(self, store: str, keys: Sequence[str], *, patience_s: float = DEFAULT_PATIENCE_S) -> list[KeyLag]:
        """The lag of several keys, a few at once, in their order. Raises as :meth:`lag`."""
        turns = asyncio.Semaphore(_KEYS_AT_ONCE)

        async def one(key: str) -> KeyLag:
            async with turns:
                return await self.lag(store, key, patience_s=patience_s)

        try:
            async with asyncio.TaskGroup() as tasks:
                made = [tasks.create_task(one(key)) for key in keys]
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        return [task.result() for task in made]

    async def row(self, store: str, key: str, row_id: str, *, patience_s: float = DEFAULT_PATIENCE_S) -> RowAnswers:
        """What the workers of a key know of one row, and up to where its partition is published.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: the key has no workers, and the config service says that it was never written to.
            UnavailableError: NATS does not answer.
        """
        async with answered_within(self._servers, self._timeout_s):
            topology = await topology_over(self._client, store, key, timeout_s=self._timeout_s)
        heads = await self._heads(topology)
        number = row_partition(row_id, topology.settings.partition_count)
        event = await self._last_event(topology, number, heads)
        found = await self._ask(topology, row_id=row_id, patience_s=patience_s)
        history = heads.history if heads is not None else ""
        return RowAnswers(topology, number, found, event.rev, event.history, history, event.unread)

    async def _last_event(self, topology: Topology, number: int, heads: HeadsReply | None) -> _Published:
        """The newest event of a partition.

        Each server that has its stream answers, also one that lags behind, and does not say how much. Where an event is
        missing that the config service has a revision for, others may answer meanwhile.
        """
        newest = _NOTHING
        for _ in range(_TRIES):
            async with answered_within(self._servers, self._timeout_s):
                found = await last_event(self._client, topology.store, topology.key, number, timeout_s=self._timeout_s)
            event = _read_event(*found) if found is not None else _NOTHING
            if event != _NOTHING and (event.history != newest.history or (event.rev or 0) >= (newest.rev or 0)):
                newest = event
            if heads is None or _revision(newest, heads) >= heads.heads[number]:
                break
            await asyncio.sleep(_PAUSE_S)
        return newest

    async def _ask(self, topology: Topology, *, row_id: str = "", patience_s: float) -> ReportRound:
        if not 0 < patience_s <= 3_600:
            raise InvalidInputError(f"patience {patience_s:g} is out of range: up to 3600 s", field="patience")
        expected = [member.worker_id for member in topology.members if member.alive]
        return await self._asker.ask(topology.store, topology.key, expected, row_id=row_id, timeout_s=patience_s)

    async def _heads(self, topology: Topology) -> HeadsReply | None:
        """The revisions that there are; ``None`` if no config service says so."""
        subject = names.fetch_subject(topology.store, topology.key, names.FETCH_HEADS)
        try:
            return decode_heads_reply(await fetch(self._client, subject, timeout_s=self._timeout_s))
        except UnavailableError:
            return None
        except UnknownKeyError:
            if not topology.members and topology.settings.mode is Mode.PARTITIONED:
                raise
            return HeadsReply(1, [0] * topology.settings.partition_count)


async def read_lag(
    servers: str | Sequence[str] | None,
    store: str,
    key: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    patience_s: float = DEFAULT_PATIENCE_S,
) -> KeyLag:
    """As :meth:`FleetReader.lag`, over a connection of its own."""
    async with FleetReader.open(servers, timeout_s=timeout_s) as reader:
        return await reader.lag(store, key, patience_s=patience_s)


def _read_event(data: bytes, msg_id: str) -> _Published:
    try:
        event = decode_event(data)
    except ProtocolError as error:
        try:
            return _Published(*names.parse_event_msg_id(msg_id), str(error))
        except ProtocolError:
            return _Published(None, "", str(error))
    return _Published(event.rev, event.history)


def _revision(event: _Published, heads: HeadsReply) -> int:
    """Up to where a partition is published, in the history that the config service has now."""
    return event.rev or 0 if event.history == heads.history else 0


def _lag(topology: Topology, heads: HeadsReply | None, found: ReportRound) -> KeyLag:
    members = {member.worker_id: member for member in topology.members}
    worker_ids = sorted({*members, *found.reports, *found.unreadable})
    workers = tuple(
        _worker(topology, heads, members.get(worker_id), worker_id, found.reports.get(worker_id))
        for worker_id in worker_ids
    )
    owned: set[int] = set()
    for report in found.reports.values():
        if report.kind is not WorkerKind.OBSERVER:
            owned.update(number for number, _ in report.partitions())
    unowned = tuple(number for number in range(topology.settings.partition_count) if number not in owned)
    counted = [worker.behind for worker in workers if worker.answered]
    behind = None if heads is None or None in counted else sum(each or 0 for each in counted)
    good = not any(worker.problem or worker.loading for worker in workers)
    return KeyLag(
        topology.store,
        topology.key,
        topology.settings,
        converged=behind == 0 and not unowned and good and not found.silent and not found.left_out,
        behind=behind,
        unowned=unowned,
        workers=workers,
        silent=found.silent,
        unreadable=found.unreadable,
        left_out=found.left_out,
        took_s=found.took_s,
        history=heads.history if heads is not None else "",
        reports=found.reports,
        loads=topology.exclusive.loads if topology.exclusive is not None else {},
    )


def _worker(
    topology: Topology, heads: HeadsReply | None, member: Member | None, worker_id: str, report: WorkerReport | None
) -> WorkerLag:
    host, pid, phase = (member.host, member.pid, member.phase) if member is not None else (None, None, None)
    if report is None:
        return WorkerLag(worker_id, False, _silence(member), host, pid, phase)
    behind, most_behind = _behind(heads, report)
    return WorkerLag(
        worker_id,
        True,
        _problem(topology, heads, member, report),
        host,
        pid,
        phase,
        kind=report.kind,
        build=report.build,
        partitions=len(report.applied),
        loading=report.loading,
        behind=behind,
        most_behind=most_behind,
        oldest_s=report.oldest_ms / 1000,
        stale_s=report.stale_ms / 1000,
        handler_s=report.handler_ms / 1000,
        blocked=report.blocked,
        dead_lettered=report.dead_lettered,
        dropped=report.dropped,
        unopened=report.unopened,
        last_error=report.last_error,
        last_error_s=report.last_error_ms / 1000,
        history=report.history,
        clock_s=report.clock_ms / 1000,
        labels=tuple(report.labels),
        provisional_release=report.provisional.release if report.provisional is not None else 0,
        provisional_rows=report.provisional.rows if report.provisional is not None else 0,
        rows=report.rows,
        row_bytes=report.row_bytes,
    )


def _silence(member: Member | None) -> str:
    if member is None:
        return "its answer can't be read"
    return "it does not answer" if member.alive else "its lease has ended"


def _problem(topology: Topology, heads: HeadsReply | None, member: Member | None, report: WorkerReport) -> str:
    if report.failing:
        return report.failing
    if report.refused:
        return report.refused
    if heads is not None and heads.history and report.history and heads.history != report.history:
        return "it has another history than the config service"
    if report.kind is WorkerKind.OBSERVER or topology.settings.mode is Mode.FULL:
        return ""
    if member is None:
        return "it answers and is not registered"
    if member.phase is NodePhase.JOINING:
        return ""
    if topology.exclusive is None and report.assignment.startswith("epoch "):
        return ""  # its store migrates, and it goes by the table already
    if report.assignment != assignment_of(topology):
        return "it goes by another assignment"
    return ""


def assignment_of(topology: Topology) -> str:
    """What each worker says that it goes by, once it knows what the buckets of the store have."""
    if topology.exclusive is not None:
        return f"epoch {topology.exclusive.epoch}"
    return assignment_digest(topology.owners) if topology.settings.mode is Mode.PARTITIONED else ""


def _behind(heads: HeadsReply | None, report: WorkerReport) -> tuple[int | None, int | None]:
    """How many revisions a worker lacks, and in which partition most."""
    if heads is None:
        return None, None
    if report.history not in ("", heads.history):
        return None, None  # revisions of two histories can't be compared
    total, most, where = 0, 0, None
    for number, applied in report.partitions():
        lacks = (heads.heads[number] if number < len(heads.heads) else 0) - applied
        if lacks > 0:
            total += lacks
            if lacks > most:
                most, where = lacks, number
    return total, where


__all__ = ["FleetReader", "KeyLag", "RowAnswers", "WorkerLag", "read_lag"]
