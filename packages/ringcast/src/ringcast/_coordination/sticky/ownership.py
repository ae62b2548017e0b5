"""What one worker owns of one key: the machine of ownership, the participant that it drives."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ringcast_wire import EventLog, event_before, names
from ringcast_wire.owner_records import Rule, Session, State, Table

from ringcast._coordination.sticky.measures import KeyReport
from ringcast._coordination.sticky.records import OwnerRecords
from ringcast._coordination.sticky.session import Refresh
from ringcast._coordination.sticky.settled import SettledShare
from ringcast._coordination.sticky.state import StateWriter
from ringcast._coordination.sticky.times import Clock, StickyTimes, loop_time
from ringcast._protocol.sticky.fence import Fence
from ringcast._protocol.sticky.migration import said_guarded
from ringcast._protocol.sticky.ownership import Action, Deed, OwnedState, Ownership
from ringcast._protocol.sticky.succession import Succession


class ExclusiveParticipant(Protocol):
    """The worker that takes part in exclusive ownership, as its coordinator sees it. None of its calls waits."""

    def prepare(self, key: str, partition: int, token: int, /) -> None:
        """Filter, fetch and apply a partition, then call ``ready`` with the token. Hand nothing over.

        Called again for a partition whose rows were kept: what they lack is fetched.
        """

    def activate(self, key: str, partition: int, token: int, /) -> None:
        """Hand over what is there, and then each change. Each call is between ``begin_call`` and ``end``."""

    def stop(self, key: str, partition: int, token: int, /) -> None:
        """Start no call; one that runs goes on, within its bound. Then make the last one, ``on_revoked``.

        That is between ``begin_last_call`` and ``end``; where it is not let through, it is late. ``end_last_call``
        follows in any case: before it the partition is not released.
        """

    def forget(self, key: str, partition: int, token: int, /) -> None:
        """Give up the rows of a partition."""

    def acted(self, key: str, /) -> None:
        """That was all for now: several of the calls above may be carried out together, here at the latest."""

    def session_changed(self, key: str, runs: bool, /) -> None:
        """A session has begun, or has ended otherwise than by what this worker wanted."""

    def extended(self, key: str, until: float, /) -> None:
        """Calls that wait are to be ended at ``until``, by the loop's clock, and no longer at an earlier time.

        Those of a session that is over are ended at the time that was said last.
        """

    def settled(self, key: str, partitions: frozenset[int], /) -> None:
        """The table has these partitions, or none, for the session that runs; what it says has come to rest."""


class ExclusiveCall:
    """One handler call that has been let through; ``token`` is for what the handler writes elsewhere."""

    __slots__ = ("_owned", "_partition", "token")

    def __init__(self, owned: KeyOwnership, ownership: Ownership, partition: int, token: int) -> None:
        self.token: Final = token
        self._partition = partition
        self._owned: tuple[KeyOwnership, Ownership] | None = (owned, ownership)

    def end(self) -> None:
        """The call has returned, or was given up for good; a second time does nothing."""
        if self._owned is not None:
            (owned, ownership), self._owned = self._owned, None
            owned.end_call(ownership, self._partition)


class ExclusiveCoordinator(Protocol):
    """The coordinator of exclusive ownership, as the worker that takes part sees it. None of its calls waits.

    All but :meth:`report` are for the event loop of the coordinator.
    """

    def ready(self, key: str, partition: int, token: int, /) -> None:
        """A partition has been prepared for this token, as ``prepare`` of the participant wanted."""

    def begin_call(self, key: str, partition: int, /) -> ExclusiveCall | None:
        """Lets one handler call start now, or not. It has to end within the store's bound, and then its ``end``.

        That bound is what the proof rests on: the caller enforces it, by what ``extended`` of the participant says.
        """

    def begin_last_call(self, key: str, partition: int, /) -> ExclusiveCall | None:
        """Lets the last call of a partition that is to stop start now, or not: as :meth:`begin_call`."""

    def end_last_call(self, key: str, partition: int, /) -> None:
        """The last call has ended, or there is none to make: follows each ``stop`` of the participant."""

    def strays_ended(self, key: str, /) -> None:
        """In a store that migrates: the calls that ran when a key got guarded have ended."""

    def state_of(self, key: str, partition: int, /) -> OwnedState:
        """How far this worker is with a partition."""

    def close(self) -> None:
        """Starts no call from now on. Only last calls are let through, until the fence."""

    def report(self, key: str, /) -> KeyReport:
        """What there is to measure of a key. From any thread."""


class KeyOwnership:
    """One key in one worker. All of its calls but the ``async`` ones return at once.

    ``refresh_now`` is called when a session is over, and the next one can begin; ``report_sessions`` with the key, and
    the first and the last session of this process, when one begins.
    """

    def __init__(
        self,
        key: str,
        worker_id: str,
        partitions: int,
        records: OwnerRecords,
        participant: ExclusiveParticipant,
        times: StickyTimes,
        clock: Clock,
        log: EventLog,
        *,
        capacity: int = 1,
        refresh_now: Callable[[], None],
        report_sessions: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._key = key
        self._worker_id = worker_id
        self._partitions = partitions
        self._capacity = capacity
        self._records = records
        self._participant = participant
        self._times = times
        self._clock = clock
        self._log = log.bind(key=key)
        self._actions: deque[Action] = deque()
        self._is_acting = False
        self._fence_moved = asyncio.Event()
        self._changed = asyncio.Event()
        self._session: Session | None = None
        self._lacks_session = False
        self._refresh_now = refresh_now
        self._report_to = report_sessions
        self._agent = ""
        self._is_closed = self._comes_back = False
        self._share: frozenset[int] = frozenset()
        self._guarded = 0
        self._is_free = False
        self._succession = Succession()
        self._calls_until = -math.inf
        self._ownership = self._new()
        self.state = StateWriter(names.state_key(key, worker_id), self._record, records, clock, self._log)
        """Has the bucket say what the machine says."""
        self.share = SettledShare(
            key,
            worker_id,
            records,
            times,
            clock,
            session=lambda: self.session,
            settled=lambda partitions: participant.settled(key, partitions),
        )
        """Says what the share of this worker is, also where it is none."""

    def _record(self) -> State | None:
        """What the bucket is to say, in the place of what it says; ``None``: what it says is of a later process."""
        if self.has_successor:
            return None
        before = self._said
        if before is not None:
            self._ownership.replaces(before, self._clock())
        return self._ownership.record

    def _new(self) -> Ownership:
        fence = Fence(self._times.fence)
        made = Ownership(self._worker_id, self._worker_id, self._partitions, fence, capacity=self._capacity)
        made.agent, made.guarded, made.is_free = self._agent, self._guarded, self._is_free
        made.share(self._share, self._clock())
        return made

    # ---- what happens

    def refreshed(self, refresh: Refresh) -> None:
        """The session entry was refreshed."""
        self._ownership.refreshed(refresh.asked_at, refresh.revision, self._clock(), continued=refresh.continued)
        self._succession.began(self._ownership.sessions[0])
        self.settle()

    def records_changed(self) -> None:
        """The table may be another. That there is none is said by :meth:`table_is_lost`."""
        table = self._records.table(self._key)
        if table is not None:
            self._ownership.obey(table, self._clock())
        self.settle()

    def table_is_lost(self) -> None:
        """The bucket has no table any more, or none yet."""
        if self._ownership.table is not None:
            self._log.error("owners.table_lost")
        self._ownership.obey(None, self._clock())
        self.settle()

    def share_is(self, partitions: frozenset[int]) -> None:
        """What the peer rule gives this worker, in a store that migrates."""
        self._share = partitions
        self._ownership.share(partitions, self._clock())
        self.settle()

    def say_guarded(self, step: int, *, is_free: bool) -> None:
        """The worker is guarded since this step of a migration; 0: it is not, or calls of before may still run.

        ``is_free``: calls start that this does not let start, also once it is closed.
        """
        if (step, is_free) != (self._guarded, self._is_free):
            self._guarded = self._ownership.guarded = step
            self._is_free = self._ownership.is_free = is_free
            self.state.wake()

    def say_ended(self) -> None:
        """No call runs, and none starts: neither one that this lets start, nor another."""
        self._is_free = self._ownership.is_free = False

    def ready(self, partition: int, token: int) -> None:
        """A partition has been prepared for this token."""
        self._ownership.ready(partition, token, self._clock())
        self.settle()

    def begin_call(self, partition: int) -> ExclusiveCall | None:
        """Lets a handler call of a partition start now, if it may. It has to end within ``call_s`` of the fence."""
        token = self._ownership.begin_call(partition, self._clock())
        if token is None:
            self.settle()  # the fence may have passed
            return None
        return ExclusiveCall(self, self._ownership, partition, token)

    def begin_last_call(self, partition: int) -> ExclusiveCall | None:
        """Lets the last call of a partition that is to stop start now, if no other worker can serve it yet."""
        token = self._ownership.begin_last_call(partition, self._clock())
        if token is None:
            self.settle()
            return None
        return ExclusiveCall(self, self._ownership, partition, token)

    def end_last_call(self, partition: int) -> None:
        """The last call of a partition has ended, or there is none to make."""
        self._ownership.end_last_call(partition, self._clock())
        self.settle()

    def end_call(self, ownership: Ownership, partition: int) -> None:
        """A call has ended that this ownership let start."""
        ownership.end_call(partition, self._clock())
        if ownership.state_of(partition) is not OwnedState.ACTIVE:
            self.settle()

    def witnessed_by(self, agent: str) -> None:
        """This agent sees the process end, and is told of its sessions."""
        self._agent = self._ownership.agent = agent
        if self._ownership.session is not None:
            self._report_sessions()
        self.state.wake()

    # ---- what is wanted

    def leave(self) -> None:
        """Has the leader give the partitions to others; serves until :attr:`has_left`."""
        self._ownership.leave()
        self.settle()

    def close(self) -> None:
        """Starts no call from now on."""
        self._is_closed, self._comes_back = True, False
        self._ownership.close()
        self.settle()

    def come_back(self) -> None:
        """Takes part again, once no call of before runs."""
        self._comes_back = self._is_closed
        self.settle()

    # ---- what is

    @property
    def session(self) -> Session | None:
        """The session that runs."""
        return self._ownership.session

    @property
    def is_closed(self) -> bool:
        """Whether it starts no call, and has no session, until it comes back."""
        return self._is_closed

    def said_guarded(self) -> int | None:
        """See :func:`~ringcast._protocol.sticky.migration.said_guarded`: of the session that runs."""
        self._ownership.poll(self._clock())  # of a process that was halted nothing has looked at the clock yet
        return said_guarded(self._said, self.session)

    @property
    def has_successor(self) -> bool:
        """Whether another process of this worker's id has taken part in the key after this one began to."""
        return self._succession.is_over(self._said)

    @property
    def _said(self) -> State | None:
        """What the bucket has as the state of this worker."""
        return self._records.states(self._key).get(self._worker_id)

    @property
    def table(self) -> Table | None:
        """The table that the worker acts by."""
        return self._ownership.table

    def tokens(self) -> dict[int, int]:
        """The partitions of which calls may start, each with its token, as long as the fence has not passed."""
        return self._ownership.tokens()

    @property
    def has_left(self) -> bool:
        """Whether a worker that leaves owns nothing any more; one that has no session and no call has nothing."""
        return self._ownership.has_left or self.is_idle

    @property
    def is_among_peers(self) -> bool:
        """Whether the table names no owners: others need not be waited for."""
        return self.table is not None and self.table.rule is not Rule.OWNERS

    @property
    def is_idle(self) -> bool:
        """Whether there is no session, and no call runs."""
        return self.session is None and not self._ownership.is_draining

    def state_of(self, partition: int) -> OwnedState:
        """How far this worker is with a partition."""
        return self._ownership.state_of(partition)

    async def until(self, due: float | None) -> bool:
        """Waits until something is another here, or until a time of the loop; returns whether it is."""
        self._changed.clear()
        return await event_before(self._changed, due)

    # ---- what is done

    def settle(self) -> None:
        """Does what the machine wants. What a call of the participant causes is done after it, in order."""
        if self._comes_back and not self._is_acting and self.is_idle:
            self._start_over()
        self._actions.extend(self._ownership.take_actions())
        if (until := self._ownership.calls_until) != self._calls_until:
            self._calls_until = until
            self._participant.extended(self._key, asyncio.get_running_loop().time() + until - self._clock())
        if not self._is_acting:
            self._is_acting = True
            try:
                while self._actions:
                    while self._actions:
                        self._act(self._actions.popleft())
                    self._participant.acted(self._key)
            finally:
                self._is_acting = False
        if (session := self.session) != self._session:
            self._lacks_session = session is None and not self._is_closed
            self._say_session(session)
        if self._lacks_session and self.is_idle:
            self._lacks_session = False
            self._refresh_now()  # the next session begins with it
        self.state.wake()
        self.share.changed()
        self._changed.set()

    def _start_over(self) -> None:
        for number in range(self._partitions):
            if self.state_of(number) is not OwnedState.ABSENT:
                self._actions.append(Action(Deed.FORGET, number, 0))
        self._is_closed = self._comes_back = False
        self._ownership = self._new()
        table = self._records.table(self._key)
        if table is not None:
            self._ownership.obey(table, self._clock())

    def _act(self, action: Action) -> None:
        participant = self._participant
        match action.deed:
            case Deed.PREPARE:
                participant.prepare(self._key, action.partition, action.token)
            case Deed.ACTIVATE:
                participant.activate(self._key, action.partition, action.token)
            case Deed.STOP:
                participant.stop(self._key, action.partition, action.token)
            case Deed.FORGET:
                participant.forget(self._key, action.partition, action.token)

    def _say_session(self, session: Session | None) -> None:
        if self._session is not None and not self._is_closed:
            self._log.warning("session.ended", session=self._session.number)
        if session is not None:
            self._log.info("session.began", session=session.number)
            self._report_sessions()
        self._session = session
        self._fence_moved.set()
        if session is not None or not self._is_closed:
            self._participant.session_changed(self._key, session is not None)

    def _report_sessions(self) -> None:
        if self._report_to is not None:
            self._report_to(self._key, *self._ownership.sessions)

    async def watch_fence(self) -> None:
        """Ends each session when its fence has passed, until cancelled. No call needs it: each looks for itself."""
        while True:
            self._fence_moved.clear()
            await event_before(self._fence_moved, loop_time(self._ownership.wake_at, self._clock))
            self._ownership.poll(self._clock())
            self.settle()
