"""Has the owners of partitions deliver rows of dead letters again, and removes the dead letters once that is done.

The request goes to the workers of the key, without JetStream: nothing of it is left anywhere. Only the owner answers,
twice: when it begins, and when it is done. A dead letter is removed after the second answer, never before; whatever
else happens, it is kept.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast_wire import (
    NEWEST_WIRE_VERSION,
    WIRE_VERSION,
    DeadLetter,
    EventLog,
    HeadsReply,
    LimitExceededError,
    Mode,
    ProtocolError,
    ReplayAnswer,
    ReplayOutcome,
    ReplayRequest,
    RingcastError,
    UnavailableError,
    decode_replay_answer,
    encode_replay,
    names,
)

from ringcast_config_service.nats.dead_letters import DeadLetterBox, StoredLetter, asking
from ringcast_config_service.repository import RowReader, StoreRecord
from ringcast_config_service.telemetry import Telemetry

log = EventLog(logging.getLogger(__name__))

_ACCEPT_TIMEOUT_S: Final = 3.0
"""How long the owner may take at least for its first answer: more where the caller waits long,"""
_ACCEPT_PART: Final = 3
"""one part in so many of the patience."""
_CALLS_AT_ONCE: Final = 4
_ROWS_AT_ONCE: Final = 8
"""Rows of one call that are under way."""
_MOST_ANSWERS: Final = 16
"""Answers to one request that wait to be read; a worker may send any number."""
PROGRESS_EVERY_S: Final = 2.0
"""How often a call without news says that it still runs."""


class Replayed(NamedTuple):
    """What came of one dead letter. ``outcome``: ``None`` if it is not there any more."""

    number: int
    letter: StoredLetter | None
    outcome: ReplayOutcome | None
    version: int = 0
    worker_id: str = ""
    why: str = ""


class _Target(NamedTuple):
    """A row, and its owner."""

    key: str
    partition: int
    row_id: str
    group: str
    worker_id: str
    """Only this worker may deliver it; empty: the owner of the partition."""


class _OpenRequest:
    """A request that is under way, and what was answered."""

    def __init__(self, store: str, target: _Target) -> None:
        self.place = (store, target.key)
        self.only = target.worker_id
        self.answers: asyncio.Queue[tuple[str, ReplayAnswer]] = asyncio.Queue(_MOST_ANSWERS)


class Replays:
    """The replays of one instance."""

    def __init__(self, nc: Client, repository: RowReader, box: DeadLetterBox, telemetry: Telemetry) -> None:
        self._nc = nc
        self._repository = repository
        self._box = box
        self._measures = telemetry.measures
        self._open: dict[str, _OpenRequest] = {}
        self._calls = 0

    async def start(self) -> None:
        """Receives answers from now on."""
        await self._nc.subscribe(names.REPLAYED_SUBJECTS, cb=self._on_answer)

    async def replay(
        self, store: StoreRecord, numbers: Sequence[int], patience_s: float
    ) -> AsyncGenerator[list[Replayed], None]:
        """Has dead letters replayed; yields what came of them, and an empty list now and then.

        Raises:
            LimitExceededError: too many do that already.
            UnavailableError: NATS does not answer.
        """
        if self._calls >= _CALLS_AT_ONCE:
            raise LimitExceededError(f"{self._calls} replays are under way here: at most {_CALLS_AT_ONCE} may be")
        self._calls += 1
        tasks: set[asyncio.Task[list[Replayed]]] = set()
        try:
            targets, done = await self._sort(store, list(dict.fromkeys(numbers)))
            if done:
                yield done
            heads: dict[str, HeadsReply | RingcastError] = {}
            for key in {target.key for target in targets}:
                heads[key] = await self._heads(store, key)
            turns = asyncio.Semaphore(_ROWS_AT_ONCE)
            tasks = {
                asyncio.create_task(self._replay_row(store, target, letters, heads[target.key], patience_s, turns))
                for target, letters in targets.items()
            }
            while tasks:
                ready, tasks = await asyncio.wait(tasks, timeout=PROGRESS_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                yield [each for task in ready for each in task.result()]
        finally:
            self._calls -= 1
            for task in tasks:
                task.cancel()

    async def _sort(
        self, store: StoreRecord, numbers: Sequence[int]
    ) -> tuple[dict[_Target, list[StoredLetter]], list[Replayed]]:
        """The dead letters by row and owner, and what became of those that can't be replayed."""
        targets: defaultdict[_Target, list[StoredLetter]] = defaultdict(list)
        done: list[Replayed] = []
        for number in numbers:
            stored = await self._box.get(store, number)
            if stored is None:
                done.append(Replayed(number, None, None, why="it is not there any more"))
            elif stored.letter is None:
                done.append(self._kept(store, stored, f"it can only be discarded: {stored.unreadable}"))
            else:
                targets[_target(store, stored, stored.letter)].append(stored)
        return targets, done

    async def _heads(self, store: StoreRecord, key: str) -> HeadsReply | RingcastError:
        try:
            return await self._repository.heads(store.name, key)
        except RingcastError as error:
            return error

    async def _replay_row(
        self,
        store: StoreRecord,
        target: _Target,
        letters: list[StoredLetter],
        heads: HeadsReply | RingcastError,
        patience_s: float,
        turns: asyncio.Semaphore,
    ) -> list[Replayed]:
        """One row, for all dead letters of it."""
        async with turns:
            if isinstance(heads, RingcastError):
                return [self._kept(store, each, str(heads)) for each in letters]
            try:
                worker_id, answer = await self._ask(store, target, letters, heads, patience_s)
            except UnavailableError as error:
                return [self._kept(store, each, str(error)) for each in letters]
            if answer.outcome not in (ReplayOutcome.HANDLED, ReplayOutcome.FAILED_AGAIN):
                return [self._kept(store, each, answer.why, worker_id) for each in letters]
            try:
                await self._box.remove(store.name, [each.number for each in letters])
            except UnavailableError as error:
                why = f"it was handed over ({answer.outcome}), but is still there: {error}"
                return [self._kept(store, each, why, worker_id) for each in letters]
        place: dict[str, object] = {"store": store.name, "key": target.key, "partition": target.partition}
        facts = {**place, "version": answer.version, "worker": worker_id, "count": len(letters)}
        if answer.outcome is ReplayOutcome.HANDLED:
            self._measures.dead_letters[store.name, "replayed"] += len(letters)
            log.info("dead_letters.replayed", **facts)
        else:
            self._measures.dead_letters[store.name, "failed_again"] += len(letters)
            log.info("dead_letters.failed_again", **facts)
        return [Replayed(each.number, each, answer.outcome, answer.version, worker_id, answer.why) for each in letters]

    def _kept(self, store: StoreRecord, stored: StoredLetter, why: str, worker_id: str = "") -> Replayed:
        self._measures.dead_letters[store.name, "kept"] += 1
        return Replayed(stored.number, stored, ReplayOutcome.KEPT, 0, worker_id, why)

    async def _ask(
        self,
        store: StoreRecord,
        target: _Target,
        letters: list[StoredLetter],
        heads: HeadsReply,
        patience_s: float,
    ) -> tuple[str, ReplayAnswer]:
        """The owner, and its last answer.

        Raises:
            UnavailableError: no owner answers, or its last answer does not come in time.
        """
        request = ReplayRequest(
            WIRE_VERSION,
            secrets.token_hex(16),
            target.partition,
            target.row_id,
            heads.heads[target.partition],
            heads.history,
            target.worker_id,
            target.group,
            max(each.letter.replays for each in letters if each.letter is not None),
            int(patience_s * 1000),
            NEWEST_WIRE_VERSION,
        )
        opened = self._open[request.id] = _OpenRequest(store.name, target)
        try:
            if not self._nc.is_connected:
                raise UnavailableError("NATS can't be reached, and so neither can the owner: try again later")
            async with asking(self._nc, store.name):
                await self._nc.publish(names.replay_subject(store.name, target.key), encode_replay(request))
            return await _answer(opened, target, patience_s)
        finally:
            del self._open[request.id]

    async def _on_answer(self, msg: Msg) -> None:
        """Queues an answer, if a call waits for it and it comes from the owner."""
        try:
            store, key, worker_id = names.parse_replayed_subject(msg.subject)
            answer = decode_replay_answer(msg.data)
        except ProtocolError as error:
            log.warning("replay.unreadable", subject=msg.subject, error=error)
            return
        opened = self._open.get(answer.id)
        if opened is None or opened.place != (store, key) or opened.only not in ("", worker_id):
            return
        if not opened.answers.full():
            opened.answers.put_nowait((worker_id, answer))


