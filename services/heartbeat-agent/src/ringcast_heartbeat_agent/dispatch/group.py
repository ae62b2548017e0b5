"""Groups: the consumers that share the changes of a config key, so that each row stays in order."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ringcast import Change, InvalidInputError
from ringcast_wire import AlreadyExistsError, EventLog, ReplayAnswer, ReplayOutcome, ReplayRequest, names

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.dead_letters import DeadLetterPublisher
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_heartbeat_agent.dispatch.replays import nothing, tell
from ringcast_heartbeat_agent.dispatch.routing import Routing, RowMetadata
from ringcast_heartbeat_agent.dispatch.timer import DeadlineTimer
from ringcast_heartbeat_agent.errors import EvictedError, StoppedError, StoppingError

log = EventLog(logging.getLogger(__name__))

RELIABLE: Final = "reliable"
LOSSY: Final = "lossy"
EVENTS: Final = (
    "offered",
    "repeated",
    "deliveries",
    "acked",
    "rejected",
    "timed_out",
    "evicted",
    "stale",
    "dropped",
    "dead_lettered",
    "skipped",
    "coalesced",
    "queued",
    "saturated",
    "unmatched",
)
"""What the core counts, in groups of either mode."""


Rejected: TypeAlias = tuple[int, int, str]
"""Offset, attempt, and why."""


class Source(Protocol):
    """The config key that a group shares the changes of, as its worker holds it."""

    store: str
    key: str

    worker_id: str

    @property
    def staleness_s(self) -> float:
        """For how long changes may have been missed."""

    def owns(self, partition: int) -> bool:
        """Whether the partition is this host's now."""

    @property
    def history(self) -> str:
        """The history of the key's revisions; empty as long as none is known."""

    def applied(self) -> Mapping[int, int]:
        """The revisions up to which every change of this host's partitions was handed over."""

    def rows(self) -> Iterable[RowMetadata]:
        """The live rows held now."""

    def row_ids(self) -> list[str]:
        """Their ids."""

    def change_of(self, row_id: str) -> Change | None:
        """A live row as it is now, as a change."""


class GroupContext(NamedTuple):
    """What groups work with."""

    config: Config
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    dead_letters: DeadLetterPublisher
    history: History | None = None
    """``None``: groups that start again know nothing of what was before."""


