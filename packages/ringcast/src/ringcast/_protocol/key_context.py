"""What the parts of the machine of a config key have in common."""

from __future__ import annotations

from typing import NamedTuple

from ringcast_wire import RandomSource

from ringcast._common.stats import Stats
from ringcast._protocol.announcements import Announcements
from ringcast._protocol.backlog import Backlog
from ringcast._protocol.deliveries import DeliveryQueue
from ringcast._protocol.fetch_queue import FetchQueue
from ringcast._protocol.key_history import KeyHistory
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import Partition
from ringcast._protocol.snapshots import Saving


class KeyContext(NamedTuple):
    """What several parts of one machine use, and change."""

    partitions: dict[int, Partition]
    history: KeyHistory
    queue: FetchQueue
    """The partitions that are to be fetched."""
    deliveries: DeliveryQueue
    announcements: Announcements
    backlog: Backlog
    saving: Saving | None
    """Learns which partitions have changed, where there is a cache on disk."""
    stats: Stats
    outbox: Outbox
    random: RandomSource
