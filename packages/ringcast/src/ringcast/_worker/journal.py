"""What a config key of a worker reports to its operator: log lines, and what goes with them in metrics and traces."""

from __future__ import annotations

from ringcast_wire import ProtocolError

from ringcast._common.stats import Trigger
from ringcast._protocol.actions import HistoryChanged, MissedEvents, Restored
from ringcast._protocol.key_history import Refusal
from ringcast._worker.telemetry import KeyTelemetry


class KeyJournal:
    """Of one key."""

    def __init__(self, telemetry: KeyTelemetry, max_delete_share: float) -> None:
        self._log, self._measures, self._traces = telemetry
        self._max_delete_share = max_delete_share

    def owned(self, partitions: frozenset[int]) -> None:
        """These partitions are owned from now on."""
        self._measures.owned(partitions)

    def rebalanced(self, trigger: Trigger, gained: frozenset[int], lost: frozenset[int], owned: int) -> None:
        """The worker has gained or lost partitions and owns so many now."""
        self._measures.rebalances[trigger] += 1
        if self._traces is not None:
            self._traces.assigned(trigger, gained, lost)
        self._log.info("assignment.changed", trigger=str(trigger), gained=len(gained), lost=len(lost), owned=owned)
        for number in sorted(lost):
            self._log.info("partition.released", partition=number)
        for number in sorted(gained):
            self._log.info("partition.acquired", partition=number)

    def stands_by(self) -> None:
        """Others own all partitions, and none is to come."""
        self._log.info("assignment.none")

    def unreadable(self, partition: int, error: ProtocolError) -> None:
        """An event can't be read."""
        self._log.error("event.unreadable", partition=partition, error=error)

    def missed(self, action: MissedEvents) -> None:
        """Events were not delivered."""
        self._log.warning("events.missed", partition=action.partition)

    def history_changed(self, action: HistoryChanged) -> None:
        """Every partition is fetched whole."""
        self._log.warning("history.changed", before=action.before, after=action.after)

    def restored(self, action: Restored) -> None:
        """The revision of a partition went back."""
        self._log.error(
            "partition.revision_went_back", partition=action.partition, applied=action.applied, head=action.head
        )

    def refused(self, refusal: Refusal) -> None:
        """The service's history lacks too many rows: the worker keeps what it has."""
        self._log.error(
            "history.refused",
            history=refusal.history,
            missing=refusal.gone,
            held=refusal.rows,
            max_delete_share=self._max_delete_share,
        )

    def reason(self, refusal: Refusal | None) -> str:
        """Why the service's history is refused, or nothing."""
        if refusal is None:
            return ""
        return (
            f"{refusal.gone} of {refusal.rows} rows are missing in the service's new history, "
            f"max_delete_share is {self._max_delete_share}"
        )
