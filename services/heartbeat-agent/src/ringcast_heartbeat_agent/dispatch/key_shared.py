"""The group whose messages are answered: joins its consumers, the way in of changes, and the dispatcher of the core."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from ringcast import Change
from ringcast_wire import ReplayAnswer, ReplayOutcome, ReplayRequest

from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.driver import Driver
from ringcast_heartbeat_agent.dispatch.failures import Failures
from ringcast_heartbeat_agent.dispatch.feed import Feed
from ringcast_heartbeat_agent.dispatch.group import RELIABLE, Figures, Group, GroupContext, Rejected
from ringcast_heartbeat_agent.dispatch.replays import GroupReplays, tell
from ringcast_heartbeat_agent.dispatch.routing import ROWS, Routing
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.tasks import GroupTasks
from ringcast_heartbeat_agent.errors import BehindError, StoppedError, StoppingError


class KeySharedGroup(Group):
    """Each message is answered: at least once, in order for each row."""

    mode = RELIABLE
    _can_resume = True

    def __init__(self, source: Source, name: str, context: GroupContext, policy: str, routing: Routing = ROWS) -> None:
        super().__init__(source, name, context, routing)
        self.policy = policy
        self._left_with: StoppingError | None = None
        self._tasks = GroupTasks(context.spawn)
        self._replays = GroupReplays()
        self._feed = Feed(source, name, context, routing, self.sessions, self._tasks, self)
        self._driver = Driver(
            context.config,
            policy,
            source=source,
            sessions=self.sessions,
            feed=self._feed,
            failures=Failures(name, self._title, source.worker_id, context.dead_letters, self._replays),
            replays=self._replays,
            tasks=self._tasks,
            observer=self,
        )
        self._feed.begin()

    # ---- for consumers

    def drain(self, why: str) -> None:
        self._left_with = StoppingError(why)
        for consumer in self.sessions:
            self.leave(consumer)

    def detach(self, consumer: ConsumerSession) -> None:
        super().detach(consumer)
        if consumer.leaving:  # it does not come back
            self._evict(consumer)

    def leave(self, consumer: ConsumerSession) -> None:
        consumer.leaving = True
        self._feed.left(consumer)
        self._driver.drain(consumer)

    def answer(
        self,
        consumer: ConsumerSession,
        offsets: Sequence[int],
        attempts: Sequence[int],
        rejected: Sequence[Rejected] = (),
    ) -> None:
        if offsets:
            self._driver.acknowledge(consumer, offsets, attempts)
        if rejected:
            self._driver.reject(consumer, rejected)

    def seen(self, consumer: ConsumerSession) -> None:
        self._driver.seen(consumer)

    # ---- for the source

    def take(self, change: Change) -> None:
        self._feed.take(change)

    def look(self, now: float) -> None:
        self._feed.look(now)

    def partitions_changed(self) -> None:
        if not self.closed:
            self._feed.holdings.partitions_changed()

    def replay(self, request: ReplayRequest, change: Change, say: Callable[[ReplayAnswer], None]) -> Callable[[], None]:
        if self.closed:
            tell(request, say, ReplayOutcome.KEPT, 0, f"{self._title} has ended")
        elif self._feed.is_ahead(change.partition):
            why = f"{self._title} has received newer changes than the agent's worker has: try again later"
            tell(request, say, ReplayOutcome.KEPT, 0, why)
        elif not self._feed.holdings.is_held(change.partition):
            why = f"{self._title} waits for the partition, which a group here or on another host holds: try again later"
            tell(request, say, ReplayOutcome.KEPT, 0, why)
        elif self._replays.add(request, change, say):
            self._feed.take_again(change)
        return partial(self._replays.forget, request)

    # ---- for the way in and the dispatcher

    def offer(self, offsets: range, keys: list[str]) -> None:
        """There are new messages: the dispatcher gets them."""
        self._driver.offer(offsets, keys)

    def discard_blocked(self, partitions: Collection[int]) -> None:
        """These partitions are another host's: messages that block rows of them here are discarded."""
        self._driver.discard_blocked(partitions)

    def overflow(self, rows: int) -> None:
        """So many rows wait, which is more than may: the group ends."""
        self.close(BehindError(f"{self._title} is {rows} rows behind: register again, and begin with the rows"))

    def consumer_ended(self, number: int, *, evicted: bool) -> None:
        """A consumer is no longer one."""
        consumer = self.sessions.end(number, self._evicted() if evicted else self._left_with)
        if consumer is not None and not self.closed:
            self._feed.ended(consumer)

    # ---- for people

    def resolve(self, row_ids: Collection[str] | None, *, discard: bool) -> list[str]:
        return self._driver.resolve(row_ids, discard=discard)

    def figures(self) -> Figures:
        return Figures(
            consumers=len(self.sessions),
            in_flight=self._driver.in_flight,
            lag=self._feed.lag,
            behind=self._feed.intake.behind,
            blocked_rows=len(self._driver.blocked),
            unread_s=self._feed.unread_s,
        )

    def status(self) -> dict[str, Any]:
        intake = self._feed.intake
        return {
            **super().status(),
            "last": intake.window.last,
            "lag": self._feed.lag,
            "bytes": intake.window.bytes,
            "behind": intake.behind,
            "kept": len(self._feed.absent),
            **self._feed.holdings.status(),
            "partitions_unread": self._feed.unread,
            **self._driver.status(),
        }

    def counts(self) -> dict[str, int]:
        return self._driver.counts()

    def close(self, error: StoppedError | None = None) -> None:
        self._feed.close()
        super().close(error)
        self._driver.close()
        self._tasks.cancel()
        self._replays.end(f"{self._title} has ended")

    # ---- for the base

    def _add(self, name: str, filters: Sequence[str], capacity: int, api: str) -> ConsumerSession:
        number, actions = self._driver.join(name, filters, capacity)
        consumer = self.sessions.add(ConsumerSession(number, name, filters, capacity, api))
        self._feed.joined(consumer)
        self._driver.do(actions)
        return consumer

    def _evict(self, consumer: ConsumerSession) -> None:
        self._driver.evict(consumer)

    def _tell_present(self, consumer: ConsumerSession, *, returns: bool) -> None:
        self._feed.deliver_present(consumer, returns=returns)