async def _answer(opened: _OpenRequest, target: _Target, patience_s: float) -> tuple[str, ReplayAnswer]:
    """The owner and its last answer; the first worker that answers is the owner."""
    try:
        async with asyncio.timeout(max(_ACCEPT_TIMEOUT_S, patience_s / _ACCEPT_PART)):
            owner, answer = await opened.answers.get()
    except TimeoutError:
        who = f"worker {target.worker_id}" if target.worker_id else f"a worker that owns partition {target.partition}"
        raise UnavailableError(f"{who} of key {target.key} does not answer: it is kept") from None
    opened.only = owner
    try:
        async with asyncio.timeout(patience_s + _ACCEPT_TIMEOUT_S):  # at the end the owner answers that it gave up
            worker_id = owner
            while worker_id != owner or answer.outcome is ReplayOutcome.ACCEPTED:
                worker_id, answer = await opened.answers.get()  # an answer that came before may be of another worker
    except TimeoutError:
        raise UnavailableError(f"worker {owner} has not finished within {patience_s:g} s: it is kept") from None
    return owner, answer


def _target(store: StoreRecord, stored: StoredLetter, letter: DeadLetter) -> _Target:
    """In mode FULL, and where the worker observes, each has all partitions: it is meant alone."""
    alone = store.settings.mode is Mode.FULL or letter.observer
    return _Target(stored.key, stored.partition, letter.row_id, letter.group, letter.worker_id if alone else "")
