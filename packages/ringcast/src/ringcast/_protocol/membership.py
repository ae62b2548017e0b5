"""The workers that take part in a config key, as the buckets of nodes and leases have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ringcast_wire import EndedLeases, NodePhase, NodeRecord, SlotClaim, limits, names

from ringcast._common.stats import Trigger
from ringcast._protocol.kv_mirror import KvMirror

_DIGITS: Final = len(str(limits.MAX_WORKERS_PER_KEY))


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A live worker that takes part in a key."""

    worker_id: str
    slot: int


@dataclass(frozen=True, slots=True)
class Others:
    """The workers of a key but for one, as far as none of them is known to be dead; with slots where these matter."""

    active: frozenset[str]
    joining: frozenset[str]
    leaving: Mapping[str, int]

    @property
    def serve(self) -> bool:
        """Whether any of them owns partitions."""
        return bool(self.active or self.leaving)

    @property
    def all(self) -> frozenset[str]:
        """All of them."""
        return self.active | self.joining | self.leaving.keys()


class Records(NamedTuple):
    """What can be read of a key: claims by slot, and nodes by worker id."""

    claims: dict[int, SlotClaim]
    nodes: dict[str, NodeRecord]

    @property
    def leases(self) -> set[str]:
        """The leases that they name."""
        return {record.lease for records in (self.claims, self.nodes) for record in records.values()}


class MembershipObserver(Protocol):
    """Decides which leases to read, as the membership notifies it."""

    def records_replaced(self) -> None:
        """There is a new snapshot of all records."""

    def ends_reported(self, reporter: str, leases: Iterable[str], /) -> None:
        """The record of another worker, ``reporter``, says that these leases have ended."""

    def lease_named(self, lease: str, *, claim: bool) -> None:
        """A record that names this lease was written; ``claim``: one on a slot."""


class Membership:
    """The two mirrors together."""

    def __init__(self) -> None:
        self.nodes = KvMirror()
        self.leases = KvMirror()
        self._observer: MembershipObserver | None = None
        self.on_leases_due: Callable[[], None] = lambda: None
        """Called when leases are to be read although the members are the same."""
        self._named: dict[str, tuple[int, frozenset[str]]] = {}
        """The leases that the records of each key name, and at which generation of the nodes."""
        self._records: dict[str, tuple[int, Records]] = {}
        """Of each key, and at which generation of the nodes they were read: they are needed at every wake-up."""
        self.leases.on_snapshot = self.nodes.forget_before
        self.nodes.on_entry = self._entry_changed

    def observe(self, observer: MembershipObserver) -> None:
        """Notifies ``observer`` from now on."""
        self._observer = observer
        self.nodes.on_snapshot = observer.records_replaced

    @property
    def complete(self) -> bool:
        """Whether both mirrors are whole."""
        return self.nodes.complete and self.leases.complete

    def alive(self, lease: str) -> bool:
        """Whether the process that holds this lease lives."""
        entry = self.leases.entries.get(lease)
        return entry is not None and entry.value is not None

    def ended(self, lease: str) -> bool:
        """Whether this lease is known to have ended; one that was not read yet may be alive or not."""
        entry = self.leases.entries.get(lease)
        return entry is not None and entry.value is None

    def has_left(self, key: str, worker_id: str) -> bool:
        """Whether the record of a worker is known to be deleted: it has left, and is not only late to be back."""
        entry = self.nodes.entries.get(names.node_key(key, worker_id))
        return entry is not None and entry.value is None

    def named_before(self, keys: Iterable[str]) -> frozenset[str]:
        """Leases that records of these keys named before, where that counts: the one named now was not read yet."""
        records = [name for key in keys for name in self.nodes.group(key)]
        return frozenset(lease for name in records if (lease := self._counts_before(name)) is not None)

    def named(self, keys: Iterable[str]) -> frozenset[str]:
        """The leases that records of these keys name."""
        found: frozenset[str] = frozenset()
        for key in keys:
            at, leases = self._named.get(key, (-1, found))
            if at != self.nodes.generation:
                leases = frozenset(self.records_of(key).leases)
                self._named[key] = self.nodes.generation, leases
            found = found | leases if found else leases
        return found

    def _entry_changed(self, name: str) -> None:
        """A record came by itself, and not with a snapshot."""
        if names.is_ended_key(name):
            report = self.nodes.get(name, EndedLeases)
            if report is not None and self._observer is not None:
                self._observer.ends_reported(name, report.leases)
                self.on_leases_due()
        elif name.count(".") == 1:
            record = self.nodes.get(name, NodeRecord)
            if record is not None and self._observer is not None:
                self._observer.lease_named(record.lease, claim=False)
        else:
            claim = self.nodes.get(name, SlotClaim) if ".slot." in name else None
            if claim is not None and self._observer is not None:
                self._observer.lease_named(claim.lease, claim=True)

    def lives(self, name: str, record: NodeRecord | SlotClaim) -> bool:
        """Whether the process behind a record lives.

        A live worker can change from its own lease to its host's, or back. The two buckets are watched apart, so that
        the record may come before the lease that it names: until that is seen, the lease named before counts. A lease
        that was seen to end is not unseen, and a snapshot of the leases shows every one that lives.
        """
        if self.alive(record.lease) or record.lease in self.leases.entries:
            return self.alive(record.lease)
        before = self._counts_before(name)
        return before is not None and self.alive(before)

    def _counts_before(self, name: str) -> str | None:
        """The lease that the record under a name named before, as long as the one that it names now was not read."""
        if not self.nodes.was_other(name):
            return None
        record: NodeRecord | SlotClaim | None
        before: NodeRecord | SlotClaim | None
        if name.count(".") > 1:
            record, before = self.nodes.get(name, SlotClaim), self.nodes.before(name, SlotClaim)
        else:
            record, before = self.nodes.get(name, NodeRecord), self.nodes.before(name, NodeRecord)
        if record is None or before is None or record.lease in self.leases.entries:
            return None
        return before.lease if _process(before) == _process(record) else None

    def duplicate_worker(
        self, key: str, worker_id: str, incarnation: str, leases: Collection[str]
    ) -> NodeRecord | None:
        """The record of another live process that takes part under this worker's id, if there is one.

        ``leases`` are the worker's: its own if it has it, and its host's, whose agent lets only one process have an id.
        """
        node = self.nodes.get(names.node_key(key, worker_id), NodeRecord)
        if node is None or node.incarnation == incarnation or node.lease in leases or not self.alive(node.lease):
            return None
        return node

    def members(self, key: str) -> tuple[Member, ...]:
        """The live members of a key, by worker id. One that joins is none yet, and one that leaves still is.

        Of two that say they have the same slot, the one whose claim on it stands is a member, else the one with the
        lower id: every worker that sees the same buckets comes to the same members.
        """
        by_slot: dict[int, list[str]] = {}
        claims, nodes = self.records_of(key)
        for worker_id, node in nodes.items():
            if self._takes_part(node) and self.lives(names.node_key(key, worker_id), node):
                by_slot.setdefault(node.slot, []).append(worker_id)
        return tuple(sorted(Member(_winner(claims.get(slot), ids), slot) for slot, ids in by_slot.items()))

    def _takes_part(self, node: NodeRecord) -> bool:
        """One that joins owns nothing until its record says otherwise; one that leaves owns its share until it goes."""
        return node.phase is not NodePhase.JOINING

    def others(self, key: str, worker_id: str) -> Others:
        """The other workers of a key, by phase. One whose lease was not read yet may be about to come or to go."""
        found: dict[NodePhase, dict[str, int]] = {phase: {} for phase in NodePhase}
        for other, node in self.records_of(key).nodes.items():
            planned = node.phase is not NodePhase.ACTIVE and not self.ended(node.lease)
            if other != worker_id and (planned or self.lives(names.node_key(key, other), node)):
                found[node.phase][other] = node.slot
        active, joining = frozenset(found[NodePhase.ACTIVE]), frozenset(found[NodePhase.JOINING])
        return Others(active, joining, found[NodePhase.LEAVING])

    def trigger(self, key: str, before: tuple[Member, ...], after: tuple[Member, ...]) -> Trigger:
        """Why the members of a key have changed: a worker that leaves deletes its node record, a dead one can't."""
        gone = {member.worker_id for member in before} - {member.worker_id for member in after}
        if any(self.nodes.get(names.node_key(key, worker_id), NodeRecord) is not None for worker_id in gone):
            return Trigger.HEARTBEAT_MISS
        return Trigger.LEAVE if gone else Trigger.JOIN

    def records_of(self, key: str) -> Records:
        """What the bucket of nodes has of a key; read again only after a change."""
        at, records = self._records.get(key, (-1, None))
        if records is None or at != self.nodes.generation:
            records = self._read_records(key)
            self._records[key] = self.nodes.generation, records
        return records

    def _read_records(self, key: str) -> Records:
        records = Records({}, {})
        for name in self.nodes.group(key):
            worker_id = name.removeprefix(f"{key}.")
            if "." not in worker_id:
                node = self.nodes.get(name, NodeRecord)
                if node is not None and 0 <= node.slot < limits.MAX_WORKERS_PER_KEY:
                    records.nodes[worker_id] = node
                elif node is not None:
                    self.nodes.pass_over(name)
            elif (slot := _slot_of(worker_id)) is not None and name == names.slot_key(key, slot):
                claim = self.nodes.get(name, SlotClaim)
                if claim is not None:
                    records.claims[slot] = claim
        return records


