"""Groups: the consumers that share the changes of a config key, so that each row stays in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ringcast import Change, InvalidInputError
from ringcast_wire import AlreadyExistsError, ReplayAnswer, ReplayOutcome, ReplayRequest, names

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.dead_letters import GroupDeadLetters
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_heartbeat_agent.dispatch.replays import nothing, tell
from ringcast_heartbeat_agent.dispatch.routing import Routing
from ringcast_heartbeat_agent.dispatch.seal_service import SealService
from ringcast_heartbeat_agent.dispatch.sessions import Sessions
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.errors import EvictedError, StoppedError, StoppingError

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


class GroupContext(NamedTuple):
    """What groups work with."""

    config: Config
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    dead_letters: GroupDeadLetters
    history: History | None = None
    """``None``: groups that start again know nothing of what was before."""
    seals: SealService | None = None
    """``None``: hosts do not tell each other how far groups have come."""


class Figures(NamedTuple):
    """How a group stands, in numbers."""

    consumers: int
    in_flight: int = 0
    """Deliveries that are not answered yet."""
    lag: int = 0
    """Messages that are not settled, and rows and changes that are still to become messages."""
    behind: int = 0
    """Rows with changes that the window has no room for."""
    blocked_rows: int = 0
    """Rows that poison blocks."""
    unread_s: float = 0.0
    """For how long reads of what it missed have failed."""


class Group:
    """What groups of either mode have in common."""

    mode = ""
    policy = ""

    def __init__(self, source: Source, name: str, context: GroupContext, routing: Routing) -> None:
        self.source: Source = source
        self.name = name
        self.routing = routing
        routing.begin(source.rows())
        self.closed = False
        self._context = context
        self._title = f"group {name} of {source.store}/{source.key}"
        self.sessions = Sessions(self._title)
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
        held = self.sessions.named(name)
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
            if held is not None and held in self.sessions:
                self._evict(held)
        if not changes_only:
            self._tell_present(consumer, returns=bool(session))
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

    def partitions_changed(self) -> None:
        """The host has other partitions now."""

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

    def figures(self) -> Figures:
        """How it stands, in numbers."""
        return Figures(consumers=len(self.sessions))

    def status(self) -> dict[str, Any]:
        """How it stands."""
        return {
            "store": self.source.store,
            "key": self.source.key,
            "group": self.name,
            "mode": self.mode,
            "poison_policy": self.policy,
            "routing_key": self.routing.setting,
            "cursor": 0,
            "last": 0,
            "in_flight": 0,
            "lag": 0,
            "bytes": 0,
            "behind": 0,
            "kept": 0,
            "blocked": [],
            "counts": self.counts(),
            "consumers": [consumer.status(in_flight=0, waiting=consumer.unsent) for consumer in self.sessions],
        }

    def counts(self) -> dict[str, int]:
        """What happened so far, by event."""
        raise NotImplementedError

    def close(self, error: StoppedError | None = None) -> None:
        """Ends it with all its consumers. Calling it again changes nothing."""
        self.closed = True
        for consumer in self.sessions:
            self.sessions.end(consumer.number, error)

    # ---- for the modes

    _can_resume = False

    def _add(self, name: str, filters: Sequence[str], capacity: int, api: str) -> ConsumerSession:
        raise NotImplementedError

    def _evict(self, consumer: ConsumerSession) -> None:
        raise NotImplementedError

    def _tell_present(self, consumer: ConsumerSession, *, returns: bool) -> None:
        """Has the rows that are there delivered to a consumer; ``returns``: its process has been here before."""

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
