"""A run: the system under load, a seeded schedule of faults, and the judgement at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ringcast_client import ConfigServiceClient
from ringcast_testkit import Report

from tests.integration.faults import policies
from tests.integration.faults.arena import STORE, WITNESSES, Arena, Shape, off
from tests.integration.faults.exclusive import Exclusive, Times, judge_exclusive
from tests.integration.faults.histories import (
    Findings,
    covered,
    double_ownership,
    judge_order,
    judge_reports,
    judge_revisions,
    judge_state,
    judge_writes,
)
from tests.integration.faults.kinds import KINDS, Kind
from tests.integration.faults.load import Ledger, Load, Write
from tests.integration.faults.record import Revision, opened
from tests.integration.faults.release_judge import FINDINGS, judge_asked, judge_held, judge_releases
from tests.integration.faults.release_load import OVER_S
from tests.integration.faults.release_record import FoundRelease, releases_of
from tests.integration.faults.witness import read_witnesses

DISPATCH_KINDS = frozenset(
    {
        *("agent_killed", "agent_replaced", "consumer_killed", "nats_killed", "service_killed"),
        *("worker_killed", "worker_killed_and_restarted", "worker_replaced"),
        *("agent_killed_thrice", "agent_copied", "seals_put_back", "seals_removed", "disk_full"),
    }
)
"""What can be done where the partitions of the agent have an owner that reports nothing."""
DUMP_TRIES = 5
RECOVERY_S = 90.0
"""How long a system may take until all of it is served again after a fault."""
LIMITED_S = 240.0
"""How long the load of a system with policies may take to fill the store."""
Say = Callable[[str], None]
Dumps: TypeAlias = dict[str, Mapping[str, Mapping[str, tuple[str, int, int]]]]
"""What each worker holds, by config key and row id."""


@dataclass
class Outcome:
    """What a run, or several together, came to."""

    faults: Counter[str] = field(default_factory=Counter)
    recovery_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    findings: Findings = field(default_factory=Findings)
    acknowledged: int = 0
    uncertain: int = 0
    unanswered: Counter[str] = field(default_factory=Counter)
    """The attempts without an answer by the code of the error."""
    taken_back: int = 0
    """Acknowledged writes that the database itself has lost, by a failover or from a backup."""
    rows: int = 0
    releases: Counter[str] = field(default_factory=Counter)
    """How many are in each state in the end; rows that releases have written, and conflicts that they have reported."""
    ended_by_itself: list[str] = field(default_factory=list)
    seconds: float = 0.0
    double_owned_ms: float = 0.0
    """Time in which at least one partition had two owners that were running; with the strategy sticky, in which calls
    of two of them ran, but for calls that are excepted."""
    exclusive: Exclusive = field(default_factory=Exclusive)
    met: Counter[str] = field(default_factory=Counter)
    """What faults have seen of what they are made for."""
    double_owned_by: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The most of it during one fault of each kind, in ms."""

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        return not self.findings.counts and not self.ended_by_itself

    def count(self, ledger: Ledger) -> None:
        """Adds what the writers of a run were told."""
        self.acknowledged += ledger.acknowledged
        self.uncertain += ledger.uncertain
        self.unanswered += ledger.unanswered
        self.taken_back += ledger.taken_back

    def count_releases(self, releases: Sequence[FoundRelease]) -> None:
        """Adds what the record has of releases."""
        for release in releases:
            self.releases[release.state] += 1
            self.releases["gates_failed"] += bool(release.failure)
            self.releases["rows_published"] += release.published
            self.releases["rows_undone"] += release.undone
            self.releases["conflicts"] += release.skipped

    def figures(self) -> dict[str, Any]:
        """For a file; times in the unit of their names."""
        counts = self.findings.counts
        return {
            "faults": self.faults.total(),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "writes_acknowledged": self.acknowledged,
            "writes_the_database_took_back": self.taken_back,
            "attempts_without_answer": self.uncertain,
            "attempts_without_answer_by_code": dict(self.unanswered),
            "live_rows": self.rows,
            "releases": dict(self.releases),
            "lost": counts["lost"] + counts["lost_write"],
            "stale": counts["stale"] + counts["fallen_version"],
            "misplaced": counts["misplaced"] + counts["foreign_row"],
            "other_findings": {kind: count for kind, count in counts.items() if kind in _OTHERS},
            "ended_by_itself": len(self.ended_by_itself),
            "double_owned_ms": round(self.double_owned_ms, 1),
            "double_owned_most_ms_by_fault": {
                kind: round(ms, 1) for kind, ms in sorted(self.double_owned_by.items()) if ms
            },
            "exclusive": {**vars(self.exclusive), **{kind: counts[kind] for kind in _EXCLUSIVE}},
            "met": dict(self.met),
            "recovery_s": {
                kind: {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}
                for kind, times in sorted(self.recovery_s.items())
            },
            "seconds": round(self.seconds, 1),
            "sentences": self.findings.sentences + self.ended_by_itself,
        }


