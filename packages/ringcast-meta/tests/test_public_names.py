"""The names that others may rely on."""

from __future__ import annotations

import subprocess
import sys

import ringcast_meta
from ringcast_meta import cluster, etcd, nats_kv


def test_the_public_names_are_frozen() -> None:
    assert ringcast_meta.__all__ == [
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
    assert all(hasattr(ringcast_meta, name) for name in ringcast_meta.__all__)
    assert nats_kv.__all__ == ["NatsKvStore"]
    assert etcd.__all__ == ["EtcdLogin", "EtcdStore"]
    assert cluster.__all__ == [
        "AgentLoad",
        "Drain",
        "DrainWish",
        "Drainable",
        "Member",
        "MemberKind",
        "MemberRecord",
        "MemberReport",
        "MemberState",
        "Presence",
        "REPORT_S",
        "STALE_S",
        "ServiceLoad",
        "TTL_S",
        "absent_agents",
        "decode_member",
        "encode_member",
        "find_services",
        "forget_wishes",
        "is_member_address",
        "member_key",
        "member_named",
        "members_of",
        "service_addresses",
        "want_active",
        "want_drain",
        "wish_key",
    ]


def test_the_package_loads_neither_client() -> None:
    code = "import sys, ringcast_meta; print(sorted({'nats', 'grpc', 'aetcd'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
