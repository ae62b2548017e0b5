"""What a process of the simulation of exclusive ownership is made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.fence import Fence
from ringcast._protocol.sticky.leader import Leader
from ringcast._protocol.sticky.migration import Guard
from ringcast._protocol.sticky.ownership import Ownership
from ringcast._protocol.sticky.records import decode_state
from ringcast._protocol.sticky.witness import Witness, decode_gone

state_of = lru_cache(1024)(decode_state)
gone_of = lru_cache(1024)(decode_gone)
"""The same bytes are read again and again."""


@dataclass
class Machines:
    """The machines of the product; a broken variant has others."""

    fence: type[Fence] = Fence
    evidence: type[LeaseEvidence] = LeaseEvidence
    leader: type[Leader] = Leader
    ownership: type[Ownership] = Ownership
    witness: type[Witness] = Witness
    guard: type[Guard] = Guard
    is_compared: bool = True
    is_validated: bool = True