class Group:
    """What groups of either mode have in common."""

    mode = ""
    policy = ""

    def __init__(self, source: Source, name: str, context: GroupContext, routing: Routing) -> None:
        self.source: Source = source
        self.name = name
        self.routing = routing
        routing.begin(source.rows())
        self.sessions: dict[int, ConsumerSession] = {}
        self.empty_since: float | None = asyncio.get_running_loop().time()
        """Since when it has no consumer."""
        self.closed = False
        self._context = context
        self._timer = DeadlineTimer(self._tick)
        self._title = f"group {name} of {source.store}/{source.key}"
        self.evict_after_s = context.config.evict_after_s
        """After how much silence a consumer is evicted."""

    # ---- for consumers

    def join(
        self, name: str, filters: Sequence[str], *, capacity: int, changes_only: bool, session: str, api: str
    ) -> tuple[ConsumerSession, bool]:
        """A consumer has come, or come back; says also whether it goes on where it was.

        Raises:
            InvalidInputError: the name, a filter or the capacity breaks a rule.
            AlreadyExistsError: a consumer of that name is connected.
        """
        names.check_name("name", name)
        capacity = capacity or self._context.config.consumer_capacity
        held = next((one for one in self.sessions.values() if one.name == name and not one.leaving), None)
        if held is not None:
            if held.connected:
                raise AlreadyExistsError(f"a consumer {name!r} of group {self.name} is connected already", field="name")
            same = (session, tuple(filters), capacity) == (held.session, held.filters, held.capacity)
            if same and self._can_resume and not held.ended:
                held.resume()
                self.seen(held)
                return held, True
            # Another process: what the one before it had is delivered again, so that its crashes count.
            self.leave(held)
        try:
            consumer = self._add(name, filters, capacity, api)
        except ValueError as error:
            raise InvalidInputError(str(error), field="filters" if "filter" in str(error) else "capacity") from error
        finally:
            if held is not None and held.number in self.sessions:
                self._evict(held)
        self.empty_since = None
        if not changes_only:
            self._tell_present(consumer)
        return consumer, False

    def detach(self, consumer: ConsumerSession) -> None:
        """The connection is gone: the consumer may come back until it is evicted."""
        consumer.connected = False

    def leave(self, consumer: ConsumerSession) -> None:
        """The consumer gets nothing new, and ends when it has answered everything."""
        raise NotImplementedError

    def drain(self, why: str) -> None:
        """Delivers nothing new; each stream ends with an error once its consumer has answered everything."""
        self.close(StoppingError(why))

    @property
    def consumers(self) -> int:
        """How many consumers it has."""
        return len(self.sessions)

    @property
    def in_flight(self) -> int:
        """Deliveries that are not answered yet."""
        return 0

    @property
    def lag(self) -> int:
        """Messages that are not settled, and rows and changes that are still to become messages."""
        return 0

    @property
    def behind(self) -> int:
        """Rows with changes that the window has no room for."""
        return 0

    @property
    def blocked_rows(self) -> int:
        """Rows that poison blocks."""
        return 0

    def answer(
        self,
        consumer: ConsumerSession,
        offsets: Sequence[int],
        attempts: Sequence[int],
        rejected: Sequence[Rejected] = (),
    ) -> None:
        """What a consumer says: deliveries that are done with, in two columns, and those that failed."""
        raise NotImplementedError

    def seen(self, consumer: ConsumerSession) -> None:
        """A sign of life."""
        raise NotImplementedError

    def sent(self, consumer: ConsumerSession, count: int) -> None:
        """So many deliveries are with the connection."""

    # ---- for the source

    def take(self, change: Change) -> None:
        """Takes a change in. Nothing waits for a group, so that none holds another up."""
        raise NotImplementedError

    def look(self, now: float) -> None:
        """Called four times a second, for what is to be done after a time."""

    @property
    def unread_s(self) -> float:
        """For how long reads of what it missed have failed."""
        return 0.0

    def replay(self, request: ReplayRequest, change: Change, say: Callable[[ReplayAnswer], None]) -> Callable[[], None]:
        """Hands a row over again, as it is now, because of a dead letter; says what came of it once it is known.

        What it returns is to be called when the request no longer waits for that.
        """
        tell(request, say, ReplayOutcome.KEPT, 0, f"{self._title} is {self.mode}: it has no dead letters")
        return nothing

    # ---- for people

    def resolve(self, row_ids: Collection[str] | None, *, discard: bool) -> list[str]:
        """Has the blocked messages of these rows, or of all, tried again or given up; returns the rows."""
        return []

    def status(self) -> dict[str, Any]:
        """How it stands."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """What happened so far, by event."""
        raise NotImplementedError

    def close(self, error: StoppedError | None = None) -> None:
        """Ends it with all its consumers. Calling it again changes nothing."""
        self.closed = True
        self._timer.close()
        for consumer in list(self.sessions.values()):
            self._forget(consumer.number, error)

    # ---- for the modes

    _can_resume = False

    def _add(self, name: str, filters: Sequence[str], capacity: int, api: str) -> ConsumerSession:
        raise NotImplementedError

    def _evict(self, consumer: ConsumerSession) -> None:
        raise NotImplementedError

    def _tell_present(self, consumer: ConsumerSession) -> None:
        """Has the rows that are there delivered to a consumer."""

    def _tick(self) -> None:
        raise NotImplementedError

    def _forget(self, number: int, error: StoppedError | None) -> None:
        consumer = self.sessions.pop(number, None)
        if consumer is not None:
            consumer.end(error)
            if error is not None:
                log.warning("consumer.ended", consumer=consumer.name, group=self._title, error=error)
        if not self.sessions:
            self.empty_since = asyncio.get_running_loop().time()

    def _evicted(self) -> EvictedError:
        return EvictedError(f"no sign of life for {self.evict_after_s:g} s: others have its messages; register again")


def total(counts: Iterable[dict[str, int]]) -> Counter[str]:
    """The sum of what happened."""
    done = Counter(dict.fromkeys(EVENTS, 0))
    for each in counts:
        done.update(each)
    return done


def milliseconds(seconds: float) -> int:
    """As the core wants it."""
    return max(1, round(seconds * 1000))
