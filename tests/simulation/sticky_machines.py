"""What a process of the simulation of exclusive ownership is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.fence import Fence, FenceTimes
from ringcast._protocol.sticky.leader import Leader, LeaderTimes
from ringcast._protocol.sticky.migration import Guard
from ringcast._protocol.sticky.ownership import Ownership
from ringcast._protocol.sticky.succession import Succession
from ringcast._protocol.sticky.witness import Witness
from ringcast_wire import names
from ringcast_wire.ended_sessions import Span, believed, decode_gone
from ringcast_wire.owner_records import State, Table, decode_state, decode_table, decode_term

KEY = "list"
HOSTS = ("h0", "h1")
PARTITIONS = 7
TIMES = FenceTimes(10_000, 500)
LEADER_TIMES = LeaderTimes(prepare_s=8.0, passed_over_s=20.0)

state_of = lru_cache(1024)(decode_state)
term_of = lru_cache(1024)(decode_term)
table_of = lru_cache(1024)(partial(decode_table, partitions=PARTITIONS))
gone_of = lru_cache(1024)(decode_gone)
"""The same bytes are read again and again."""


def table_among(nodes: Mapping[str, tuple[int, bytes]]) -> Table | None:
    """The table of the key, if it is among these records."""
    name = names.table_key(KEY)
    return table_of(nodes[name][1]) if name in nodes else None


def states_among(nodes: Mapping[str, tuple[int, bytes]]) -> dict[str, State]:
    """The states of the key by worker."""
    prefix = names.state_key(KEY, "")
    return {name.removeprefix(prefix): state_of(value) for name, (_, value) in nodes.items() if name.startswith(prefix)}


def gone_among(nodes: Mapping[str, tuple[int, bytes]], states: Mapping[str, State]) -> dict[str, Span]:
    """The sessions whose processes have ended, by worker, as far as agents say so and are believed."""
    found = {host: nodes[name] for host in HOSTS if (name := names.gone_key(KEY, host)) in nodes}
    return believed({host: gone_of(value, at) for host, (at, value) in found.items()}, states) if found else {}


@dataclass
class Machines:
    """The machines of the product; a broken variant has others."""

    fence: type[Fence] = Fence
    evidence: type[LeaseEvidence] = LeaseEvidence
    leader: type[Leader] = Leader
    ownership: type[Ownership] = Ownership
    witness: type[Witness] = Witness
    guard: type[Guard] = Guard
    succession: type[Succession] = Succession
    is_compared: bool = True
    is_validated: bool = True
    counts_left: bool = True
    """Whether a registration that an agent has deleted counts as long as the end of its process was not seen."""
    knows_its_own: bool = True
    """Whether a process tells the state of its session from one that another process of its id has written."""
    waits_for_step: bool = True
    """Whether a process that starts while the step is lost waits for it."""
