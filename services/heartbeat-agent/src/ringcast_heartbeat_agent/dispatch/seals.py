"""Which partitions of a group this host holds, and what its seals are to say: decisions alone, without I/O or a clock.

A **seal** is the record of a partition in the bucket of groups: how far the group has come there, and which process
delivers the partition now. A partition goes through these states::

    own ──▶ ASKED ──▶ CLAIMING ──▶ HELD ──▶ LEAVING ──▶ gone
              ▲ ▼          │         │
            WAITING ◀──────┴─────────┘  another process has it

Each write is a compare-and-set on what was read or written last. So of two hosts that claim a partition one gets it,
and a process that was paused for longer than its lease finds its next write refused: it holds the partition no more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec
from ringcast_wire import GroupSeal, limits

LOOK_S: Final = 0.5
"""How often it is looked whether another host has given a partition up."""
SETTLE_S: Final = 0.1
"""At most one seal of a partition in so long says how far the group has come."""
RENEW_S: Final = 86_400.0
"""After so long a seal that says nothing new is written again: the bucket forgets old ones."""


class Settled(NamedTuple):
    """How far a group has come: every change up to ``revision`` is settled, but for the versions of ``pending``."""

    history: str
    revision: int
    pending: tuple[int, ...] = ()

    @classmethod
    def bounded(cls, history: str, revision: int, pending: Iterable[int]) -> Settled:
        """As much of it as a seal can say: it stops before the first version that has no room. It is never ahead."""
        below = sorted({version for version in pending if version <= revision})
        if len(below) > limits.MAX_SEAL_PENDING:
            revision = below[limits.MAX_SEAL_PENDING] - 1
            del below[limits.MAX_SEAL_PENDING :]
        return cls(history, revision, tuple(below))

    @classmethod
    def of(cls, seal: GroupSeal) -> Settled:
        """What a seal says."""
        return cls(seal.history, seal.revision, seal.pending)


class Hold(Enum):
    """What this host has of a partition."""

    ASKED = auto()  # what its seal says is to be read
    WAITING = auto()  # a process that lives holds it
    CLAIMING = auto()  # a seal that names this process is to be written
    HELD = auto()
    LEAVING = auto()  # it is another host's: what is in flight here is awaited, then the last seal is written


class Write(NamedTuple):
    """A seal to write, if its key is at revision ``last``."""

    partition: int
    seal: GroupSeal
    last: int


class Outcome(Enum):
    """What has come of a partition."""

    NONE = auto()
    TAKEN = auto()  # the group goes on from what its seal said
    RESUMED = auto()  # nobody had it meanwhile
    LOST = auto()  # another process has it, or the seal was reset: what this group knows of it is worth nothing


class _Partition:
    __slots__ = (
        "again",
        "due",
        "found",
        "known",
        "revision",
        "said",
        "said_at",
        "sent",
        "state",
        "unsure",
        "wanted",
        "was_held",
    )

    def __init__(self, due: float) -> None:
        self.state = Hold.ASKED
        self.due = due
        """When to read it next."""
        self.revision = 0
        """Of the record, as it was read or written last."""
        self.found: GroupSeal | None = None
        """What the group goes on from."""
        self.known = False
        """Whether a seal said so."""
        self.said: GroupSeal | None = None
        """What was written last."""
        self.said_at = 0.0
        self.wanted: GroupSeal | None = None
        """What is to be written."""
        self.was_held = False
        """Whether this group has delivered it."""
        self.sent = False
        """Whether a seal that names this process may have been written."""
        self.unsure = False
        """Whether the record is another than was thought, while the partition is given up: it is read again."""
        self.again = False
        """It is this host's again, while it is being given up."""

    def write(self, number: int) -> Write:
        """What is wanted, as the next write."""
        assert self.wanted is not None
        self.sent = self.sent or bool(self.wanted.holder)
        return Write(number, self.wanted, self.revision)


class _Process(NamedTuple):
    """This process, as a seal names it."""

    holder: str
    lease: str

    def seal(self, settled: Settled) -> GroupSeal:
        """A seal that says so, with this process as its holder."""
        return GroupSeal(
            history=settled.history,
            revision=settled.revision,
            pending=settled.pending,
            holder=self.holder,
            lease=self.lease,
        )


class _Partitions(dict[int, _Partition]):
    """The partitions of a group by number."""

    def gone(self, number: int, one: _Partition) -> None:
        """A partition is given up; one that is this host's again begins as a new one."""
        del self[number]
        if one.again:
            self[number] = _Partition(0.0)


