"""Who takes part in a config key, read from what the buckets of nodes and leases hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ringcast_wire import (
    EndedLeases,
    LeaseRecord,
    LimitExceededError,
    NodePhase,
    NodeRecord,
    ProtocolError,
    SlotClaim,
    decode_record,
    limits,
    names,
)

from ringcast._common.stats import Trigger

_DIGITS: Final = len(str(limits.MAX_WORKERS_PER_KEY))

T = TypeVar("T", NodeRecord, SlotClaim, LeaseRecord, EndedLeases)


class Entry(NamedTuple):
    """What a bucket says of a key: the revision that a compare-and-set has to name, and ``None`` if the key is gone."""

    revision: int
    value: bytes | None


class Mirror:
    """A copy of a bucket that a watch keeps up to date. Repeats and late arrivals do no harm."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.generation = 0
        """Counts what it took: as long as it is the same, so is what can be read here."""
        self._groups: dict[str, set[str]] = {}
        self.complete = False
        """Whether a first whole snapshot has arrived."""
        self.replaced: Callable[[], None] = lambda: None
        """Called after each whole snapshot."""
        self.heard: Callable[[str], None] = lambda _: None
        """Called with the key of each entry that comes alone."""
        self._before: dict[str, bytes] = {}
        self.unreadable = 0
        """Records that could not be read, each counted once."""
        self._unreadable: dict[str, int] = {}
        self._read: dict[str, tuple[int, Any]] = {}
        """Records as they were read, and at which revision: everything that happens is a reason to look at all."""

    def replace(self, entries: Mapping[str, Entry]) -> None:
        """Takes a whole snapshot: what it does not name is gone."""
        self.entries = dict(entries)
        self.generation += 1
        self._groups = {}
        self._read = {}
        self._unreadable = {key: at for key, at in self._unreadable.items() if key in self.entries}
        for key in self.entries:
            self._group(key)
        self.complete = True
        self._before.clear()
        self.replaced()

    def group(self, head: str) -> frozenset[str] | set[str]:
        """The keys whose first token is ``head``."""
        return self._groups.get(head, frozenset())

    def correct(self, key: str, entry: Entry | None) -> None:
        """Takes what a read has found: a marker can expire with nobody telling the watch."""
        self.generation += 1
        if entry is not None:
            self.entries[key] = entry
            self._group(key)
        elif key in self.entries:
            del self.entries[key]
            self._groups[key.partition(".")[0]].discard(key)
            self._read.pop(key, None)
            self._unreadable.pop(key, None)

    def drop(self, key: str, revision: int) -> None:
        """Takes that the entry of this revision was deleted, before the watch tells of it."""
        entry = self.entries.get(key)
        if entry is not None and entry.revision == revision:
            self.entries[key] = Entry(revision, None)
            self.generation += 1
            self._before.pop(key, None)

    def put(self, key: str, entry: Entry) -> bool:
        """Takes one entry; returns whether the key has another value now (a refreshed lease has not)."""
        held = self.entries.get(key)
        if held is not None and held.revision >= entry.revision:
            return False
        self.entries[key] = entry
        self.generation += 1
        self._group(key)
        changed = held is None or held.value != entry.value
        if changed and held is not None and held.value is not None and entry.value is not None:
            self._before[key] = held.value
        elif changed:
            self._before.pop(key, None)
        self.heard(key)
        return changed

    def get(self, key: str, kind: type[T]) -> T | None:
        """The record under a key, if there is one that can be read."""
        entry = self.entries.get(key)
        if entry is None or entry.value is None:
            return None
        at, record = self._read.get(key, (None, None))
        if at != entry.revision:
            try:
                record = decode_record(entry.value, kind)
            except ProtocolError:
                self.pass_over(key)
                record = None  # whoever wrote it is not a member that this build can know
            self._read[key] = entry.revision, record
        return record

    def before(self, key: str, kind: type[T]) -> T | None:
        """The record that the one under a key took the place of, if that was seen."""
        value = self._before.get(key)
        try:
            return decode_record(value, kind) if value is not None else None
        except ProtocolError:
            return None

    def was_other(self, key: str) -> bool:
        """Whether the record under a key took the place of one that was seen."""
        return key in self._before

    def forget_before(self) -> None:
        """Forgets what stood there before."""
        self._before.clear()

    def pass_over(self, key: str) -> None:
        """Counts the record under a key as one that makes no sense."""
        revision = self.revision(key)
        if self._unreadable.get(key) != revision:
            self._unreadable[key] = revision
            self.unreadable += 1

    def revision(self, key: str) -> int:
        """The revision to name in a compare-and-set; 0 for a key that never was."""
        entry = self.entries.get(key)
        return entry.revision if entry is not None else 0

    def _group(self, key: str) -> None:
        self._groups.setdefault(key.partition(".")[0], set()).add(key)


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


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """The slot to claim: the revision to name, whether it is ours already, and further claims of ours to drop."""

    slot: int
    revision: int
    held: bool
    surplus: tuple[int, ...] = ()


