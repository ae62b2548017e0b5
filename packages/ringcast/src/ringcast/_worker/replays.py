"""Hands rows of dead letters over again, as they are now: a config service requests it, the owner of the row does it.

The old change is gone for good. What is handed over is the row as the worker holds it, once that is as new as the
service's record was at the request; so nothing old can come after something newer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeAlias

from ringcast_wire import (
    EventLog,
    Mode,
    ProtocolError,
    ReplayAnswer,
    ReplayOutcome,
    ReplayRequest,
    RingcastError,
    decode_replay_request,
    encode_replay,
    names,
)

from ringcast._bus.bus import TRANSIENT, Bus, Message
from ringcast._common.change import Change
from ringcast._common.config import WorkerConfig
from ringcast._delivery.poison import Replay
from ringcast._worker.session import KeySession

MAX_WAITING: Final = 128
"""Replays of a key that wait or are under way; more are refused."""
_AT_ONCE: Final = 4
"""Those of them that call the handler, beside its other calls."""

ReplayTaker: TypeAlias = Callable[[ReplayRequest, Change, Callable[[ReplayAnswer], None]], Callable[[], None]]
"""Takes a row for a group, and calls the function that it is given with the outcome. What it returns is called when the
outcome is not needed any more."""


class Replays:
    """The replays of one worker. ``taker`` takes those for groups, in the place of the handler."""

    def __init__(
        self,
        bus: Bus,
        config: WorkerConfig,
        sessions: Mapping[str, KeySession],
        mode: Mode,
        taker: ReplayTaker | None,
        log: EventLog,
    ) -> None:
        self._bus = bus
        self._config = config
        self._sessions = sessions
        self._shares = mode is Mode.PARTITIONED and not config.observe
        self._taker = taker
        self._log = log
        self._waiting: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Receives requests and carries them out until cancelled."""
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for key, session in self._sessions.items():
                subject = names.replay_subject(self._config.store, key)
                take = partial(self._take, tasks, session)
                await stack.enter_async_context(self._bus.subscribed(subject, take))
            await asyncio.Event().wait()

    async def _take(self, tasks: asyncio.TaskGroup, session: KeySession, msg: Message) -> None:
        try:
            request = decode_replay_request(msg.data)
        except ProtocolError as error:
            self._log.warning("replay.unreadable_request", key=session.key, error=error)
            return
        if not self._is_meant(session, request):
            return
        if self._waiting[session.key] >= MAX_WAITING:
            why = f"{MAX_WAITING} replays of the key wait already: try again later"
            await self._answer(session, Replay.of(request).answer(ReplayOutcome.KEPT, None, why))
            return
        self._waiting[session.key] += 1
        tasks.create_task(self._carry_out(session, request))

    def _is_meant(self, session: KeySession, request: ReplayRequest) -> bool:
        if request.worker_id:
            return request.worker_id == self._config.worker_id
        return self._shares and session.machine.owns(request.partition)

    async def _carry_out(self, session: KeySession, request: ReplayRequest) -> None:
        replay = Replay.of(request)
        try:
            if refusal := self._refusal(request):
                await self._answer(session, replay.answer(ReplayOutcome.KEPT, None, refusal))
                return
            await self._answer(session, replay.answer(ReplayOutcome.ACCEPTED, None))
            try:
                async with asyncio.timeout(request.wait_ms / 1000):
                    await self._wait_until_current(session, request)
                    if self._taker is not None:
                        await self._answer(session, await self._give(session, request, replay))
                        return
                    await self._turns.acquire()
            except TimeoutError:
                why = f"it could not be handed over within {request.wait_ms / 1000:g} s: {_state(session, request)}"
                await self._answer(session, replay.answer(ReplayOutcome.KEPT, None, why))
                return
            except RingcastError as error:  # the key was deleted, or the worker ends
                await self._answer(session, replay.answer(ReplayOutcome.KEPT, None, str(error)))
                return
            try:
                change = _change_of(session, self._config.store, request)
                if change is None:
                    answer = replay.answer(ReplayOutcome.KEPT, None, _state(session, request))
                else:
                    answer = await session.applier.replay(change, replay)
            finally:
                self._turns.release()
            self._log.info("replay.done", key=session.key, partition=request.partition, outcome=str(answer.outcome))
            await self._answer(session, answer)
        finally:
            self._waiting[session.key] -= 1

    def _refusal(self, request: ReplayRequest) -> str:
        """Why this is none for us, though the partition is ours."""
        owner = f"worker {self._config.worker_id} has the partition now"
        if request.group and self._taker is None:
            return f"{owner}, and no agent runs it: group {request.group} is not there"
        if not request.group and self._taker is not None:
            return f"{owner}, and it hands rows only to the groups of an agent"
        return ""

    async def _wait_until_current(self, session: KeySession, request: ReplayRequest) -> None:
        """Until the worker has handed over all up to the revision, or has lost the partition."""
        if not _is_current(session, request):
            session.anti_entropy.compare_now()  # an event may have been lost
        await session.wait_until(lambda: not session.machine.owns(request.partition) or _is_current(session, request))

    async def _give(self, session: KeySession, request: ReplayRequest, replay: Replay) -> ReplayAnswer:
        """Gives the row to the group, and waits for what comes of it."""
        change = _change_of(session, self._config.store, request)
        if change is None:
            return replay.answer(ReplayOutcome.KEPT, None, _state(session, request))
        done: asyncio.Future[ReplayAnswer] = asyncio.get_running_loop().create_future()

        def say(answer: ReplayAnswer) -> None:
            if not done.done():
                done.set_result(answer)

        assert self._taker is not None
        forget = self._taker(request, change, say)
        try:
            return await done
        finally:
            forget()

    async def _answer(self, session: KeySession, answer: ReplayAnswer) -> None:
        """Answers once; if the answer is lost, the request times out and the dead letter stays."""
        subject = names.replayed_subject(self._config.store, session.key, self._config.worker_id)
        with contextlib.suppress(*TRANSIENT):
            if self._bus.is_connected:
                await self._bus.publish(subject, encode_replay(answer))


def _is_current(session: KeySession, request: ReplayRequest) -> bool:
    partition = session.machine.partitions.get(request.partition)
    return (
        partition is not None
        and partition.live
        and partition.served
        and not partition.replace
        and partition.history == request.history
        and partition.applied >= request.revision
    )


def _state(session: KeySession, request: ReplayRequest) -> str:
    partition = session.machine.partitions.get(request.partition)
    if partition is None or not partition.owned:
        return "the partition has gone to another worker"
    if not partition.live or not partition.served or partition.replace or partition.history != request.history:
        return "the worker has not loaded the partition yet"
    if partition.applied < request.revision:
        return f"the worker has handed over revision {partition.applied} of {request.revision}"
    return "other replays were before it, or no consumer has answered"


def _change_of(session: KeySession, store: str, request: ReplayRequest) -> Change | None:
    """The row as the worker holds it, as a change; ``None`` if it is not current any more."""
    if not _is_current(session, request):
        return None
    partition = session.machine.partitions[request.partition]
    row = partition.rows.get(request.row_id)
    if row is not None:
        return Change(
            store,
            session.key,
            partition.number,
            row.row_id,
            row.value,
            row.version,
            metadata=row.metadata,
            token=partition.grant,
        )
    # A deletion: no version of the row is above it, and its next one will be.
    version = max(partition.applied, partition.tombstones.get(request.row_id, 0))
    return Change(
        store, session.key, partition.number, request.row_id, None, version, deleted=True, token=partition.grant
    )