_EXCLUSIVE = ("double_owned", "after_fence", "resumed_token", "fallen_token", "shared_token", "not_admitted")
_OTHERS = frozenset(
    {
        *("invented_write", "invented_row", "misordered_write", "revision_gap", "refused", "let_in", "policy"),
        *FINDINGS,
    }
)


class Run:
    """Faults on one system. Use within its arena and load."""

    def __init__(self, arena: Arena, load: Load, outcome: Outcome, *, seed: int, say: Say = lambda text: None) -> None:
        self.arena = arena
        self.load = load
        self.outcome = outcome
        self._seed = seed
        self._say = say
        self._done = 0
        self.spans: list[tuple[str, int, int]] = []
        """What was done from when to when (monotonic, ns)."""

    async def before_fault(self) -> None:
        """What a schedule waits for before each fault."""

    async def fault(self, *kinds: Kind) -> float:
        """Does faults, several at once; returns how many seconds after their end everything was served again."""
        self._done += 1
        chance = random.Random(f"{self._seed} fault {self._done}")
        began_ns = time.monotonic_ns()
        self.outcome.faults.update(kind.name for kind in kinds)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(kind.action(self.arena, random.Random(chance.random()))) for kind in kinds]
        ended = time.monotonic()
        self.outcome.ended_by_itself += await self.arena.revive()
        await self.recovered()
        recovery_s = time.monotonic() - ended
        if len(kinds) == 1:
            self.outcome.recovery_s[kinds[0].name].append(recovery_s)
        for task in tasks:
            if (after := task.result()) is not None:
                await after
        name = "+".join(kind.name for kind in kinds)
        self.spans.append((name, began_ns, time.monotonic_ns()))
        self._say(f"{name}: {ended - began_ns / 1e9:.1f} s, served again {recovery_s:.1f} s later")
        return recovery_s

    async def recovered(self) -> None:
        """Waits until each partition has exactly one owner, and a change to each has reached the owner's handler."""
        chance = random.Random(f"{self._seed} probes {self._done}")
        async with asyncio.TaskGroup() as tasks:
            probes = [
                tasks.create_task(self.load.put(key, row_id, chance)) for key, _, row_id in self.arena.probe_rows()
            ]
        written = [probe.result() for probe in probes]

        def served() -> bool:
            return self.owned() and not deaf()

        def deaf() -> list[Write]:
            return [write for write in written if not self.heard(write)]

        try:
            await self.arena.mirror.wait(served, RECOVERY_S, "not everything was served again")
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(deaf())} of {len(written)} probes unheard: {deaf()[:3]}") from None

    async def rest(self) -> None:
        """Waits until no handler has anything to do: one that fails is tried again later, while other rows go on."""
        mirror = self.arena.mirror
        await mirror.wait(mirror.at_rest, RECOVERY_S, "a handler has not done what it was given")

    def owned(self) -> bool:
        """Whether each partition is owned as it should be."""
        return self.arena.mirror.owned_once()

    def heard(self, write: Write) -> bool:
        """Whether the owner of a row has been given a write, or a later one."""
        mirror = self.arena.mirror
        if self.arena.former:  # versions of different records can't be compared
            return mirror.given(write.key, write.partition, write.row_id, write.value)
        return mirror.heard(write.key, write.partition, write.row_id) >= write.version

    async def dumps(self) -> Dumps:
        """What each worker holds, by key and row id; no partition moved from the first answer to the last.

        On a busy machine partitions may move late, as when a lease was refreshed too late: of one that went to a worker
        that had already answered nobody would tell.
        """
        for _ in range(DUMP_TRIES):
            await self.recovered()
            await self.rest()
            moves = self.arena.mirror.moves
            dumps = {name: await off(worker.dump) for name, worker in self.arena.workers.items()}
            if self.arena.mirror.moves == moves:
                return dumps
        raise AssertionError(f"partitions moved during each of {DUMP_TRIES} looks, with no fault and no load")

    async def judge(self) -> None:
        """Ends the load, waits for rest, and adds what is found to the outcome."""
        if self.arena.shape.policies:
            await self._limits_met()
        await self.load.stop()
        arena, outcome, findings = self.arena, self.outcome, self.outcome.findings
        releases = await self.releases_at_rest()
        dumps = await self.dumps()
        owned = {key: {name: arena.mirror.owned(name, key) for name in dumps} for key in arena.shape.keys}
        client = await arena.client_to_judge()
        rows_before = outcome.rows
        ledger = self.load.ledger
        if arena.roles is not None:
            for service in arena.services.values():
                for sentence in await arena.roles.let_in(service.address, arena.shape.keys[0]):
                    findings.add("let_in", sentence)
        for refusal in ledger.refused:
            findings.add("refused", refusal)
        end_ns = time.monotonic_ns()
        reports = arena.history.reports()
        revisions = [revision for key in arena.shape.keys for revision in await revisions_of(client, key)]
        for key in arena.shape.keys:
            truth = {row.row_id: (row.value, row.version, row.partition) async for row in client.list(STORE, key)}
            held = {name: dump.get(key, {}) for name, dump in dumps.items()}
            for group in [[name] for name in held] if arena.shape.full else [list(held)]:
                judge_state(truth, {name: held[name] for name in group}, owned[key], findings)
            for row_id in [r for rows in held.values() for r in rows if truth.get(r, ("", 0))[:2] != rows[r][:2]][:3]:
                findings.sentences.append(f"what was reported of {key}/{row_id} last: {story(reports, key, row_id)}")
            outcome.rows += len(truth)
        judge_writes(ledger.writes, revisions, findings, ledger.releases)
        judge_asked(ledger.releases, releases, revisions, findings)
        judge_releases(releases, revisions, findings)
        judge_held(releases, revisions, dumps, findings)
        outcome.count_releases(releases)
        judge_order(ledger.writes, revisions, findings)
        for record in (*arena.former, revisions):
            judge_revisions(record, findings)
        judge_reports(reports, revisions, findings, arena.former)
        if arena.shape.policies:
            await self._judge_policies(client, outcome.rows - rows_before)
        overlaps = self._judge_owners(reports, end_ns)
        outcome.double_owned_ms += covered(overlaps) / 1e6
        outcome.met += arena.met
        for name, began, ended in self.spans:
            inside = [(max(a, began), min(b, ended)) for a, b in overlaps if a < ended and b > began]
            outcome.double_owned_by[name] = max(outcome.double_owned_by[name], covered(inside) / 1e6)
        outcome.count(ledger)

    async def releases_at_rest(self) -> list[FoundRelease]:
        """The releases of the record, once the services have nothing to do with any, or for too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OVER_S), opened(self.arena.database) as fetch:
                while True:
                    if not any(release.work for release in await releases_of(fetch)):
                        break
                    await asyncio.sleep(0.2)
        async with opened(self.arena.database) as fetch:
            return await releases_of(fetch, with_rows=True)

    async def _limits_met(self) -> None:
        """Lets the load go on until the store is full: a short run may be over before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMITED_S):
                while not self.load.ledger.limited:  # noqa: ASYNC110  # the load has no event for it
                    await asyncio.sleep(0.2)

    async def _judge_policies(self, client: ConfigServiceClient, live: int) -> None:
        """Last of all: it fills the store up."""
        keys = self.arena.shape.keys
        most = policies.most_rows(len(keys))
        assert self.load.ledger.limited, "the load has not met the limits"
        for sentence in await policies.not_exact(client, STORE, keys[0], most, live):
            self.outcome.findings.add("policy", sentence)

    def _judge_owners(self, reports: Sequence[Report], end_ns: int) -> list[tuple[int, int]]:
        """When a partition had two owners. Of exclusive ownership the calls decide, not when workers were told."""
        arena, outcome = self.arena, self.outcome
        if arena.shape.full:
            return []
        if not arena.shape.exclusive:
            return double_ownership(reports, end_ns)
        witnesses = read_witnesses(arena.directory / WITNESSES)
        times = Times.of(arena.shape.lease_ttl_ms, arena.shape.call_bound_ms)
        found, overlaps = judge_exclusive(witnesses, reports, times, end_ns, outcome.findings)
        outcome.exclusive.add(found)
        return overlaps


