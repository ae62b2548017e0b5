"""Compares what the machine of a key has with the service: revisions, and the history that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringcast_wire import Event, PartitionRows

from ringcast._common.stats import Stats
from ringcast._protocol.actions import CompareRevisions, HistoryChanged, HistoryRefused, MissedEvents
from ringcast._protocol.anti_entropy import KnownRevisions, LaggingPartitions
from ringcast._protocol.fetch_queue import FetchQueue
from ringcast._protocol.key_history import KeyHistory
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import Fetching, Partition, PartitionInput, Token


class Comparison:
    """Decides which partitions of a machine are behind, and which are of a history that is over and taken whole."""

    def __init__(
        self,
        history: KeyHistory,
        partitions: Mapping[int, Partition],
        queue: FetchQueue,
        stats: Stats,
        outbox: Outbox,
    ) -> None:
        self._history = history
        self._partitions = partitions
        self._queue = queue
        self._stats = stats
        self._outbox = outbox
        self._lagging = LaggingPartitions()
        self._comparing = False

    # ---- events

    def is_first(self, partition: Partition, event: Event) -> bool:
        """Whether an event can't contradict any row, since there is none: the key or the partition is new."""
        if partition.history or not partition.is_empty or partition.replace:
            return False
        if not self._history.current and partition.live:
            self._history.begin(event.history)
        return not partition.live or event.history == self._history.current

    def set_apart(self, partition: Partition, event: Event, token: Token) -> list[Token]:
        """Keeps an event of another history, whose revisions can't be compared; a comparison or a fetch brings it.

        Returns the token if its history is over.
        """
        if self._history.is_past(event.history):
            return [token]
        partition.set_apart(event, token)
        self.note(partition, event)
        return []

    def note(self, partition: Partition, event: Event) -> None:
        """Has the changes of an event of another history fetched, if that history is the current one."""
        if self._history.is_past(event.history):
            return
        if event.history == self._history.current:
            partition.unread = True
        else:
            self._compare_history(event.history)

    # ---- answers to fetches

    def is_current(self, history: str) -> bool:
        """Whether an answer is of the current history. If not, a comparison decides which one is."""
        if not self._history.current:
            self._history.begin(history)
        if history == self._history.current:
            return True
        self._compare_history(history)
        return False

    def may_replace(self, partition: Partition, reply: PartitionRows) -> bool:
        """Whether a whole partition of another history may replace the rows that the worker has."""
        current, listed = partition.rows, {row.row_id for row in reply.rows}
        refused = self._history.refusal
        if self._history.may_delete(sum(row_id not in listed for row_id in current), len(current)):
            return True
        self._report_refusal(refused is None)
        return False

    # ---- head revisions

    def known(self) -> KnownRevisions:
        """How far each partition is; to be remembered before the head revisions are asked for."""
        live = [p for p in self._partitions.values() if p.live and p.fetching is Fetching.IDLE]
        return KnownRevisions(
            {p.number: (p, p.applied) for p in live},
            self._history.current,
            needed=bool(live) or self._comparing or self._history.refusal is not None,
            suspects=frozenset(self._history.suspects),
        )

    def compare(
        self, known: KnownRevisions, heads: Sequence[int], now: float, history: str, rows: Sequence[int] | None
    ) -> list[Token]:
        """Compares the partitions with the head revisions; returns the tokens of events that have become void."""
        self._comparing = False
        if history == known.history != self._history.current:
            self._compare_soon()  # it was answered before the history that has begun since
            return []
        changed = history != self._history.current or self._history.refusal is not None
        if changed:
            self._change(history, heads, rows)
        self._history.settle(known.suspects)
        if self._history.suspects:
            self._compare_soon()  # an event has named them since this was asked
        if not changed:
            self._compare_heads(known, heads, now, history, rows)
        return [
            token
            for partition in self._partitions.values()
            if partition.foreign
            for token in partition.settled(self._history.is_past)
        ]

    def check_lagging(self, now: float, *, held_back: bool = False) -> None:
        """Fetches partitions that have been behind for a while.

        ``held_back``: the handler is busy, and events may wait at the broker for that.
        """
        for partition in self._lagging.behind(now, held_back=held_back):
            if partition.fetching is Fetching.IDLE and not held_back:
                self._stats.gaps += 1
                self._outbox.put(MissedEvents(partition.number))
            self._queue.want(partition)

    @property
    def wake_at(self) -> float | None:
        """When to check those again."""
        return self._lagging.wake_at

    def _compare_heads(
        self, known: KnownRevisions, heads: Sequence[int], now: float, history: str, rows: Sequence[int] | None
    ) -> None:
        found = [
            (partition, applied, heads[number] if number < len(heads) else 0)
            for number, (partition, applied) in known.at.items()
            if not partition.dead
        ]
        went_back = any(head < applied and not partition.replace for partition, applied, head in found)
        if went_back and not self._take_over(history, heads, rows):
            return
        for partition, applied, head in found:
            if partition.fetching is not Fetching.IDLE:
                continue
            if head < applied or partition.replace:
                partition.on(PartitionInput.INVALIDATED)
                self._queue.want(partition)
            elif head > partition.expected:
                self._lagging.add(partition, head, now)

    def _take_over(self, history: str, heads: Sequence[int], rows: Sequence[int] | None) -> bool:
        """Whether the partitions of a history may take the place of ours; ``rows``: how many each of them has."""
        held = sum(len(partition.rows) for partition in self._partitions.values())
        live = None if rows is None else self._ours(rows)
        refused = self._history.refusal
        if self._history.change(history, held, live, self._ours(heads), is_empty=rows is not None and not any(rows)):
            return True
        self._report_refusal(self._history.refusal != refused)
        return False

    def _change(self, history: str, heads: Sequence[int], rows: Sequence[int] | None) -> None:
        """Every partition is taken whole, unless too many rows would be lost by that."""
        before = self._history.current
        if not self._take_over(history, heads, rows):
            return
        if before and before != history:
            self._outbox.put(HistoryChanged(before, history))
        for partition in self._partitions.values():
            if partition.is_empty and not partition.live:
                continue  # its first fetch is still to come
            if partition.is_empty:
                partition.history = history
            else:
                partition.on(PartitionInput.INVALIDATED)
            self._queue.want(partition)
        self._queue.retry_now()

    # ---- helpers

    def _ours(self, numbers: Sequence[int]) -> int:
        """The service's numbers, added up over the owned partitions."""
        return sum(numbers[number] for number in self._partitions if number < len(numbers))

    def _compare_history(self, history: str) -> None:
        """An event has named another history: the service decides which one is current."""
        if not self._history.is_settled(history):
            self._history.suspect(history)
            self._compare_soon()

    def _compare_soon(self) -> None:
        if not self._comparing:
            self._comparing = True
            self._outbox.put(CompareRevisions())

    def _report_refusal(self, is_news: bool) -> None:
        if is_news and self._history.refusal is not None:
            self._outbox.put(HistoryRefused(self._history.refusal))