class _Records(NamedTuple):
    """What can be read of a key: claims by slot, and nodes by worker id."""

    claims: dict[int, SlotClaim]
    nodes: dict[str, NodeRecord]

    @property
    def leases(self) -> set[str]:
        """The leases that they name."""
        return {record.lease for records in (self.claims, self.nodes) for record in records.values()}


class Signed(Protocol):
    """Is told of a lease that a record names which comes alone; ``claim``: one on a slot."""

    def __call__(self, lease: str, *, claim: bool) -> None:
        """Takes it."""


def _unheard(lease: str, *, claim: bool) -> None:
    """Nobody is told."""


class Membership:
    """The two mirrors together."""

    def __init__(self) -> None:
        self.nodes = Mirror()
        self.leases = Mirror()
        self.reported: Callable[[str, Iterable[str]], None] = lambda *_: None
        """Called with the record of another worker, and the leases that it reports as ended."""
        self.signed: Signed = _unheard
        self.called: Callable[[], None] = lambda: None
        """Called when leases are to be read for another reason than that the members are others."""
        self._named: dict[str, tuple[int, frozenset[str]]] = {}
        """The leases that the records of each key name, and at which generation of the nodes."""
        self._records: dict[str, tuple[int, _Records]] = {}
        """Of each key, and at which generation of the nodes they were read: they are asked for at every wake-up."""
        self.leases.replaced = self.nodes.forget_before
        self.nodes.heard = self._heard

    @property
    def complete(self) -> bool:
        """Whether both mirrors are whole."""
        return self.nodes.complete and self.leases.complete

    def alive(self, lease: str) -> bool:
        """Whether the process that holds this lease lives."""
        entry = self.leases.entries.get(lease)
        return entry is not None and entry.value is not None

    def ended(self, lease: str) -> bool:
        """Whether it is known that nobody holds this lease any more; one that was not read yet may be either."""
        entry = self.leases.entries.get(lease)
        return entry is not None and entry.value is None

    def has_left(self, key: str, worker_id: str) -> bool:
        """Whether it is known that the record of a worker was deleted: it went, and is not only late to be back."""
        entry = self.nodes.entries.get(names.node_key(key, worker_id))
        return entry is not None and entry.value is None

    def named_before(self, keys: Iterable[str]) -> frozenset[str]:
        """Leases that records of these keys named before, where that counts: the one named now was not read yet."""
        heads = [name for key in keys for name in self.nodes.group(key)]
        return frozenset(lease for name in heads if (lease := self._counts_before(name)) is not None)

    def named(self, keys: Iterable[str]) -> frozenset[str]:
        """The leases that records of these keys name."""
        found: frozenset[str] = frozenset()
        for key in keys:
            at, leases = self._named.get(key, (-1, found))
            if at != self.nodes.generation:
                leases = frozenset(self._records_of(key).leases)
                self._named[key] = self.nodes.generation, leases
            found = found | leases if found else leases
        return found

    def _heard(self, name: str) -> None:
        """A record came alone."""
        if names.is_ended_key(name):
            told = self.nodes.get(name, EndedLeases)
            if told is not None:
                self.reported(name, told.leases)
                self.called()
        elif name.count(".") == 1:
            record = self.nodes.get(name, NodeRecord)
            if record is not None:
                self.signed(record.lease, claim=False)
        else:
            claim = self.nodes.get(name, SlotClaim) if ".slot." in name else None
            if claim is not None:
                self.signed(claim.lease, claim=True)

    def _lives(self, name: str, record: NodeRecord | SlotClaim) -> bool:
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

    def rival(self, key: str, worker_id: str, incarnation: str, leases: Collection[str]) -> NodeRecord | None:
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
        claims, nodes = self._records_of(key)
        for worker_id, node in nodes.items():
            if self._takes_part(node) and self._lives(names.node_key(key, worker_id), node):
                by_slot.setdefault(node.slot, []).append(worker_id)
        return tuple(sorted(Member(_winner(claims.get(slot), ids), slot) for slot, ids in by_slot.items()))

    def _takes_part(self, node: NodeRecord) -> bool:
        """One that joins owns nothing until its record says otherwise; one that leaves owns its share until it goes."""
        return node.phase is not NodePhase.JOINING

    def others(self, key: str, worker_id: str) -> Others:
        """The other workers of a key, by phase. One whose lease was not read yet may be about to come or to go."""
        found: dict[NodePhase, dict[str, int]] = {phase: {} for phase in NodePhase}
        for other, node in self._records_of(key).nodes.items():
            planned = node.phase is not NodePhase.ACTIVE and not self.ended(node.lease)
            if other != worker_id and (planned or self._lives(names.node_key(key, other), node)):
                found[node.phase][other] = node.slot
        active, joining = frozenset(found[NodePhase.ACTIVE]), frozenset(found[NodePhase.JOINING])
        return Others(active, joining, found[NodePhase.LEAVING])

    def trigger(self, key: str, before: tuple[Member, ...], after: tuple[Member, ...]) -> Trigger:
        """Why the members of a key are others now: who goes in order deletes the node record, who dies leaves it."""
        gone = {member.worker_id for member in before} - {member.worker_id for member in after}
        if any(self.nodes.get(names.node_key(key, worker_id), NodeRecord) is not None for worker_id in gone):
            return Trigger.HEARTBEAT_MISS
        return Trigger.LEAVE if gone else Trigger.JOIN

    def choose_slot(self, key: str, worker_id: str, inherited: int | None = None) -> SlotChoice:
        """The slot that a worker should have: the one of its record, else the lowest that it or nobody claims.

        ``inherited``: the slot of a worker that has left, which is better, unless another worker was faster.

        Any worker of a key can write any claim, and only its own record. So a claim keeps a slot from another worker
        while there is room, but it takes none away that a record has, and where all slots are claimed those count that
        a record stands behind.

        Raises:
            LimitExceededError: as many workers as a key may have are there already.
        """
        claims, nodes = self._records_of(key)
        mine = _slots_in(claims, worker_id)
        own = nodes.get(worker_id)
        if inherited is not None and inherited not in mine and self._is_free(key, inherited, worker_id):
            return SlotChoice(inherited, self._claim_revision(key, inherited), False, tuple(mine))
        if own is not None and own.slot not in mine and not self._is_shared(key, own.slot, worker_id):
            return SlotChoice(own.slot, self._claim_revision(key, own.slot), False, tuple(mine))
        if mine:
            slot = own.slot if own is not None and own.slot in mine else mine[0]
            return SlotChoice(slot, self._claim_revision(key, slot), True, tuple(set(mine) - {slot}))
        slot = self._free_slot(key, claims)
        return SlotChoice(slot, self._claim_revision(key, slot), False)

    def _is_shared(self, key: str, slot: int, worker_id: str) -> bool:
        """Whether the record of another live worker has the slot."""
        return any(
            other != worker_id and node.slot == slot and self._lives(names.node_key(key, other), node)
            for other, node in self._records_of(key).nodes.items()
        )

    def _is_free(self, key: str, slot: int, worker_id: str) -> bool:
        claim = self._records_of(key).claims.get(slot)
        is_claimed = claim is not None and not self.ended(claim.lease)
        return not is_claimed and not self._is_shared(key, slot, worker_id)

    def _free_slot(self, key: str, claims: Mapping[int, SlotClaim]) -> int:
        # A lease that was not read yet may live: many workers that start at once would take each other's slots.
        taken = {
            slot
            for slot, claim in claims.items()
            if claim.lease not in self.leases.entries or self._lives(names.slot_key(key, slot), claim)
        }
        if len(taken) >= limits.MAX_WORKERS_PER_KEY:
            taken = {
                node.slot
                for worker_id, node in self._records_of(key).nodes.items()
                if self._lives(names.node_key(key, worker_id), node)
            }
        if len(taken) >= limits.MAX_WORKERS_PER_KEY:
            raise LimitExceededError(
                f"key {key!r} has {len(taken)} workers: at most {limits.MAX_WORKERS_PER_KEY} are allowed"
            )
        return next(slot for slot in range(limits.MAX_WORKERS_PER_KEY) if slot not in taken)

    def slots_of(self, key: str, worker_id: str) -> list[int]:
        """The slots of a key that a worker claims, lowest first."""
        return _slots_in(self._records_of(key).claims, worker_id)

    def _claim_revision(self, key: str, slot: int) -> int:
        return self.nodes.revision(names.slot_key(key, slot))

    def _records_of(self, key: str) -> _Records:
        at, records = self._records.get(key, (-1, None))
        if records is None or at != self.nodes.generation:
            records = self._read_records(key)
            self._records[key] = self.nodes.generation, records
        return records

    def _read_records(self, key: str) -> _Records:
        records = _Records({}, {})
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


