"""The calls about dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum

from ringcast_wire import MAX_REPLAY_WAIT_MS, InvalidInputError, ValueSealedError, check_row_id, limits, names
from ringcast_wire.grpc import pb
from ringcast_wire.key_ring import KeyRing

from ringcast_client._calls.calls import Calls
from ringcast_client._common.input import check_partition, check_range


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A change that a worker, or a group of consumers, has given up."""

    number: int
    """Names it within its store."""
    key: str
    partition: int
    came_at_ms: int
    """When it was given up, by the clock of NATS (Unix time)."""
    row_id: str
    version: int
    """Partition revision of the change."""
    deleted: bool
    value: str | None
    """``None`` unless it was asked for; also for a deleted row, and if ``left_out``."""
    metadata: dict[str, str]
    left_out: bool
    """Value and metadata were too large for a dead letter."""
    error: str
    """Why it was given up."""
    worker_id: str
    group: str
    """The group of a heartbeat agent whose consumers failed; empty: the worker itself did."""
    tries: int
    replays: int
    """How often the row was handed over again because of a dead letter, and failed again."""
    unreadable: str = ""
    """Why only number, key, partition and time are known: it is no dead letter."""


class ReplayOutcome(StrEnum):
    """What came of a dead letter that was to be replayed."""

    HANDLED = "handled"
    """The row was handed over as it is now, and the dead letter is removed."""
    FAILED_AGAIN = "failed_again"
    """It is removed, too: another one, with a higher count of replays, has taken its place."""
    KEPT = "kept"
    """It is as it was; ``why`` says what is in the way."""
    NOT_THERE = "not_there"
    """Another call has replayed or discarded it."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of one dead letter."""

    number: int
    key: str
    row_id: str
    outcome: ReplayOutcome
    version: int
    """Of the row as it was handed over."""
    worker_id: str
    """Who did it."""
    why: str
    """A sentence, unless it was handled."""


_OUTCOMES = {
    pb.REPLAYED_HANDLED: ReplayOutcome.HANDLED,
    pb.REPLAYED_FAILED_AGAIN: ReplayOutcome.FAILED_AGAIN,
    pb.REPLAYED_KEPT: ReplayOutcome.KEPT,
    pb.REPLAYED_NOT_THERE: ReplayOutcome.NOT_THERE,
}


