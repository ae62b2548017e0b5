"""The shell of one config key: the real machine, with its fetches, timer and acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcast._protocol.actions import (
    Ack,
    Action,
    Announce,
    Apply,
    CompareHeads,
    FetchBatch,
    FetchFull,
    FetchPartition,
    GiveUpFetch,
    HistoryChanged,
    HistoryRefused,
    Restored,
    Unheard,
)
from ringcast._protocol.anti_entropy import HeadsTimer
from ringcast._protocol.key import KeyMachine
from ringcast_wire import WIRE_VERSION, ErrorCode, Event, FetchReply, HeadsReply, names

from tests.simulation.application import Application
from tests.simulation.engine import Future, Signal, Steps
from tests.simulation.network import FETCH_TIMEOUT_S

if TYPE_CHECKING:
    from tests.simulation.worker import Worker


class Session:
    """Mirrors ``KeySession``, method by method."""

    def __init__(self, worker: Worker, key: str, machine: KeyMachine) -> None:
        self.key = key
        self.machine = machine
        self.assigned = False
        self.hungry = False
        self.idle = Signal()
        self.application = Application(worker, key, self._job_done)
        self._worker = worker
        self._wide = self._compared_wide = False
        self._head = names.notify_subject(worker.settings.store, key, 0)[:-1]
        self._wildcard = names.notify_key_subjects(worker.settings.store, key)
        self._check_heads = Signal()
        self._timer: float | None = None
        self._fetches: dict[int, int] = {}
        worker.link.on_back.append(self._reconnected)

    # ---- inputs

    def assign(self, partitions: frozenset[int]) -> None:
        """Mirrors ``KeySession.assign``."""
        before = frozenset(self.machine.partitions)
        self.application.lose(before - partitions)
        self.machine.assign(partitions)
        for number in sorted(before - partitions):
            self._worker.note("disown", self.key, number)
        for number in sorted(partitions - before):
            self._worker.note("own", self.key, number)
        self.assigned = True
        self._wide = len(partitions) == self.machine.partition_count
        self._compared_wide = self._compared_wide and self._wide
        self._worker.consumers.want(self.key, frozenset({self._subject(number) for number in partitions}))
        self.pump()

    def filters_confirmed(self, subjects: frozenset[str]) -> None:
        """Mirrors ``KeySession.filters_confirmed``."""
        waiting = [number for number, partition in self.machine.partitions.items() if not partition.filtered]
        ready = [number for number in waiting if self._subject(number) in subjects]
        if self._wide and not self._compared_wide and self._wildcard in subjects:
            self._compared_wide = True
            self._check_heads.set()
        self.machine.filters_ready(ready, self._worker.clock())
        self.pump()

    def _subject(self, partition: int) -> str:
        """Mirrors ``KeySession._subject``."""
        return self._wildcard if self._wide else f"{self._head}{partition}"

    def event(self, partition: int, event: Event, token: str) -> None:
        """Mirrors ``KeySession.event``."""
        self.machine.event(partition, event, token, self._worker.clock())
        self.pump()

    def verify(self) -> None:
        """Mirrors ``KeySession.verify``."""
        self._check_heads.set()

    def _reconnected(self) -> None:
        self.machine.reconnected(self._worker.clock())
        self._check_heads.set()
        self.pump()

    # ---- what the machine wants done

    def pump(self) -> None:
        """Mirrors ``KeySession.pump``."""
        for action in self.machine.poll(self._worker.clock()):
            self._do(action)
        self._set_timer()
        if self.hungry is not (bool(self.machine.partitions) and not self.machine.paused):
            self.hungry = not self.hungry
            self._worker.pressure()

    def _do(self, action: Action) -> None:
        match action:
            case Ack():
                self._worker.ack(action.tokens, put_off=action.put_off)
            case Apply() | Announce():
                self.idle.clear()
                self.application.start(action)
            case FetchPartition():
                words = (action.partition, action.since, action.history)
                self._fetch(action.request, "partition", words, self._partition_reply)
            case FetchBatch():
                self._fetch(action.request, "batch", action.row_ids, self._batch_reply)
            case FetchFull():
                self._fetch(action.request, "full", None, self._full_reply)
            case GiveUpFetch():
                if (number := self._fetches.pop(action.request, None)) is not None:
                    self._worker.give_up(number)
            case Unheard():
                self._worker.consumers.doubt(self._subject(action.partition))
            case CompareHeads():
                self._check_heads.set()
            case HistoryChanged():
                self._worker.note("history", self.key, action.before, action.after)
            case HistoryRefused():
                self._worker.note("refused", self.key, str(action.refusal))
            case Restored():
                self._worker.note("put_back", self.key, action.partition, action.applied, action.head)

    def _job_done(self, job: int) -> None:
        """Mirrors ``KeySession._job_done``."""
        if not self.application.busy:
            self.idle.set()
        self.machine.job_done(job, self._worker.clock())
        self.pump()

    def _set_timer(self) -> None:
        wake_at = self.machine.wake_at
        if wake_at != self._timer:
            self._timer = wake_at
            if wake_at is not None:
                self._worker.at(wake_at, self._on_timer, wake_at)

    def _on_timer(self, due: float) -> None:
        if due == self._timer:
            self._timer = None
            self.pump()

    # ---- fetches (KeyFetches, HeadsCheck)

    def _fetch(self, request: int, what: str, words: Any, reply: Callable[[int, Any], None]) -> None:
        asked_at = self._worker.clock()

        def answered(found: Any) -> None:
            self._fetches.pop(request, None)
            if isinstance(found, ErrorCode):
                now = self._worker.clock()
                self.machine.fetch_failed(request, found, now, unfinished=now - asked_at >= FETCH_TIMEOUT_S)
            else:
                reply(request, found)
            self.pump()

        self._fetches[request] = self._worker.fetch(what, self.key, words, answered)

    def _partition_reply(self, request: int, found: FetchReply) -> None:
        self.machine.partition_reply(request, found.partitions[0], self._worker.clock(), found.history)

    def _batch_reply(self, request: int, found: FetchReply) -> None:
        self.machine.batch_reply(request, found.partitions, self._worker.clock(), found.history)

    def _full_reply(self, request: int, found: FetchReply) -> None:
        self.machine.full_reply(request, found.partitions, self._worker.clock(), found.history)

    def run_heads(self) -> Steps:
        """Mirrors ``HeadsCheck.run``."""
        worker = self._worker
        timer = HeadsTimer(worker.random.random, worker.settings.heads_s)
        failed = False
        while True:
            yield self._check_heads, worker.clock() + timer.next_s(failed=failed)
            self._check_heads.clear()
            failed = False
            asked = self.machine.heads_asked()
            if not asked.needed:
                continue
            answer = Future()
            worker.fetch("heads", self.key, None, answer.settle)
            yield answer
            reply = answer.value
            if isinstance(reply, ErrorCode):
                if reply is not ErrorCode.UNKNOWN_KEY:
                    failed = True
                    continue
                nothing = [0] * self.machine.partition_count
                reply = HeadsReply(WIRE_VERSION, nothing, "", nothing)
            self.machine.heads_reply(asked, reply.heads, worker.clock(), reply.history, reply.rows)
            self.pump()
