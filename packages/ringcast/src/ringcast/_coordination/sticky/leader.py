"""One worker that leads a key of exclusive ownership, or stands by to lead it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping

from ringcast_wire import Backoff, EventLog, LimitExceededError, event_before, names
from ringcast_wire.migrating import Step
from ringcast_wire.owner_records import Rule, Table, encode_table, encode_term

from ringcast._bus.bus import TRANSIENT
from ringcast._coordination.sticky.measures import KeyReport, LeaderMeasures, by_phase, moves_of
from ringcast._coordination.sticky.records import OwnerRecords
from ringcast._coordination.sticky.session import Refresh, SessionAnswer
from ringcast._coordination.sticky.times import Clock, StickyTimes, loop_time
from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.leader import Leader, TakeTerm, View, WriteTable
from ringcast._protocol.sticky.leader import Step as LeaderStep
from ringcast._protocol.sticky.loads import KeyLoad


class KeyLeader:
    """One key. ``read_now`` is called when the sessions are to be read sooner than they would be, and ``read_at_once``
    when they are, whenever they were read last."""

    def __init__(
        self,
        key: str,
        worker_id: str,
        partitions: int,
        records: OwnerRecords,
        times: StickyTimes,
        clock: Clock,
        log: EventLog,
        *,
        read_now: Callable[[], None],
        read_at_once: Callable[[], None],
    ) -> None:
        self._key = key
        self._worker_id = worker_id
        self._records = records
        self._times = times
        self._clock = clock
        self._log = log.bind(key=key)
        self._read_now = read_now
        self._read_at_once = read_at_once
        self._mourned = 0
        """The session of the last leader whose process has ended."""
        give_away_s = times.fence.give_away_s
        self._evidence = LeaseEvidence(give_away_s)
        self._leader = Leader(worker_id, partitions, self._evidence, give_away_s, times.leader)
        self._measures = LeaderMeasures()
        self._wake = asyncio.Event()
        self._step: Step | None = None
        self._shares: tuple[str | None, ...] = ()
        self._loads: Mapping[str, KeyLoad] | None = None
        self._hot: frozenset[int] = frozenset()
        """The partitions that were logged as hot."""
        self._heard: dict[str, tuple[int, float]] = {}
        """The refresh of each lease that was heard of last, and when it was new."""
        self._table: Table | None = None
        """The table seen last, and the leases that it names."""
        self._table_leases: frozenset[str] = frozenset()
        self._wanted: frozenset[str] = frozenset()
        """The leases that the last answers were about."""
        self.live: frozenset[str] = frozenset()
        """Leases that are believed to live."""
        self.wake_at: float | None = None
        """When the leader wants to know more, if nothing changes before."""

    @property
    def leads(self) -> bool:
        """Whether this worker has the term."""
        term = self._records.term(self._key)
        return term is not None and term.leader == self._worker_id

    @property
    def follows(self) -> str | None:
        """The other worker that leads and is believed to live."""
        term = self._records.term(self._key)
        is_other = term is not None and term.leader != self._worker_id and term.leader in self.live - self._gone()
        return term.leader if term is not None and is_other else None

    def report(self) -> KeyReport:
        """What there is to measure. From any thread."""
        measures, leads, table = self._measures, self.leads, self._records.table(self._key)
        is_plan = table is not None and table.rule is not Rule.OWNERS  # of what nobody owns yet
        partitions = by_phase(table) if leads and not is_plan else {}
        moves = moves_of(table, self._shares) if leads and is_plan else 0
        leader = self._leader
        hot, skew, passed_over = (len(leader.hot), leader.skew, leader.passed_over) if leads else (0, 0.0, 0)
        unreadable = self._records.unreadable
        return KeyReport(
            leads,
            partitions,
            measures.handoff,
            measures.terms,
            unreadable,
            moves,
            hot=hot,
            passed_over=passed_over,
            skew=skew,
        )

    def reporting(self) -> frozenset[str]:
        """The workers whose loads are to be read: none unless this worker leads."""
        return self._known() if self.leads else frozenset()

    def leases(self) -> frozenset[str]:
        """What is to be read: all leases of the key, or that of its leader while another leads and lives."""
        leader = self.follows
        return self._known() if leader is None else frozenset((leader,))

    def serving(self) -> frozenset[str]:
        """The other workers that may get partitions, as far as is known: the leader knows best which of them live."""
        drained = self._records.wishes(self._key).drains
        others = {
            worker_id
            for worker_id, state in self._records.states(self._key).items()
            if state.session and not state.leaving and worker_id not in {self._worker_id, *drained}
        }
        return frozenset(others if self.follows is not None else others & self.live)

    def _gone(self) -> frozenset[str]:
        """Workers whose process has ended, though their leases live on for a while."""
        gone, states = self._records.gone(self._key), self._records.states(self._key)
        return frozenset(worker_id for worker_id, span in gone.items() if span.has(states[worker_id].session))

    def _known(self) -> frozenset[str]:
        """The leases that records of the key name. Without a table those of all that have acted by one count."""
        term, table = self._records.term(self._key), self._records.table(self._key)
        states = self._records.states(self._key).items()
        named = {worker_id for worker_id, state in states if state.session or (table is None and state.seen)}
        if term is not None:
            named.add(term.leader)
        if table is not self._table:
            self._table = table
            self._table_leases = (
                frozenset(session.lease for session in table.sessions()) if table is not None else frozenset()
            )
        return self._table_leases.union(named)

    def refreshed(self, refresh: Refresh) -> None:
        """This worker's own entry was refreshed."""
        self._evidence.wrote(refresh.revision, refresh.asked_at)

    def answered(self, wanted: frozenset[str], answers: list[SessionAnswer]) -> None:
        """The answers to a reading of at least the leases ``wanted``."""
        now = self._clock()
        for answer in answers:
            own = answer.own.sequence if answer.own is not None else 0
            found = {lease: entry.sequence for lease, entry in answer.found.items()}
            self._evidence.answered(answer.asked, found, own, now)
            newest_s = max((entry.stored_s for entry in answer.found.values()), default=0.0)
            for lease in answer.asked:
                entry = answer.found.get(lease)
                if entry is None:
                    self._heard.pop(lease, None)
                elif entry.sequence > self._heard.get(lease, (0, 0.0))[0]:
                    is_fresh = newest_s - entry.stored_s < self._times.fence.ttl_s  # by the server's clock, for a hint
                    self._heard[lease] = entry.sequence, now if is_fresh else -math.inf
        self._wanted, known = wanted, self._known()
        if wanted >= known:
            self._heard = {lease: heard for lease, heard in self._heard.items() if lease in known | {self._worker_id}}
        serve_s = self._times.fence.serve_s
        self.live = frozenset(lease for lease, (_, at) in self._heard.items() if now - at < serve_s)
        self.changed()

    def changed(self) -> None:
        """Records are others."""
        self._wake.set()

    def loads_are(self, loads: Mapping[str, KeyLoad]) -> None:
        """The workers report these loads."""
        self._loads = loads
        self._wake.set()

    def heard(self, step: Step) -> None:
        """In a store that migrates: the operator's step is this."""
        self._step = step
        self._wake.set()

    def shares_are(self, shares: tuple[str | None, ...]) -> None:
        """In a store that migrates: the worker of each partition by the peer rule."""
        self._shares = shares
        self._wake.set()

    async def run(self) -> None:
        """Leads, or stands by, until cancelled."""
        backoff = Backoff(random.random, first_s=0.05, most_s=2.0)
        while True:
            # What was to be looked at by now takes new evidence, which wakes this.
            due = self.wake_at if self.wake_at is not None and self.wake_at > self._clock() else None
            await event_before(self._wake, loop_time(due, self._clock))
            self._wake.clear()
            if not (self._records.complete and self._heard):
                continue
            if not self._wanted >= self.leases():
                self._ask_for_more()  # the leader is gone, or is this worker: of the others not enough is known
                continue
            step = self._leader.step(self._view(), self._clock())
            self.wake_at = step.wake_at
            self._tell_hot()
            for partition, worker_id in step.passed_over:
                self._log.warning("owners.passed_over", partition=partition, worker=worker_id)
            try:
                if await self._write(step):
                    backoff.reset()
                    continue
            except LimitExceededError as error:
                self._log.error("owners.table_too_large", error=error)
            except TRANSIENT as error:
                self._log.debug("owners.write_failed", error=error)
            await asyncio.sleep(backoff.next_s())
            self._wake.set()

    def _ask_for_more(self) -> None:
        """At once where the leader's process has ended, as its agent says; but once for each of its sessions, so that
        no agent has them read all the time."""
        term, states = self._records.term(self._key), self._records.states(self._key)
        if term is not None and term.leader in self._gone() and states[term.leader].session != self._mourned:
            self._mourned = states[term.leader].session
            self._read_at_once()
        else:
            self._read_now()

    async def _write(self, step: LeaderStep) -> bool:
        """Writes what a step wants; returns whether nothing stood in its way."""
        match step.write:
            case TakeTerm(term, last):
                is_new = not self.leads
                done = await self._records.write(names.term_key(self._key), encode_term(term), last=last)
                if done and is_new:
                    self._measures.began()
                    self._log.info("owners.led")
                return done
            case WriteTable(table, last, founds):
                before, value = self._records.table(self._key), encode_table(table)
                if founds:
                    done = await self._records.found_table(self._key, value, last=last)
                else:
                    done = await self._records.write(names.table_key(self._key), value, last=last)
                if done:
                    self._measures.wrote(before, table, self._clock())
                return done
            case None:
                return True

    def _tell_hot(self) -> None:
        hot = {one.partition: one.rate for one in self._leader.hot} if self.leads else {}
        table = self._records.table(self._key)
        for partition in sorted(hot.keys() - self._hot):
            owner = table.entries[partition].owner if table is not None else None
            worker_id = owner.worker_id if owner is not None else ""
            self._log.warning("partition.hot", partition=partition, worker=worker_id, rate=round(hot[partition], 1))
        for partition in sorted(self._hot - hot.keys()):
            self._log.info("partition.cooled", partition=partition)
        self._hot = frozenset(hot)

    def _view(self) -> View:
        term, table = names.term_key(self._key), names.table_key(self._key)
        states = self._records.states(self._key)
        owners = self._records.table(self._key)
        written = (self._records.revision(names.state_key(self._key, worker_id)) for worker_id in states)
        return View(
            term=self._records.term(self._key),
            term_revision=self._records.revision(term),
            table=owners,
            table_revision=self._records.revision(table),
            states=states,
            states_revision=max(written, default=0) if owners is None else 0,
            live=self.live,
            gone=self._records.gone(self._key),
            wishes=self._records.wishes(self._key),
            rule=self._step.rule if self._step is not None else Rule.OWNERS,
            step=self._step.number if self._step is not None else 0,
            shares=self._shares,
            loads=self._loads,
        )
