"""A worker's application, and how changes are handed to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ringcast import Change
from ringcast._common.backoff import Backoff
from ringcast._protocol.actions import Announce, Apply

from tests.simulation.engine import Signal, Steps

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

HANDLER_TRIES: Final = 3


class Application:
    """Mirrors ``Deliveries`` and ``Applier``, with a handler that is slow or raises as often as it is told."""

    def __init__(self, worker: Worker, key: str, done: Callable[[int], None]) -> None:
        self._worker = worker
        self._key = key
        self._done = done
        self._under_way = 0
        self._running = 0
        self._lost: set[int] = set()
        self._calls: list[Change] = []
        self._waiting: list[Signal] = []

    @property
    def busy(self) -> bool:
        """Mirrors ``Deliveries.busy``."""
        return self._under_way > 0

    def start(self, job: Apply | Announce) -> None:
        """Mirrors ``Deliveries.take``: it begins soon."""
        self._under_way += 1
        if isinstance(job, Apply):
            self._lost.clear()
        self._worker.soon(self._begin, job)

    def lose(self, partitions: frozenset[int]) -> None:
        """Mirrors ``Applier.lose``."""
        self._lost |= partitions

    def _begin(self, job: Apply | Announce) -> None:
        worker = self._worker
        if isinstance(job, Announce):
            worker.spawn(self._announce(job))
            return
        source = iter(job.changes)  # Applier.apply
        if worker.settings.handler_s == 0.0 and worker.settings.handler_fails == 0.0:
            for change in source:
                if change.partition not in self._lost:
                    self._note("handle", change)
                    self._note("handled", change)
            self._end(job.job)
            return
        self._running = min(len(job.changes), worker.settings.parallel)
        for _ in range(self._running):
            worker.spawn(self._runner(source, job.job))

    def _announce(self, job: Announce) -> Steps:
        """Mirrors ``Applier.announce``."""
        while not job.assigned and any(change.partition in job.partitions for change in self._calls):
            ended = Signal()
            self._waiting.append(ended)
            yield ended, None
        self._worker.note("assigned" if job.assigned else "revoked", self._key, tuple(sorted(job.partitions)))
        self._end(job.job)

    def _end(self, job: int) -> None:
        self._under_way -= 1
        self._done(job)

    def _runner(self, source: Iterator[Change], job: int) -> Steps:
        """Mirrors ``Applier._run``."""
        for change in source:
            if change.partition not in self._lost:
                self._calls.append(change)
                yield from self._hand_over(change)
                self._calls.remove(change)
                waiting, self._waiting = self._waiting, []
                for ended in waiting:
                    ended.set()
        self._running -= 1
        if self._running == 0:
            self._end(job)

    def _hand_over(self, change: Change) -> Steps:
        """Mirrors ``Applier._finish`` with the poison policy ``drop``."""
        random, settings = self._worker.random, self._worker.settings
        backoff = Backoff(random.random, first_s=0.1, most_s=5.0)
        self._note("handle", change)
        for tries_left in reversed(range(HANDLER_TRIES)):
            yield settings.handler_s * random.random()
            if random.random() >= settings.handler_fails:
                break
            if change.partition in self._lost:
                return
            if tries_left:
                yield backoff.next_s()
        self._note("handled", change)

    def _note(self, kind: str, change: Change) -> None:
        self._worker.note(kind, self._key, change.partition, change.row_id, change.version, change.value)