def orphaned_records(nodes: KvMirror, lease: str, living: Collection[tuple[str, str]]) -> list[tuple[str, int]]:
    """The records that name a host's lease and belong to no live worker there: name and revision, members first.

    ``living``: config key and worker id of each that does.
    """
    orphans = [each for each in records_of_lease(nodes, lease) if (each.key, each.worker_id) not in living]
    return [(each.name, each.revision) for each in sorted(orphans, key=lambda each: each.is_claim)]


class LeasedRecord(NamedTuple):
    """A record of a worker that names a lease."""

    name: str
    revision: int
    key: str
    worker_id: str
    is_claim: bool
    """Whether it is a claim on a slot, and not the worker's record."""


def records_of_lease(nodes: KvMirror, lease: str) -> Iterator[LeasedRecord]:
    """The records and claims that name a lease."""
    for name, entry in nodes.entries.items():
        if names.is_ended_key(name):
            continue
        key, _, rest = name.partition(".")
        if "." in rest:
            claim = nodes.get(name, SlotClaim)
            if claim is not None and claim.lease == lease:
                yield LeasedRecord(name, entry.revision, key, claim.worker_id, True)
        else:
            node = nodes.get(name, NodeRecord)
            if node is not None and node.lease == lease:
                yield LeasedRecord(name, entry.revision, key, rest, False)


def _process(record: NodeRecord | SlotClaim) -> str:
    """The process that a record belongs to, as far as it says."""
    return record.incarnation if isinstance(record, NodeRecord) else record.worker_id


def _winner(claim: SlotClaim | None, worker_ids: list[str]) -> str:
    return claim.worker_id if claim is not None and claim.worker_id in worker_ids else min(worker_ids)


def _slot_of(rest: str) -> int | None:
    """The slot of a claim's name, without the key."""
    number = rest.removeprefix("slot.")
    is_slot = number != rest and number.isascii() and number.isdigit() and len(number) <= _DIGITS
    return int(number) if is_slot else None