def strays(nodes: Mirror, lease: str, living: Collection[tuple[str, str]]) -> list[tuple[str, int]]:
    """The records that name a host's lease and belong to no worker that lives there: name and revision, members first.

    ``living``: config key and worker id of each that does.
    """
    found: list[tuple[str, int]] = []
    claims: list[tuple[str, int]] = []
    for name, entry in nodes.entries.items():
        if names.is_ended_key(name):
            continue
        key, _, rest = name.partition(".")
        if "." in rest:
            claim = nodes.get(name, SlotClaim)
            if claim is not None and claim.lease == lease and (key, claim.worker_id) not in living:
                claims.append((name, entry.revision))
        else:
            node = nodes.get(name, NodeRecord)
            if node is not None and node.lease == lease and (key, rest) not in living:
                found.append((name, entry.revision))
    return found + claims


def _process(record: NodeRecord | SlotClaim) -> str:
    """Whose record it is, as far as it says."""
    return record.incarnation if isinstance(record, NodeRecord) else record.worker_id


def _winner(claim: SlotClaim | None, worker_ids: list[str]) -> str:
    return claim.worker_id if claim is not None and claim.worker_id in worker_ids else min(worker_ids)


def _slot_of(rest: str) -> int | None:
    """The slot of a claim's name, without the key."""
    number = rest.removeprefix("slot.")
    is_slot = number != rest and number.isascii() and number.isdigit() and len(number) <= _DIGITS
    return int(number) if is_slot else None


def _slots_in(claims: Mapping[int, SlotClaim], worker_id: str) -> list[int]:
    return sorted(slot for slot, claim in claims.items() if claim.worker_id == worker_id)
