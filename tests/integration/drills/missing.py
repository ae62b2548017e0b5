"""Alerts that no drill causes yet. The list only gets shorter."""

from __future__ import annotations

from typing import Final

WITHOUT_A_DRILL: Final[tuple[str, ...]] = (
    "RingcastRedeliveries",
    "RingcastFiltersNearLimit",
    "RingcastConsumerUpdatesFail",
    "RingcastPartitionsWithoutOwner",
    "RingcastKeyFailing",
    "RingcastCallOverBound",
    "RingcastNoLeader",
    "RingcastPartitionsUnowned",
    "RingcastMovesStuck",
    "RingcastWorkerPassedOver",
    "RingcastLoginRefused",
    "RingcastLoginFileUnusable",
    "RingcastSubjectsRefused",
    "RingcastRebalances",
    "RingcastBootstrapSlow",
    "RingcastAgentWorkersLost",
    "RingcastServiceDisconnected",
    "RingcastGroupsBucketSilent",
    "RingcastStreamReplicasBehind",
    "RingcastStreamNearlyFull",
    "RingcastConsumersNearLimit",
    "RingcastAccountConsumersNearLimit",
    "RingcastAuditLogBehind",
    "RingcastIssuerKeysOld",
    "RingcastEventsRefused",
    "RingcastHistoryBegan",
    "RingcastHistoryRefused",
    "RingcastWritesSlow",
    "RingcastWriteConflicts",
    "RingcastServiceFetchesFail",
    "RingcastServiceOverloaded",
)
