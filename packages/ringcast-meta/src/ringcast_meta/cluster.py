"""Who is there: processes that say so, with their load, and operators who want them to drain.

A process has a :class:`Presence`, and a :class:`Drain` that does what it hears. Tools and clients read what stands in
the store, by a :class:`~ringcast_meta.LocalCache` of everything (``services.``, ``agents.`` and ``wishes.``), with
:func:`members_of`.
"""

from __future__ import annotations

from ringcast_meta._cluster_view import (
    Member,
    absent_agents,
    find_services,
    forget_wishes,
    member_named,
    members_of,
    service_addresses,
    want_active,
    want_drain,
)
from ringcast_meta._drain import Drain, Drainable
from ringcast_meta._members import (
    REPORT_S,
    STALE_S,
    TTL_S,
    AgentLoad,
    DrainWish,
    MemberKind,
    MemberRecord,
    MemberState,
    ServiceLoad,
    decode_member,
    encode_member,
    is_member_address,
    member_key,
    wish_key,
)
from ringcast_meta._presence import Presence
from ringcast_meta._report import MemberReport

__all__ = [
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