class Seals:
    """The partitions of one group, with what is to be read and written. ``holder`` and ``lease`` name this process."""

    def __init__(self, holder: str, lease: str) -> None:
        self._partitions = _Partitions()
        process = _Process(holder, lease)
        self.reads = SealReads(self._partitions, process)
        self.writes = SealWrites(self._partitions, process)

    # ---- what there is

    def is_held(self, partition: int) -> bool:
        """Whether the group may deliver rows of a partition."""
        one = self._partitions.get(partition)
        return one is not None and one.state is Hold.HELD

    def is_taken(self, partition: int) -> bool:
        """Whether the group takes changes of a partition in: it holds it, or did as far as it knows."""
        one = self._partitions.get(partition)
        return one is not None and one.was_held and one.state is not Hold.LEAVING

    def was_held(self, partition: int) -> bool:
        """Whether it is known here how far the group had come when this process wrote the seal last."""
        one = self._partitions.get(partition)
        return one is not None and one.was_held

    def held(self) -> list[int]:
        """The partitions that it may deliver."""
        return self._of(Hold.HELD)

    def waiting(self) -> list[int]:
        """Those that another process holds, or that no seal was read of yet."""
        awaited = (Hold.ASKED, Hold.WAITING, Hold.CLAIMING)
        return [number for number, one in self._partitions.items() if one.state in awaited or one.again]

    def leaving(self) -> list[int]:
        """Those that are being given up."""
        return self._of(Hold.LEAVING)

    def __len__(self) -> int:
        return len(self._partitions)

    def _of(self, *states: Hold) -> list[int]:
        return [number for number, one in self._partitions.items() if one.state in states]

    # ---- what the host owns

    def own(self, partitions: Iterable[int], now: float) -> None:
        """These partitions are the host's, some of them new."""
        for number in partitions:
            one = self._partitions.get(number)
            if one is None:
                self._partitions[number] = _Partition(now)
            elif one.state is Hold.LEAVING:
                one.again = True

    def give_up(self, partitions: Iterable[int]) -> list[int]:
        """These partitions are another host's. Returns those that were held: :meth:`release` is to follow."""
        held = []
        for number in partitions:
            one = self._partitions.get(number)
            if one is None:
                continue
            one.again = False
            if one.state is Hold.LEAVING:
                continue
            if one.was_held:
                held.append(number)
                one.state, one.wanted = Hold.LEAVING, None
            elif one.sent and one.found is not None:  # a claim that may have landed is taken back
                # Where the record was another's when it was read, only if it turns out to be this process's.
                one.unsure, one.due = one.state is Hold.WAITING, 0.0
                one.state, one.wanted = Hold.LEAVING, _given_up(Settled.of(one.found))
            else:
                del self._partitions[number]
        return held

    def release(self, partition: int, settled: Settled) -> None:
        """Nothing of a partition that was given up is in flight any more."""
        one = self._partitions.get(partition)
        if one is not None and one.state is Hold.LEAVING:
            one.wanted = _given_up(settled)

    def take_over(self, others: Seals) -> None:
        """What the group of this name that ended before in this process could not give up is given up here."""
        for number, one in others._partitions.items():
            if one.state is Hold.LEAVING and one.wanted is not None:
                one.again = False
                self._partitions[number] = one

    def clear(self) -> None:
        """There are no seals any more."""
        self._partitions.clear()


