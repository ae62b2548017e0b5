"""Calls about dead letters: checks, limits, and how many read at once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

from ringcast_core import row_partition
from ringcast_wire import (
    MAX_REPLAY_WAIT_MS,
    EventLog,
    InvalidInputError,
    ReplayOutcome,
    RingcastError,
    check_row_id,
    limits,
    names,
)
from ringcast_wire.grpc import pb

from ringcast_config_service.audit import AuditTrail
from ringcast_config_service.nats.dead_letters import DeadLetterBox, DeadLetterFilter, Page, StoredLetter
from ringcast_config_service.nats.replays import Replayed, Replays
from ringcast_config_service.repository import AuditFact, Authorship, StoreRecord, StoreRepository
from ringcast_config_service.repository.audit import fact
from ringcast_config_service.telemetry import Telemetry

log = EventLog(logging.getLogger(__name__))

_READ_AT_ONCE: Final = 4
"""Pages that are read at once; more calls wait, and their number is bounded by the calls that may be open."""

_PATIENCE_MS: Final = 10_000
_NAMED: Final = 20
"""Dead letters that an entry of the audit log names by their numbers."""
_OUTCOMES: Final = {
    None: pb.REPLAYED_NOT_THERE,
    ReplayOutcome.HANDLED: pb.REPLAYED_HANDLED,
    ReplayOutcome.FAILED_AGAIN: pb.REPLAYED_FAILED_AGAIN,
    ReplayOutcome.KEPT: pb.REPLAYED_KEPT,
}


class DeadLetterCalls:
    """The calls of the API about dead letters.

    They are on NATS, which no transaction reaches: so the audit log has an entry before any is touched, without which
    none is, and another once it is known what became of them.
    """

    def __init__(
        self,
        repository: StoreRepository,
        box: DeadLetterBox,
        replays: Replays,
        telemetry: Telemetry,
        audit: AuditTrail,
    ) -> None:
        self._repository = repository
        self._box = box
        self._replays = replays
        self._measures = telemetry.measures
        self._audit = audit
        self._turns = asyncio.Semaphore(_READ_AT_ONCE)

    async def list(self, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
        """A page of those that are meant.

        Raises:
            InvalidInputError: what chooses them breaks a rule.
            UnknownStoreError, StoreDeletedError: there is no such store.
            UnavailableError: NATS does not answer.
        """
        limit = _checked_limit(request.limit)
        store = await self._store(request.store)
        wanted = _filter(request, store)
        async with self._turns:
            page = await self._box.page(
                store,
                wanted,
                after=request.after,
                limit=limit,
                oldest_first=request.oldest_first,
                with_values=request.with_values,
            )
        self._measures.dead_letters[store.name, "listed"] += len(page.letters)
        return _page_message(page)

    async def discard(self, request: pb.DiscardDeadLettersRequest, by: Authorship) -> pb.DiscardDeadLettersResponse:
        """Removes those that are named.

        Raises:
            InvalidInputError: they are none, or too many.
            UnknownStoreError, StoreDeletedError: there is no such store.
            UnavailableError: NATS does not answer; some may have been removed.
        """
        numbers = _checked_numbers(request.numbers, limits.MAX_DEAD_LETTER_PAGE)
        store = await self._store(request.store)
        async with self._turns:
            await self._audit.add(fact(by, "DiscardDeadLetters", store.name, outcome="begun", **_requested(numbers)))
            discarded = await self._box.remove(store.name, numbers)
        self._measures.dead_letters[store.name, "discarded"] += discarded
        log.info("dead_letters.discarded", store=store.name, count=discarded)
        await self._done(fact(by, "DiscardDeadLetters", store.name, discarded=discarded))
        return pb.DiscardDeadLettersResponse(discarded=discarded)

    async def replay(
        self, request: pb.ReplayDeadLettersRequest, by: Authorship
    ) -> AsyncGenerator[pb.ReplayDeadLettersResponse, None]:
        """Has rows handed over again; yields what came of each dead letter, and nothing now and then.

        Raises:
            InvalidInputError: they are none, or too many, or the patience is too long.
            LimitExceededError: too many do that already.
            UnknownStoreError, StoreDeletedError: there is no such store.
            UnavailableError: NATS does not answer.
        """
        numbers = _checked_numbers(request.numbers, limits.MAX_REPLAYED_LETTERS)
        patience_ms = request.patience_ms or _PATIENCE_MS
        if patience_ms > MAX_REPLAY_WAIT_MS:
            raise InvalidInputError(
                f"patience_ms {patience_ms} is out of range: at most {MAX_REPLAY_WAIT_MS} ms", field="patience_ms"
            )
        store = await self._store(request.store)
        await self._audit.add(fact(by, "ReplayDeadLetters", store.name, outcome="begun", **_requested(numbers)))
        counts: Counter[str] = Counter()
        try:
            async with aclosing(self._replays.replay(store, numbers, patience_ms / 1000)) as results:
                async for some in results:
                    counts.update(str(each.outcome or "not there").replace(" ", "_") for each in some)
                    yield pb.ReplayDeadLettersResponse(replayed=map(_replayed_message, some))
        finally:
            await self._done(fact(by, "ReplayDeadLetters", store.name, **cast(dict[str, Any], counts)))

    async def _done(self, what: AuditFact) -> None:
        """What became of dead letters. If this fails, the log says that it was begun."""
        try:
            await self._audit.add(what)
        except RingcastError as error:
            log.warning("audit.incomplete", action=what.action, store=what.store, details=what.details, error=error)

    async def _store(self, name: str) -> StoreRecord:
        return await self._repository.get_record(names.check_name("store", name))


def _requested(numbers: Sequence[int]) -> dict[str, Any]:
    return {"asked": len(numbers), "numbers": sorted(numbers)[:_NAMED]}


def _filter(request: pb.ListDeadLettersRequest, store: StoreRecord) -> DeadLetterFilter:
    for field in ("key", "group", "worker_id"):
        if value := getattr(request, field):
            names.check_name(field, value)
    partition = request.partition if request.HasField("partition") else None
    if partition is not None:
        names.check_partition(partition, store.partition_count)
    if request.row_id:
        if not request.key:
            raise InvalidInputError("row_id is given without a key: a row is one of a key", field="key")
        home = row_partition(check_row_id(request.row_id), store.partition_count)
        if partition not in (None, home):
            raise InvalidInputError(
                f"partition {partition} does not hold the row: partition {home} does", field="partition"
            )
        partition = home
    if request.since_ms < 0:
        raise InvalidInputError(f"since_ms {request.since_ms} is below 0", field="since_ms")
    return DeadLetterFilter(request.key, partition, request.row_id, request.group, request.worker_id, request.since_ms)


def _checked_numbers(numbers: Sequence[int], most: int) -> Sequence[int]:
    if not 1 <= len(numbers) <= most:
        raise InvalidInputError(f"numbers has {len(numbers)} entries: 1 to {most} are allowed", field="numbers")
    if 0 in numbers or max(numbers) >= 2**63:
        raise InvalidInputError("numbers has an entry below 1: dead letters count from 1", field="numbers")
    return numbers


def _checked_limit(limit: int) -> int:
    if limit > limits.MAX_DEAD_LETTER_PAGE:
        raise InvalidInputError(
            f"limit {limit} is out of range: 1 to {limits.MAX_DEAD_LETTER_PAGE} dead letters are allowed in an answer",
            field="limit",
        )
    return limit or limits.DEFAULT_DEAD_LETTER_PAGE


def _replayed_message(replayed: Replayed) -> pb.ReplayedDeadLetter:
    stored = replayed.letter
    return pb.ReplayedDeadLetter(
        number=replayed.number,
        key=stored.key if stored is not None else "",
        row_id=stored.letter.row_id if stored is not None and stored.letter is not None else "",
        outcome=_OUTCOMES[replayed.outcome],
        version=replayed.version,
        worker_id=replayed.worker_id,
        why=replayed.why,
    )


def _page_message(page: Page) -> pb.ListDeadLettersResponse:
    return pb.ListDeadLettersResponse(dead_letters=map(_message, page.letters), next=page.next)


def _message(stored: StoredLetter) -> pb.DeadLetter:
    letter = stored.letter
    message = pb.DeadLetter(
        number=stored.number,
        key=stored.key,
        partition=stored.partition,
        came_at_ms=stored.came_at_ms,
        unreadable=stored.unreadable,
    )
    if letter is not None:
        message.row_id, message.version, message.deleted = letter.row_id, letter.version, letter.deleted
        if letter.value is not None:
            message.value = letter.value
        message.metadata.update(letter.metadata or {})
        message.left_out, message.error = letter.left_out, letter.error
        message.worker_id, message.group = letter.worker_id, letter.group
        message.tries, message.replays = letter.tries, letter.replays
    return message