class DeadLetterCalls:
    """A part of the client of the config service."""

    _calls: Calls
    _key_ring: KeyRing | None

    async def dead_letters(
        self,
        store: str,
        *,
        key: str | None = None,
        partition: int | None = None,
        row_id: str | None = None,
        group: str | None = None,
        worker_id: str | None = None,
        since_ms: int = 0,
        oldest_first: bool = False,
        with_values: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[DeadLetterRecord, None]:
        """The dead letters of a store, newest first; those of a key, a row of it, a group or a worker.

        ``since_ms``: only those that came at that time (Unix) or later. They are read page by page. A value that
        can't be opened with the key ring stays sealed: that may be why the change was given up.

        Raises:
            UnknownStoreError, StoreDeletedError: there is no such store.
            UnavailableError: the service can't be reached, or NATS can't, where they are kept.
        """
        request = pb.ListDeadLettersRequest(
            store=names.check_name("store", store),
            since_ms=check_range("since_ms", since_ms, 0, 2**63 - 1),
            oldest_first=oldest_first,
            with_values=with_values,
            partition=check_partition(partition),
        )
        for field, value in (("key", key), ("group", group), ("worker_id", worker_id)):
            if value is not None:
                setattr(request, field, names.check_name(field, value))
        if row_id is not None:
            if key is None:
                raise InvalidInputError("row_id is given without a key: a row is one of a key", field="key")
            request.row_id = check_row_id(row_id)
        left = 2**63 - 1 if limit is None else check_range("limit", limit, 1, 2**63 - 1)
        while left:
            request.limit = min(left, limits.MAX_DEAD_LETTER_PAGE)
            reply = await self._calls.unary(self._calls.rpc.ListDeadLetters, request)
            for letter in reply.dead_letters:
                yield self._opened(store, _record(letter))
            left -= len(reply.dead_letters)
            request.after = reply.next
            if not reply.next:
                return

    def _opened(self, store: str, letter: DeadLetterRecord) -> DeadLetterRecord:
        if self._key_ring is None or letter.value is None:
            return letter
        try:
            value, metadata = self._key_ring.of(store, letter.key).open(letter.row_id, letter.value, letter.metadata)
        except ValueSealedError:
            return letter
        return replace(letter, value=value, metadata=dict(metadata or {}))

    async def discard_dead_letters(self, store: str, numbers: Sequence[int]) -> int:
        """Removes dead letters for good; returns how many of them were still there.

        Raises:
            UnknownStoreError, StoreDeletedError: there is no such store.
            UnavailableError: the service or NATS can't be reached; some may have been removed.
        """
        request = pb.DiscardDeadLettersRequest(store=names.check_name("store", store))
        wanted = [check_range("number", number, 1, 2**63 - 1) for number in numbers]
        discarded = 0
        for start in range(0, len(wanted), limits.MAX_DEAD_LETTER_PAGE):
            request.numbers[:] = wanted[start : start + limits.MAX_DEAD_LETTER_PAGE]
            discarded += (await self._calls.unary(self._calls.rpc.DiscardDeadLetters, request)).discarded
        return discarded

    async def replay_dead_letters(
        self, store: str, numbers: Sequence[int], *, patience_s: float = 10.0
    ) -> AsyncGenerator[ReplayResult, None]:
        """Has the rows of dead letters handed over again, as they are now; yields what came of each, in any order.

        The present owner of a row's partition does it: a worker, or for a group the agent that has it. So no old value
        comes back. A dead letter is removed only once its row was handled, or failed again and left another one; those
        of one row and owner are replayed as one. ``patience_s``: how long the owner may take (up to 300). An answer
        after that is ignored, and the dead letter stays.

        Raises:
            UnknownStoreError, StoreDeletedError: there is no such store.
            LimitExceededError: the service has as many replays under way as it may.
            UnavailableError: the service can't be reached, or NATS can't, where they are kept.
        """
        wanted = [check_range("number", number, 1, 2**63 - 1) for number in numbers]
        patience_ms = check_range("patience_ms", round(patience_s * 1000), 1, MAX_REPLAY_WAIT_MS)
        request = pb.ReplayDeadLettersRequest(store=names.check_name("store", store), patience_ms=patience_ms)
        for start in range(0, len(wanted), limits.MAX_REPLAYED_LETTERS):
            request.numbers[:] = wanted[start : start + limits.MAX_REPLAYED_LETTERS]
            async with aclosing(self._calls.stream(self._calls.rpc.ReplayDeadLetters, request)) as replies:
                async for reply in replies:
                    for replayed in reply.replayed:
                        yield ReplayResult(
                            replayed.number,
                            replayed.key,
                            replayed.row_id,
                            _OUTCOMES.get(replayed.outcome, ReplayOutcome.KEPT),
                            replayed.version,
                            replayed.worker_id,
                            replayed.why,
                        )


def _record(letter: pb.DeadLetter) -> DeadLetterRecord:
    return DeadLetterRecord(
        number=letter.number,
        key=letter.key,
        partition=letter.partition,
        came_at_ms=letter.came_at_ms,
        row_id=letter.row_id,
        version=letter.version,
        deleted=letter.deleted,
        value=letter.value if letter.HasField("value") else None,
        metadata=dict(letter.metadata),
        left_out=letter.left_out,
        error=letter.error,
        worker_id=letter.worker_id,
        group=letter.group,
        tries=letter.tries,
        replays=letter.replays,
        unreadable=letter.unreadable,
    )
