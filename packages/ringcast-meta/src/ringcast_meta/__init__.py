"""Small shared state of a cluster: compare-and-set, watches and leases, whatever server keeps it.

:class:`MetadataStore` is the seam. Behind it are :class:`MemoryStore` here, and
``ringcast_meta.nats_kv.NatsKvStore`` and ``ringcast_meta.etcd.EtcdStore``, each with an extra of its own.
"""

from __future__ import annotations

from ringcast_meta import _limits as limits
from ringcast_meta._cache import LocalCache
from ringcast_meta._lease import Lease
from ringcast_meta._memory import MemoryServer, MemoryStore
from ringcast_meta._open import check_address, open_store
from ringcast_meta._options import StoreOptions
from ringcast_meta._store import MetadataStore
from ringcast_meta._types import Change, Entry, Progress, Snapshot, WatchEvent
from ringcast_meta._watch import Watch

__all__ = [
    "Change",
    "Entry",
    "Lease",
    "LocalCache",
    "MemoryServer",
    "MemoryStore",
    "MetadataStore",
    "Progress",
    "Snapshot",
    "StoreOptions",
    "Watch",
    "WatchEvent",
    "check_address",
    "limits",
    "open_store",
]
