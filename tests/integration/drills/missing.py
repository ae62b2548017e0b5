"""Alerts that no drill causes yet. The list only gets shorter."""

from __future__ import annotations

from typing import Final

WITHOUT_A_DRILL: Final[tuple[str, ...]] = (
    "RingcastRedeliveries",
    "RingcastNoLeader",
    "RingcastWorkerPassedOver",
    "RingcastBootstrapSlow",
    "RingcastEventsRefused",
    "RingcastWriteConflicts",
    "RingcastServiceOverloaded",
)
