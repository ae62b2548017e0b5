"""What a group knows of the config key that it shares the changes of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.routing import RowMetadata
from ringcast_heartbeat_agent.dispatch.seal_keeper import Lease


class Source(Protocol):
    """The config key that a group shares the changes of, as its worker holds it."""

    store: str
    key: str

    worker_id: str

    @property
    def staleness_s(self) -> float:
        """For how long changes may have been missed."""

    def owns(self, partition: int) -> bool:
        """Whether the partition is this host's now."""

    @property
    def history(self) -> str:
        """The history of the key's revisions; empty as long as none is known."""

    def applied(self) -> Mapping[int, int]:
        """The revisions up to which every change of this host's partitions was handed over."""

    def loaded(self) -> Collection[int]:
        """Those of its partitions that its worker has loaded: from then on it tells every change, and deletion."""

    def rows(self) -> Iterable[RowMetadata]:
        """The live rows held now."""

    def row_ids(self, partitions: Collection[int] | None = None) -> list[str]:
        """Their ids: all of them, or those of these partitions."""

    @property
    def lease(self) -> Lease | None:
        """The lease by which this host has its partitions; ``None`` where every host has all of them."""

    def opened(self, change: Change) -> Change:
        """A change with its value, for a consumer.

        Raises:
            ValueSealedError: it is encrypted, and can't be opened.
        """

    def change_of(self, row_id: str) -> Change | None:
        """A live row as it is now, as a change."""
