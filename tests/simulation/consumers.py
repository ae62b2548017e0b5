"""A worker's durable consumers and the pull from each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ringcast._common.backoff import Backoff
from ringcast._protocol.filters import FilterPlan
from ringcast_wire import names

from tests.simulation.engine import Signal, Steps, Task
from tests.simulation.jetstream import Message, Pull
from tests.simulation.network import MissingError, TransientError

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

SILENT_S: Final = 5.0


class Consumers:
    """Mirrors ``Consumers`` with the real ``FilterPlan``."""

    def __init__(self, worker: Worker, plan: FilterPlan) -> None:
        self.plan = plan
        self._worker = worker
        self._wanted: dict[str, frozenset[str]] = {}
        self._dirty = Signal()
        self._pulls: dict[int, PullLoop] = {}
        self._closed = False
        self._hurried = Signal()
        worker.link.on_back.append(self.hurry)

    def hurry(self) -> None:
        """Mirrors ``Consumers.hurry``."""
        self._hurried.set()

    def want(self, key: str, subjects: frozenset[str]) -> None:
        """Mirrors ``Consumers.want``."""
        self._wanted[key] = subjects
        self._dirty.set()

    def doubt(self, subject: str) -> None:
        """Mirrors ``Consumers.doubt``."""
        self.plan.doubt(subject)
        self._dirty.set()

    def clear(self) -> Steps:
        """Mirrors ``Consumers.clear``."""
        index = 0
        while (yield from self._delete(index)):
            index += 1

    def run(self) -> Steps:
        """Mirrors ``Consumers.run``."""
        backoff = Backoff(self._worker.random.random, first_s=0.25, most_s=10.0)
        while True:
            yield self._dirty, None
            self._dirty.clear()
            self._hurried.clear()
            try:
                yield from self._update()
                backoff.reset()
                yield self._worker.settings.update_interval_s
            except TransientError:
                yield self._hurried, self._worker.clock() + backoff.next_s()
                self._dirty.set()

    def stop_pulling(self) -> None:
        """Mirrors ``Consumers.stop_pulling``."""
        self._closed = True
        for pull in self._pulls.values():
            pull.stop()

    def _update(self) -> Steps:
        """Mirrors ``Consumers._update``."""
        if not self._worker.holds():
            raise TransientError("the lease may have ended")
        self.plan.want(frozenset[str]().union(*self._wanted.values()))
        for index, filters in self.plan.due():
            self.plan.asked(index, filters)
            yield self._worker.random.uniform(0.0, 0.05)  # the server takes that long for some hundred filters
            if filters:
                yield from self._worker.link.request(self._put, index, filters)
            else:
                yield from self._delete(index)
            self.plan.confirm(index, filters)
            self._pull(index, bool(filters))
            self._worker.confirmed(self.plan.confirmed)
        self._worker.confirmed(self.plan.confirmed)

    def _put(self, index: int, filters: frozenset[str]) -> None:
        self._worker.broker.events().put_consumer(self.name(index), filters)

    def _delete(self, index: int) -> Steps:
        try:
            yield from self._worker.link.request(self._drop, index)
        except MissingError:
            return False
        return True

    def _drop(self, index: int) -> None:
        stream = self._worker.broker.stream
        if stream is None:
            raise MissingError(str(index))
        stream.delete_consumer(self.name(index))

    @property
    def pulling(self) -> int:
        """How many consumers are pulled from."""
        return len(self._pulls)

    def _pull(self, index: int, wanted: bool) -> None:
        """Mirrors ``Consumers._pull``."""
        if index not in self._pulls:
            if wanted and not self._closed:
                self._pulls[index] = PullLoop(self._worker, self, index)
        elif wanted:
            self._pulls[index].created()
        else:
            self._pulls.pop(index).stop()

    def lost(self, index: int) -> None:
        """Mirrors ``Consumers._lost``."""
        self.plan.lost(index)
        self._dirty.set()

    def name(self, index: int) -> str:
        """Mirrors ``Consumers._name``."""
        return names.consumer_name("ringcast", self._worker.worker_id, index)


class PullLoop:
    """Mirrors ``PullLoop``: one request at a time, another when it is used up, ends, or falls silent."""

    def __init__(self, worker: Worker, consumers: Consumers, index: int) -> None:
        self._worker = worker
        self._consumers = consumers
        self._index = index
        self._name = consumers.name(index)
        self._backoff = Backoff(worker.random.random, first_s=0.25, most_s=10.0)
        self._again = Signal()
        self._request = 0
        self._left = 0
        self._delay_s = 0.0
        self._stopped = False
        self._waited_enough = Signal()
        worker.link.on_back.append(self._hurry)
        self._task: Task = worker.spawn(self._run())

    def stop(self) -> None:
        """Its task is cancelled."""
        self._stopped = True
        self._task.cancel()

    def _run(self) -> Steps:
        while True:
            self._again.clear()
            self._waited_enough.clear()
            yield self._worker.wanted, None
            self._request += 1
            self._left = self._worker.demand(self._consumers.pulling)
            pull = Pull(self._worker.link, self._request, self._on_message, self._on_missing)
            self._worker.link.send(self._ask, pull, lossy=True)
            yield from self._until_again()

    def _ask(self, pull: Pull) -> None:
        stream = self._worker.broker.stream
        if stream is not None:
            stream.pull(self._name, pull, self._left)
        else:
            pull.link.deliver(pull.missing, pull.number, lossy=True)  # 503: no responders

    def _until_again(self) -> Steps:
        """Mirrors ``PullLoop._until_again``. As long as the request is alive, heartbeats are taken to come."""
        while True:
            called = yield self._again, self._worker.clock() + SILENT_S
            if called:
                break
            stream = self._worker.broker.stream
            if stream is None or not stream.pulled(self._name, self._worker.link, self._request):
                return
        if self._delay_s:
            delay_s, self._delay_s = self._delay_s, 0.0
            yield self._waited_enough, self._worker.clock() + delay_s

    def _on_message(self, message: Message, consumer: str, sequence: int) -> None:
        if self._stopped:
            return
        self._backoff.reset()
        self._left -= 1
        if self._left == 0:
            self._again.set()
        self._worker.deliver(message, consumer, sequence)

    def _on_missing(self, number: int) -> None:
        """Mirrors ``PullLoop._on_status`` for a consumer that is not there."""
        if number == self._request and not self._stopped:
            self._delay_s = self._backoff.next_s()
            self._consumers.lost(self._index)
            self._again.set()

    def created(self) -> None:
        """Mirrors ``PullLoop.created``."""
        self._waited_enough.set()

    def _hurry(self) -> None:
        self._delay_s = 0.0
        self._waited_enough.set()
        self._again.set()