class SealReads:
    """Which seals of a group are to be read, and what follows from what was read."""

    def __init__(self, partitions: _Partitions, process: _Process) -> None:
        self._partitions = partitions
        self._process = process

    def due(self, now: float) -> list[int]:
        """The partitions whose seals are to be read now."""
        return [
            number
            for number, one in self._partitions.items()
            if one.due <= now and (one.state in (Hold.ASKED, Hold.WAITING) or one.unsure)
        ]

    def put_off(self, partitions: Iterable[int], until: float) -> None:
        """These could not be read."""
        for number in partitions:
            if (one := self._partitions.get(number)) is not None:
                one.due = max(one.due, until)

    def found(
        self, partition: int, revision: int, seal: GroupSeal | None, *, lives: bool, start: Settled, now: float
    ) -> Outcome:
        """A seal was read. ``lives``: whether its holder does; ``start``: where a group without a seal begins."""
        one = self._partitions.get(partition)
        if one is None or not (one.state in (Hold.ASKED, Hold.WAITING) or one.unsure):
            return Outcome.NONE
        ours = seal is not None and seal.holder == self._process.holder
        one.revision = revision
        if one.unsure:
            one.unsure = False
            if seal is None or not ours:
                self._partitions.gone(partition, one)
            elif not one.was_held:
                one.wanted = _given_up(Settled.of(seal))
            return Outcome.NONE
        if ours and one.was_held:
            # It is held again once it is written: another host that has seen the lease end may be about to claim it.
            one.state, one.said, one.wanted = Hold.CLAIMING, seal, seal
            return Outcome.NONE
        lost = one.was_held and seal is not None
        if lost:
            one.was_held, one.said = False, None
        if seal is not None and seal.holder and lives and not ours:
            one.state, one.due = Hold.WAITING, now + LOOK_S
        else:
            goes_on = one.said if one.was_held and one.said is not None else None
            one.found, one.known = seal or goes_on or self._process.seal(start), seal is not None
            one.state = Hold.CLAIMING
            # Rows that are to be delivered as they are count as settled once a settlement says so, and not before.
            begins = one.found if seal is not None or goes_on is not None else GroupSeal(history="", revision=0)
            one.wanted = msgspec.structs.replace(begins, holder=self._process.holder, lease=self._process.lease)
        return Outcome.LOST if lost else Outcome.NONE

    def begins_with(self, partition: int) -> tuple[Settled, bool]:
        """What the group goes on from, of a partition that was taken, and whether a seal said so."""
        one = self._partitions[partition]
        assert one.found is not None
        return Settled.of(one.found), one.known

    def checked(self, partition: int, revision: int, now: float) -> None:
        """The record of a partition that is held was read: where it is another than was written, it is read again.

        It was reset, or another process has it. A server that lags may have an older record, which says nothing.
        """
        one = self._partitions.get(partition)
        if one is not None and one.state is Hold.HELD and (revision > one.revision or revision == 0):
            one.state, one.due, one.wanted = Hold.ASKED, now, None

    def doubt(self, now: float) -> None:
        """The lease of this process may have ended: another may hold what was held here."""
        for one in self._partitions.values():
            if one.state in (Hold.HELD, Hold.CLAIMING):
                one.state, one.due, one.wanted = Hold.ASKED, now, None


class SealWrites:
    """Which seals of a group are to be written, and what follows from a write."""

    def __init__(self, partitions: _Partitions, process: _Process) -> None:
        self._partitions = partitions
        self._process = process

    def settle(self, partition: int, settled: Settled, now: float) -> None:
        """The group has come so far in a partition that it holds."""
        one = self._partitions.get(partition)
        if one is None or one.state is not Hold.HELD:
            return
        said = one.said
        if said is not None and Settled.of(said) == settled and now - one.said_at < RENEW_S:
            one.wanted = None
        else:
            one.wanted = self._process.seal(settled)

    def due(self, now: float = math.inf, most: int = 1_000, settlements: int = 1_000) -> list[Write]:
        """What is to be written now, so many at ``most``: claims and hand-overs first.

        Then up to ``settlements`` of how far the group has come, those first that were written the longest ago. The
        caller writes it, or calls :meth:`refused` or this again.
        """
        moves: list[int] = []
        settled: list[tuple[float, int]] = []
        for number, one in self._partitions.items():
            if one.wanted is None or one.unsure:
                continue
            if one.state is not Hold.HELD:
                moves.append(number)
                if len(moves) == most:
                    break
            elif now - one.said_at >= SETTLE_S:
                settled.append((one.said_at, number))
        room = min(settlements, most - len(moves))
        return [
            self._partitions[number].write(number)
            for number in moves + [each for _, each in heapq.nsmallest(room, settled)]
        ]

    def written(self, write: Write, revision: int, now: float) -> Outcome:
        """A write has succeeded."""
        one = self._partitions.get(write.partition)
        if one is None or one.revision != write.last:
            return Outcome.NONE
        one.revision, one.said, one.said_at = revision, write.seal, now
        if one.wanted is write.seal:
            one.wanted = None
        if one.state is Hold.LEAVING:
            if not write.seal.holder:
                self._partitions.gone(write.partition, one)
            return Outcome.NONE
        if one.state is not Hold.CLAIMING:
            return Outcome.NONE
        one.state = Hold.HELD
        was_held, one.was_held = one.was_held, True
        return Outcome.RESUMED if was_held else Outcome.TAKEN

    def refused(self, write: Write, now: float) -> None:
        """A compare-and-set was refused: another process has written, or an earlier write of ours landed after all.

        The seal is read again. Until then the partition is not held.
        """
        one = self._partitions.get(write.partition)
        if one is None or one.revision != write.last:
            return
        one.due = now
        if one.state is Hold.LEAVING:
            one.unsure = True
        else:
            one.state, one.wanted = Hold.ASKED, None


def _given_up(settled: Settled) -> GroupSeal:
    return GroupSeal(history=settled.history, revision=settled.revision, pending=settled.pending)
