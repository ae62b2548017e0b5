"""The way in of a group that answers for its messages: from changes to what its dispatcher is offered."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from itertools import chain
from typing import Final, Protocol

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.absent import Absent
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.holdings import Holdings, HoldsAll
from ringcast_heartbeat_agent.dispatch.intake import AT_ONCE, MOST_LOOKED_AT, Intake
from ringcast_heartbeat_agent.dispatch.positions import Away
from ringcast_heartbeat_agent.dispatch.present import PresentRows
from ringcast_heartbeat_agent.dispatch.progress import Progress
from ringcast_heartbeat_agent.dispatch.routing import Routing
from ringcast_heartbeat_agent.dispatch.sessions import Sessions
from ringcast_heartbeat_agent.dispatch.shares import Shares
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.tasks import GroupTasks

_SAVE_S: Final = 1.0


class FeedSink(Protocol):
    """What a :class:`Feed` offers its messages to."""

    def offer(self, offsets: range, keys: list[str]) -> None:
        """New messages, each with its routing key. There is room for all of them."""

    def discard_blocked(self, partitions: Collection[int]) -> None:
        """These partitions are another host's: messages that block rows of them here are discarded."""

    def overflow(self, rows: int) -> None:
        """So many rows wait, which is more than may."""


class Feed:
    """Takes the changes for one group in, and offers messages once there is room for them.

    :meth:`begin` comes first. Nothing that calls this ever waits.

    Args:
        source: the config key.
        group: the group's name.
        sessions: the group's consumers.
    """

    def __init__(
        self,
        source: Source,
        group: str,
        context: GroupContext,
        routing: Routing,
        sessions: Sessions,
        tasks: GroupTasks,
        sink: FeedSink,
    ) -> None:
        config = context.config
        self.intake = Intake(source, window=config.window, window_bytes=config.window_bytes, routing=routing)
        self.absent = Absent(config.linger_s, config.max_consumers, routing)
        self._source = source
        self._config = config
        self._routing = routing
        self._sessions = sessions
        self._tasks = tasks
        self._sink = sink
        self._save_at = 0.0
        self._offering = False
        self._closed = False
        self._present = PresentRows(source, self.intake, self._shares, tasks, self.offer_soon)
        self._progress = Progress(source, group, context.history, self._put) if context.history is not None else None
        self.holdings = self._hold(group, context)
        """The partitions whose rows the group delivers."""

    def begin(self) -> None:
        """Begins with what is known of the group that was there before; what that one missed is read."""
        if self._progress is None:
            return
        now = asyncio.get_running_loop().time()
        for away in self._progress.away:
            self.absent.gone(away.name, away.filters, now)
        self._look_at_partitions(self._progress)

    def _hold(self, group: str, context: GroupContext) -> Holdings | HoldsAll:
        """Of the partitions that hosts share, where they tell each other how far groups have come."""
        seals, lease, store = context.seals, self._source.lease, self._source.store
        progress, tasks = self._progress, self._tasks
        if seals is None or progress is None:
            return HoldsAll(self._source, progress)
        if lease is None:
            return HoldsAll(self._source, progress, "every host has every partition of the store")
        place = store, self._source.key, group
        holdings = Holdings(
            self._source,
            progress,
            self.intake,
            self.absent,
            self._sessions,
            self._present,
            catch_up=lambda: tasks.spawn(progress.missed.run()),
            discard_blocked=self._sink.discard_blocked,
            keeper_of=lambda sealed: seals.keeper(place, sealed, lease),
            warn=partial(seals.warn, store),
        )
        progress.holds = holdings.is_held
        return holdings

    @property
    def unread(self) -> int:
        """Partitions of which the group still reads what it missed: :attr:`lag` knows nothing of that yet."""
        return len(self._progress.missed) if self._progress is not None else 0

    @property
    def unread_s(self) -> float:
        """For how long reads of what the group missed have failed."""
        return self._progress.missed.unread_s if self._progress is not None else 0.0

    @property
    def lag(self) -> int:
        """Messages that are not settled, and rows and changes that are still to become messages."""
        return len(self.intake.messages) + self.intake.waiting

    def is_ahead(self, partition: int) -> bool:
        """Whether the group may have had changes of a partition that the worker does not have yet."""
        return self._progress is not None and self._progress.is_ahead(partition)

    def take(self, change: Change) -> None:
        """Takes a change from the worker in."""
        if self.holdings.admits(change):
            self._put(change)

    def take_again(self, change: Change) -> None:
        """Takes a row in although the group had it, or gave it up."""
        self.intake.forgive(change.row_id)
        if self._progress is not None:
            self._progress.is_new(change)
        self._put(change)

    def look(self, now: float) -> None:
        """Called four times a second: looks once a second how far the group has come."""
        if self._progress is None or now < self._save_at or self._closed:
            return
        self._save_at = now + _SAVE_S
        self._look_at_partitions(self._progress)
        if self.intake.waiting + len(self.absent) <= MOST_LOOKED_AT:
            self._save()

    def joined(self, consumer: ConsumerSession) -> None:
        """A consumer takes part: what was kept for it comes."""
        self.intake.share(self._shares())
        for change in self.absent.back(consumer.name, consumer.filters):
            self.intake.take(change)
        self.offer_soon()

    def left(self, consumer: ConsumerSession) -> None:
        """A consumer takes nothing new: what only it wants is kept for a while."""
        self.absent.gone(consumer.name, consumer.filters, asyncio.get_running_loop().time())

    def ended(self, consumer: ConsumerSession) -> None:
        """A consumer no longer takes part: its rows go to others, and what only it wants is kept for a while."""
        if all(one.name != consumer.name for one in self._sessions):
            self.left(consumer)
        self.intake.share(self._shares())
        self.offer_soon()

    def deliver_present(self, consumer: ConsumerSession, *, returns: bool) -> None:
        """Has the rows that are there delivered to a consumer, as they are; ``returns``: it has been here before."""
        self._present.deliver({consumer.name: self.holdings.present(consumer.name, returns=returns)})

    def offer_soon(self) -> None:
        """At the end of this turn of the event loop: a call of the dispatcher costs more than a message."""
        if not self._offering:
            self._offering = True
            asyncio.get_running_loop().call_soon(self._offer)

    def close(self) -> None:
        """Saves how far the group has come, and forgets everything."""
        if self._closed:
            return
        self._save()
        self.holdings.close()
        self._closed = True
        self.intake.clear()
        self.absent.clear()

    def _look_at_partitions(self, progress: Progress) -> None:
        if isinstance(self.holdings, Holdings):
            progress.applied()
        elif progress.look():
            self._tasks.spawn(progress.missed.run())

    def _save(self) -> None:
        """Saves how far it has come, and the consumers with filters."""
        if self._progress is None:
            return
        filters = {consumer.name: consumer.filters for consumer in self._sessions if consumer.filters}
        away = [Away(name, list(patterns)) for name, patterns in (self.absent.away | filters).items()]
        self._progress.save(chain(self.intake.changes(), self.absent.changes()), away)

    def _put(self, change: Change) -> None:
        if self._closed:
            return
        self.absent.discard(change.row_id)
        self.intake.take(change)
        if self._routing.crowded:
            self._routing.keep(self._is_known)
        if self.intake.arrived >= AT_ONCE:
            self._offer()
        else:
            self.offer_soon()

    def _is_known(self, row_id: str) -> bool:
        return row_id in self.intake or row_id in self.absent or self._source.change_of(row_id) is not None

    def _offer(self) -> None:
        """Offers what there is room for."""
        self._offering = False
        if self._closed:
            return
        keys = self.intake.batch()
        window, most = self._config.window, self._config.max_behind
        if (rows := self.intake.behind + len(self.absent)) > most:
            self._sink.overflow(rows)
            return
        if self._progress is not None:
            # What was missed comes no faster than it is delivered: it alone never puts the group too far behind.
            self._progress.missed.has_room(min(window, max(1, most // 2)) - self.intake.behind)
        if keys:
            last = self.intake.window.last
            self._sink.offer(range(last - len(keys) + 1, last + 1), keys)
        if self.intake.goes_on:
            self.offer_soon()

    def _shares(self) -> Shares:
        return Shares((one for one in self._sessions if not one.leaving), self._routing)
