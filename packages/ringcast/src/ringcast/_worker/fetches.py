"""Sends the fetches of one config key to the service, and gives the answers to its machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from ringcast_wire import (
    ErrorCode,
    HeadsReply,
    RingcastError,
    batch_payload,
    full_payload,
    heads_payload,
    names,
    partition_payload,
)

from ringcast._bus.requests import FetchClient, UnfinishedFetchError
from ringcast._delivery.traces import Fetch
from ringcast._protocol.actions import FetchBatch, FetchFull, FetchPartition
from ringcast._protocol.decode import read_batch, read_full, read_heads, read_partition
from ringcast._protocol.key import KeyMachine
from ringcast._worker.observer import KeyObserver
from ringcast._worker.telemetry import KeyTelemetry

ATTEMPTS_EXHAUSTED: Final = 6
"""Failed fetches of one partition after which the delay between two no longer grows (1, 2, 4, 8, 16, 30 s)."""


class KeyFetches:
    """Sends the fetches of one machine, and gives it the answers."""

    def __init__(self, machine: KeyMachine, telemetry: KeyTelemetry, *, observer: KeyObserver) -> None:
        self._machine = machine
        self.client: FetchClient | None = None
        """Known once the worker has joined."""
        self._log, self._measures, self._traces = telemetry
        self._observer = observer
        self._running: dict[int, asyncio.Task[None]] = {}
        self._failures: dict[int | None, int] = {}
        self._failing_since: dict[int | str, float] = {}
        self.split_because = ""
        """Why the key was not fetched whole when that was tried last, but by partitions, or nothing."""

    async def send(self, action: Fetch) -> None:
        """Carries a fetch out, in a task of its own."""
        task = asyncio.current_task()
        if task is None or not self._machine.fetches.awaits(action.request):
            return  # it was given up before it began
        self._running[action.request] = task
        try:
            await self._send(action)
        finally:
            del self._running[action.request]
        self._observer.pump()

    def give_up(self, request: int) -> None:
        """The answer is not needed any more: frees its place in the budget, and notifies the service."""
        if (task := self._running.get(request)) is not None:
            task.cancel()

    async def _send(self, action: Fetch) -> None:
        what = _what(action)
        try:
            with self._traced(action) as headers:
                answer = await self._fetch(action, headers)
        except RingcastError as error:
            if _is_failure(action, error.code):
                self._failing_since.setdefault(what, self._now())
            else:
                self._failing_since.pop(what, None)
            self._failed(action, error)
        else:
            self._failing_since.pop(what, None)
            answer()

    @property
    def failing_since(self) -> float | None:
        """Since when a fetch has failed that is still needed; safe to read from any thread."""
        return min(list(self._failing_since.values()), default=None)

    def forget_unwanted(self) -> None:
        """Forgets the failures of fetches that are not needed any more."""
        if self._failing_since:
            self._failing_since = {
                what: at for what, at in self._failing_since.items() if self._machine.fetches.wants(what)
            }

    async def heads(self) -> HeadsReply:
        """The revision of each partition, and how many rows it has, as the service says."""
        body = await self._request(self._subject(names.FETCH_HEADS), heads_payload())
        return read_heads(body, self._machine.partition_count)

    async def _fetch(self, action: Fetch, headers: dict[str, str] | None) -> Callable[[], None]:
        """Sends the request; returns what gives the answer to the machine."""
        match action:
            case FetchPartition():
                return await self._fetch_partition(action, headers)
            case FetchBatch():
                return await self._fetch_batch(action, headers)
            case FetchFull():
                return await self._fetch_full(action, headers)

    async def _fetch_partition(self, action: FetchPartition, headers: dict[str, str] | None) -> Callable[[], None]:
        sent_at = self._now()
        request = partition_payload(action.since, action.history)
        body = await self._request(self._subject(action.partition), request, headers)
        count = self._machine.partition_count
        history, parts = read_partition(body, action.partition, action.since, count, action.history)
        if action.since is None:
            self._measures.bootstrapped(action.partition, self._now() - sent_at)
        self._failures.pop(action.partition, None)
        return lambda: self._machine.fetches.partition_reply(action.request, parts[0], self._now(), history)

    async def _fetch_batch(self, action: FetchBatch, headers: dict[str, str] | None) -> Callable[[], None]:
        request = batch_payload(action.row_ids)
        body = await self._request(self._subject(names.FETCH_BATCH), request, headers)
        history, parts = read_batch(body, action.row_ids, self._machine.partition_count)
        return lambda: self._machine.fetches.batch_reply(action.request, parts, self._now(), history)

    async def _fetch_full(self, action: FetchFull, headers: dict[str, str] | None) -> Callable[[], None]:
        sent_at = self._now()
        body = await self._request(self._subject(names.FETCH_FULL), full_payload(), headers)
        history, parts = read_full(body, self._machine.partition_count)
        self._measures.bootstrapped(None, self._now() - sent_at)
        self._failures.pop(None, None)
        self.split_because = ""
        return lambda: self._machine.fetches.full_reply(action.request, parts, self._now(), history)

    def _traced(self, action: Fetch) -> AbstractContextManager[dict[str, str] | None]:
        """The span of a fetch, if there are spans, and the headers that carry it to the service."""
        if self._traces is None:
            return nullcontext()
        return self._traces.fetching(action, self._tokens(action))

    def _tokens(self, action: Fetch) -> Iterable[str]:
        partition = self._machine.partitions.get(action.partition) if isinstance(action, FetchPartition) else None
        return [] if partition is None else partition.tokens.values()

    def _failed(self, action: Fetch, error: RingcastError) -> None:
        partition = action.partition if isinstance(action, FetchPartition) else None
        unfinished = isinstance(error, UnfinishedFetchError)
        if error.code in (ErrorCode.STORE_DELETED, ErrorCode.KEY_DELETED):
            # The rows do not count as deleted: what is held stays as it is until the partitions are given up.
            self._machine.fetches.failed(action.request, error.code, self._now())
            self._observer.deleted(error)
            return
        if error.code is ErrorCode.UNKNOWN_KEY:
            self._failures.pop(partition, None)
            self._log.debug("key.empty", partition=partition)
        elif isinstance(action, FetchBatch):
            self._log.warning("fetch.attempt_failed", error=error)
        elif isinstance(action, FetchFull) and (unfinished or error.code is ErrorCode.LIMIT_EXCEEDED):
            self.split_because = str(error)
            self._log.warning("bootstrap.split", error=error)
        else:
            self._bootstrap_failed(action, partition, error)
        self._machine.fetches.failed(action.request, error.code, self._now(), unfinished=unfinished)

    def _bootstrap_failed(
        self, action: FetchPartition | FetchFull, partition: int | None, error: RingcastError
    ) -> None:
        attempt = self._failures[partition] = self._failures.get(partition, 0) + 1
        whole = isinstance(action, FetchFull) or action.since is None
        facts: dict[str, Any] = {"partition": partition, "attempt": attempt, "error": str(error)}
        if whole:
            self._log.warning("bootstrap.failed", **facts)
        else:
            self._log.warning("fetch.attempt_failed", **facts)
        if attempt == ATTEMPTS_EXHAUSTED:
            self._log.error("fetch.keeps_failing", **facts)

    async def _request(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        assert self.client is not None
        return await self.client.request(subject, payload, headers)

    def _subject(self, what: int | str) -> str:
        return names.fetch_subject(self._machine.store, self._machine.key, what)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _what(action: Fetch) -> int | str:
    """What a fetch is of: a partition, or the name of another kind of fetch."""
    match action:
        case FetchPartition():
            return action.partition
        case FetchBatch():
            return names.FETCH_BATCH
        case FetchFull():
            return names.FETCH_FULL


def _is_failure(action: Fetch, code: ErrorCode) -> bool:
    """Whether it leaves changes unknown: not where the answer says that there are none, or to ask for less at once."""
    if code is ErrorCode.LIMIT_EXCEEDED:
        return isinstance(action, FetchPartition) or (isinstance(action, FetchBatch) and len(action.row_ids) == 1)
    return code not in (ErrorCode.UNKNOWN_KEY, ErrorCode.STORE_DELETED, ErrorCode.KEY_DELETED)
