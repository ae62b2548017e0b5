"""The group without any bookkeeping: a change goes to the owner of its row, or is lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ringcast import Change, ValueSealedError
from ringcast_core import Router
from ringcast_wire import EventLog

from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery, size_of
from ringcast_heartbeat_agent.dispatch.group import LOSSY, Group, GroupContext, Rejected, milliseconds
from ringcast_heartbeat_agent.dispatch.routing import ROWS, Routing
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.timer import DeadlineTimer
from ringcast_heartbeat_agent.errors import StoppedError

log = EventLog(logging.getLogger(__name__))


class BestEffortGroup(Group):
    """No message is answered, tried again or waited for."""

    mode = LOSSY

    def __init__(self, source: Source, name: str, context: GroupContext, routing: Routing = ROWS) -> None:
        super().__init__(source, name, context, routing)
        self._router = Router(evict_after_ms=milliseconds(context.config.evict_after_s))
        self._timer = DeadlineTimer(self._tick)

    def detach(self, consumer: ConsumerSession) -> None:
        super().detach(consumer)
        self.leave(consumer)

    def leave(self, consumer: ConsumerSession) -> None:
        self._router.leave(consumer.number)
        self.sessions.end(consumer.number, None)

    def answer(
        self,
        consumer: ConsumerSession,
        offsets: Sequence[int],
        attempts: Sequence[int],
        rejected: Sequence[Rejected] = (),
    ) -> None:
        self.seen(consumer)

    def seen(self, consumer: ConsumerSession) -> None:
        self._router.heartbeat(consumer.number, self._timer.now_ms())

    def sent(self, consumer: ConsumerSession, count: int) -> None:
        self._router.taken(consumer.number, count, self._timer.now_ms())

    def take(self, change: Change) -> None:
        (number,) = self._router.route([self.routing.note(change)])
        if self.routing.crowded:
            self.routing.keep(lambda row_id: self.source.change_of(row_id) is not None)
        if number is not None:
            try:
                opened = self.source.opened(change)
            except ValueSealedError as error:
                log.error(
                    "group.value_sealed", store=self.source.store, key=self.source.key, group=self.name, error=error
                )
                return
            self.sessions[number].give(Delivery(0, 0, opened, size_of(opened)), to_be_answered=False)

    def counts(self) -> dict[str, int]:
        return self._router.counts()

    def close(self, error: StoppedError | None = None) -> None:
        super().close(error)
        self._timer.close()

    def _add(self, name: str, filters: Sequence[str], capacity: int, api: str) -> ConsumerSession:
        number = self._router.join(name, filters, capacity=capacity, now_ms=self._timer.now_ms())
        consumer = self.sessions.add(ConsumerSession(number, name, filters, capacity, api))
        self._timer.arm(self._router.next_deadline_ms)
        return consumer

    def _evict(self, consumer: ConsumerSession) -> None:
        self._router.leave(consumer.number)
        self.sessions.end(consumer.number, self._evicted())

    def _tick(self) -> None:
        for number in self._router.tick(self._timer.now_ms()):
            self.sessions.end(number, self._evicted())
        self._timer.arm(self._router.next_deadline_ms)