def story(reports: Sequence[Report], key: str, row_id: str) -> list[tuple[str, int, str, int | None, int]]:
    """The last that was reported of a row: by which life of which worker, what, which version, and when in ms."""
    about = [r for r in reports if r.fields.get("row_id") == row_id and r.fields["key"] == key][-8:]
    return [(r.worker_id, r.life, r.event, r.fields.get("version"), r.at_ns // 1_000_000) for r in about]


async def revisions_of(client: ConfigServiceClient, key: str) -> list[Revision]:
    """Every write to a key, as the system of record keeps it."""
    return [
        Revision(key, row.partition, row.version, row.row_id, None if row.deleted else row.value)
        async for row in (record.row async for record in client.history(STORE, key))
    ]


def schedule(
    seed: int, count: int, kinds: Sequence[Kind], *, overlap: float, done: Mapping[str, int] | None = None
) -> list[tuple[Kind, ...]]:
    """Which faults to do, some of them several at once: those first that were ``done`` least, on other systems too."""
    chance = random.Random(f"{seed} schedule")
    times = Counter(done or {})
    pool: list[Kind] = []
    while len(pool) < count:
        least = min(times[kind.name] for kind in kinds)
        next_ones = [kind for kind in kinds if times[kind.name] == least]
        pool += chance.sample(next_ones, min(len(next_ones), count - len(pool)))
        times.update(kind.name for kind in next_ones)
    chance.shuffle(pool)
    turns: list[tuple[Kind, ...]] = []
    while pool:
        turn = [pool.pop()]
        while not turn[0].alone and chance.random() < overlap:
            groups = {kind.group for kind in turn}
            other = next((kind for kind in pool if not kind.alone and kind.group not in groups), None)
            if other is None:
                break
            pool.remove(other)
            turn.append(other)
        turns.append(tuple(turn))
    return turns


async def chaos(
    directory: Path,
    shape: Shape,
    outcome: Outcome,
    *,
    seed: int,
    turns: Sequence[tuple[Kind, ...]],
    say: Say,
    arena_of: type[Arena] = Arena,
    run_of: type[Run] = Run,
) -> None:
    """One system through a schedule of faults, judged at the end whatever happened before."""
    began = time.monotonic()
    async with arena_of(directory, shape) as arena, Load(arena, seed=seed) as load:
        run = run_of(arena, load, outcome, seed=seed, say=say)
        for number, kinds in enumerate(turns, 1):
            say(f"{number}/{len(turns)} {' and '.join(kind.name for kind in kinds)} …")
            await run.before_fault()
            await run.fault(*kinds)
        await run.judge()
    outcome.seconds += time.monotonic() - began


def possible(names: Sequence[str], shape: Shape) -> list[Kind]:
    """The kinds among those named that can be done to a system of that shape."""
    system = "dispatch" if shape.dispatch else "cluster" if shape.cluster else "server"
    database = "sqlite" if shape.sqlite else "postgres"
    # The servers of dispatch are as those of a system with one.
    systems = ("", system, *(("server",) if shape.dispatch else ()))
    found = [KINDS[name] for name in names if KINDS[name].only in systems]
    found = [kind for kind in found if kind.database in ("", database)]
    logins = [""] if shape.callout else ["", "token" if shape.token else "password"]
    found = [kind for kind in found if kind.login in logins]
    if shape.dispatch:
        found = [kind for kind in found if kind.name in DISPATCH_KINDS]
    found = [kind for kind in found if kind.strategy in ("", "sticky" if shape.exclusive else "peer")]
    found = [kind for kind in found if shape.releases or not kind.releases]
    return [kind for kind in found if kind.name != "disk_full" or shape.small_disk]
