"""A process of the simulation of exclusive ownership: the shell around the machines of one worker."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from ringcast._protocol.sticky.fence import CLOCK_SKEW
from ringcast._protocol.sticky.leader import Step, TakeTerm, View, WriteTable
from ringcast._protocol.sticky.ownership import Deed
from ringcast._protocol.sticky.plan import Wishes
from ringcast_wire import names
from ringcast_wire.owner_records import Rule, encode_state, encode_table, encode_term

from tests.simulation import sticky_host
from tests.simulation.sticky_judge import Call, Judge
from tests.simulation.sticky_machines import (
    KEY,
    LEADER_TIMES,
    PARTITIONS,
    TIMES,
    gone_among,
    state_of,
    states_among,
    table_of,
    term_of,
)
from tests.simulation.sticky_store import Lease

TICK_S = 0.2
_TIMEOUT_S = 1.5
_MISSES = 3
"""After so many readings without a table it counts as lost, as in the coordinator."""


class ProcessWorld(sticky_host.HostWorld, Protocol):
    """The world, as far as a process needs it."""

    numbers: itertools.count[int]
    hosts: dict[str, sticky_host.Host]
    judge: Judge
    wishes: Wishes
    names: list[str]
    turns: list[Process]

    def delay(self) -> float:
        """How long a message takes."""

    def is_lost(self, process: Process) -> bool:
        """Whether a message from or to a process is lost."""

    def stop(self, process: Process) -> None:
        """The process is gone."""

    def leaves(self, process: Process) -> None:
        """The process has given up what it had, and ends."""


class Records:
    """What one process knows of the records of the key."""

    def __init__(self, nodes: Mapping[str, tuple[int, bytes]]) -> None:
        self.term_revision, term = nodes.get(names.term_key(KEY), (0, b""))
        self.table_revision, table = nodes.get(names.table_key(KEY), (0, b""))
        self.term = term_of(term) if term else None
        self.table = table_of(table) if table else None
        self.states = states_among(nodes)
        self.states_revision = max((nodes[names.state_key(KEY, name)][0] for name in self.states), default=0)
        self.gone = gone_among(nodes, self.states)


class Process:
    """One worker process: the shell around the machines."""

    def __init__(self, world: ProcessWorld, worker_id: str, incarnation: int) -> None:
        self.world, self.worker_id, self.incarnation = world, worker_id, incarnation
        draw, machines = world.draw, world.machines
        self.rate = 1.0 + draw.uniform(-CLOCK_SKEW, CLOCK_SKEW)
        self.offset = draw.uniform(0.0, 1e6)
        self.true_fence = -math.inf
        self.is_alive, self.paused, self.cut_until, self.is_guarded = True, False, 0.0, True
        self.inbox: list[Callable[[], None]] = []
        self.open_calls: list[Call] = []
        self.ownership = machines.ownership(worker_id, worker_id, PARTITIONS, machines.fence(TIMES))
        self.host = world.hosts[f"h{int(worker_id[1:]) % len(world.hosts)}"]
        self.ownership.agent = self.host.name
        self.succession = machines.succession()
        self.evidence = machines.evidence(TIMES.give_away_s)
        self.leader = machines.leader(worker_id, PARTITIONS, self.evidence, TIMES.give_away_s, LEADER_TIMES)
        self.nodes: dict[str, tuple[int, bytes]] = {}
        self.known: Records | None = None
        """What ``nodes`` say, until they say something else."""
        self.led: Step | None = None
        self.led_by: View | None = None
        """What the leader said last, and what it had seen; ``None``: it has not seen what there is to see now."""
        self.live: frozenset[str] = frozenset()
        self.heard: dict[str, tuple[int, float]] = {}
        self.lease_revision, self.continues = 0, False
        self.refresh_at = self.read_at = self.poll_at = -math.inf
        self.stuck_at = self.stuck_until = 0.0
        self.busy: set[str] = set()
        self.is_read, self.misses = False, 0
        self.peer_tokens: set[int] = set()  # those of the peer rule

    def __repr__(self) -> str:
        return f"{self.worker_id}#{self.incarnation}"

    @property
    def now(self) -> float:
        return self.offset + self.world.now * self.rate

    def ask(self, what: str, request: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """One request at a time of each kind; it, or its answer, may be late or lost."""
        if what in self.busy:
            return
        self.busy.add(what)
        number = next(self.world.numbers)
        pending = {number}

        def gives_up() -> None:
            if number in pending:
                pending.discard(number)
                self.busy.discard(what)

        def arrives(found: Any) -> None:
            if number in pending:
                pending.discard(number)
                self.busy.discard(what)
                answer(found)

        def reaches() -> None:
            found = request()
            if not self.world.is_lost(self):
                self.world.after(self.world.delay(), lambda: self.take(lambda: arrives(found)))

        if not self.world.is_lost(self):
            self.world.after(self.world.delay(), reaches)
        self.world.after(_TIMEOUT_S / self.rate, lambda: self.take(gives_up))

    def take(self, what: Callable[[], None]) -> None:
        """Something happens in this process, once it is not halted any more."""
        if self.is_alive and self.paused:
            self.inbox.append(what)
        elif self.is_alive:
            self.world.turns.append(self)
            what()

    def resume(self) -> None:
        self.paused = False
        self.world.turns.append(self)
        waiting, self.inbox = self.inbox, []
        if self.world.draw.random() < 0.5:
            self.call()  # before it has looked at any clock or message
        for what in waiting:
            self.take(what)

    def tick(self) -> None:
        if not self.is_alive:
            return
        self.world.after(TICK_S, self.tick)
        if self.paused:
            return
        self.world.turns.append(self)
        self.call()
        now = self.now
        if now >= self.refresh_at:
            self.refresh_at = now + 3.0
            self.refresh(now)
        if now >= self.read_at:
            self.read_at = now + 1.0
            self.read_leases()
        if now >= self.poll_at:
            self.poll_at = now + 2.0
            self.read_nodes()
        self.ownership.poll(now)
        self.act()
        self.host.hears(self)

    def refresh(self, asked_at: float) -> None:
        store, last = self.world.store, self.lease_revision

        def put() -> tuple[int, Lease | None]:
            return store.put_lease(self.worker_id, self.incarnation, last, self.world.now)

        def answered(found: tuple[int, Lease | None]) -> None:
            revision, other = found
            if revision:
                self.lease_revision = revision
                fence = asked_at + TIMES.serve_s
                self.true_fence = fence if self.now < fence else self.true_fence
                self.ownership.refreshed(asked_at, revision, self.now, continued=self.continues)
                self.succession.began(self.ownership.sessions[0])
                self.continues = True
                self.evidence.wrote(revision, asked_at)
                self.led_by = None
                self.act()
            elif other is not None and other.incarnation != self.incarnation:
                self.world.stop(self)
            else:
                self.lease_revision = other.revision if other is not None else 0
                self.continues = self.continues and other is not None  # until a refresh is answered
                self.refresh(self.now)

        self.ask("refresh", put, answered)

    def read_leases(self) -> None:
        lag_s = self.world.draw.choice((0.0, 0.0, 0.0, self.world.draw.uniform(0.0, 12.0)))
        if not self.world.faulty:  # else all may be taken for dead, and planned for anew, as late as the last second
            lag_s = 0.0
        table = self.records().table
        named = {session.lease for session in table.sessions()} if table is not None else set()
        asked = {self.worker_id, *self.live, *self.records().states, *self.world.names, *named}

        def answered(found: dict[str, int]) -> None:
            self.evidence.answered(asked, found, found.get(self.worker_id, 0), self.now)
            self.led_by = None
            for name, revision in found.items():
                if revision > self.heard.get(name, (0, 0.0))[0]:
                    self.heard[name] = revision, self.now
            self.live = frozenset(name for name, (_, at) in self.heard.items() if self.now - at < TIMES.serve_s)
            self.act()

        if self.world.now < self.stuck_until:
            lag_s = self.world.now - self.stuck_at  # the replica that answers has stopped
        self.ask("leases", lambda: self.world.store.read_leases(self.world.now, lag_s), answered)

    def read_nodes(self) -> None:
        def answered(found: tuple[int, dict[str, tuple[int, bytes]]]) -> None:
            revision, entries = found
            for name, entry in entries.items():
                self.see(name, entry)
            for name in [name for name, (seen, _) in self.nodes.items() if name not in entries and seen <= revision]:
                del self.nodes[name]
                self.known = None
            self.misses = 0 if names.table_key(KEY) in self.nodes else self.misses + 1
            if self.misses >= _MISSES:
                self.ownership.obey(None, self.now)
            self.is_read = True
            self.act()

        self.ask("nodes", lambda: (self.world.store.revision, dict(self.world.store.nodes)), answered)

    def see(self, name: str, entry: tuple[int, bytes]) -> None:
        if entry[0] > self.nodes.get(name, (0, b""))[0]:
            self.nodes[name] = entry
            self.known = None
            if name == names.table_key(KEY):
                self.ownership.obey(table_of(entry[1]), self.now)

    def hear(self, name: str, entry: tuple[int, bytes]) -> None:
        self.see(name, entry)
        self.act()

    def records(self) -> Records:
        if self.known is None:
            self.known = Records(self.nodes)
        return self.known

    def view(self) -> View:
        known = self.records()
        return View(
            term=known.term,
            term_revision=known.term_revision,
            table=known.table,
            table_revision=known.table_revision,
            states=known.states,
            states_revision=known.states_revision,
            live=self.live,
            gone=known.gone,
            wishes=self.world.wishes,
        )

    def act(self) -> None:
        """Does what the machines want."""
        if not self.is_read:
            return
        name = names.state_key(KEY, self.worker_id)
        revision, value = self.nodes.get(name, (0, b""))
        if value and self.succession.is_over(state_of(value)):
            self.world.stop(self)
            return
        for action in self.ownership.take_actions():
            if action.deed is Deed.PREPARE:
                took_s = self.world.draw.uniform(0.01, 1.5)
                done = partial(self.prepared, action.partition, action.token)
                self.world.after(took_s, partial(self.take, done))
            elif action.deed is Deed.STOP:
                self.last_call_soon(action.partition)
            elif action.deed is Deed.ACTIVATE and self.ownership.rule is Rule.PEERS:
                self.peer_tokens.add(action.token)
        if value:
            self.ownership.replaces(state_of(value), self.now)
        record = self.ownership.record
        if not value or state_of(value) != record:
            self.write("state", name, encode_state(record), revision)
        elif self.ownership.has_left and self.ownership.session is not None:
            self.ownership.close()
        elif self.ownership.has_left and not record.session:
            self.world.leaves(self)
        match self.lead().write:
            case TakeTerm(term, last):
                self.write("lead", names.term_key(KEY), encode_term(term), last)
            case WriteTable(table, last, founds):
                among = names.lead_keys(KEY) if founds else ""
                self.write("lead", names.table_key(KEY), encode_table(table), last, among)

    def lead(self) -> Step:
        """What the leader says, asked as the coordinator asks it: of what is new, when it wants to be, to try again."""
        view = self.view()
        is_idle = self.led is not None and self.led.write is None and view == self.led_by
        if self.led is None or not is_idle or (self.led.wake_at is not None and self.led.wake_at <= self.now):
            self.led, self.led_by = self.leader.step(view, self.now), view
        return self.led

    def prepared(self, partition: int, token: int) -> None:
        self.ownership.ready(partition, token, self.now)
        self.act()

    def write(self, what: str, name: str, value: bytes, last: int, among: str = "") -> None:
        def put() -> int:
            revision = self.world.store.put(name, value, last, among)
            if revision:
                self.world.changed(name, (revision, value))
            return revision

        def answered(revision: int) -> None:
            if revision:
                self.see(name, (revision, value))
            else:
                self.read_nodes()

        self.ask(what, put, answered)

    def call(self) -> None:
        """Starts a call, if it may."""
        partition = self.world.draw.randrange(PARTITIONS)
        if (token := self.ownership.begin_call(partition, self.now)) is None:
            return
        self.run(Call(self, partition, token, is_peers=self.ownership.rule is Rule.PEERS))

    def run(self, call: Call) -> None:
        self.world.judge.begins(call)
        self.open_calls.append(call)
        self.world.after(self.world.draw.uniform(0.0, TIMES.call_s) / self.rate, lambda: self.end(call))

    def last_call_soon(self, partition: int) -> None:
        self.world.after(self.world.draw.uniform(0.0, 0.3), lambda: self.take(lambda: self.last_call(partition)))

    def last_call(self, partition: int) -> None:
        """Tells the application that it has lost a partition, once its other calls have ended."""
        if any(call.partition == partition for call in self.open_calls):
            self.last_call_soon(partition)
            return
        token = self.ownership.begin_last_call(partition, self.now)
        if token is None:
            self.ownership.end_last_call(partition, self.now)
            self.act()
            return
        self.run(Call(self, partition, token, is_last=True, is_peers=token in self.peer_tokens))

    def end(self, call: Call) -> None:
        if call in self.open_calls:
            self.world.turns.append(self)
            self.open_calls.remove(call)
            self.world.judge.ends(call)
            self.ownership.end_call(call.partition, self.now)
            if call.is_last:
                self.ownership.end_last_call(call.partition, self.now)
            self.act()
