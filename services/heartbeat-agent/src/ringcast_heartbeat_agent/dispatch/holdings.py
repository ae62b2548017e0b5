"""The partitions of a group that this host holds, and what the group has of each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.absent import Absent
from ringcast_heartbeat_agent.dispatch.intake import MOST_LOOKED_AT, Intake
from ringcast_heartbeat_agent.dispatch.present import PresentRows
from ringcast_heartbeat_agent.dispatch.progress import Progress
from ringcast_heartbeat_agent.dispatch.seal_keeper import Sealed, SealKeeper
from ringcast_heartbeat_agent.dispatch.seals import Settled
from ringcast_heartbeat_agent.dispatch.sessions import Sessions
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.tally import Tally

_FROM_THE_BEGINNING: Final = Settled("", 0)


class HoldsAll:
    """The partitions of a group whose host delivers all that it has, whatever other hosts do."""

    def __init__(self, source: Source, progress: Progress | None, why_not: str = "") -> None:
        self._source = source
        self._progress = progress
        self._why_not = why_not

    def is_held(self, partition: int) -> bool:
        """Whether rows of a partition may be delivered."""
        del partition
        return True

    def admits(self, change: Change) -> bool:
        """Whether a change from the worker is taken in."""
        return self._progress is None or self._progress.is_new(change)

    def may_deliver(self, offset: int, change: Change) -> bool:
        """Whether a message may be delivered now."""
        del offset, change
        return True

    def is_stale(self, offset: int, change: Change) -> bool:
        """Whether a message is of an earlier time in which the partition was held."""
        del offset, change
        return False

    def settle(self, change: Change) -> None:
        """A message is settled."""

    def present(self, name: str, *, returns: bool) -> set[int] | None:
        """The partitions whose rows a consumer that joins gets as they are: all."""
        del name, returns
        return None

    def look_soon(self) -> None:
        """The host has other partitions now."""

    def close(self) -> None:
        """The group has ended."""

    def status(self) -> dict[str, Any]:
        """The part of a group's status that is about partitions."""
        why = self._why_not or "hosts of this agent do not share positions"
        return _status(why, len(self._source.applied()), 0, 0)


class Holdings:
    """Decides which changes a group takes in and delivers, by the partitions that it holds.

    A change of a partition that it does not hold yet is dropped: once the partition is held, what has changed since
    its seal is read. ``keeper_of`` makes what keeps the seals; ``let_go`` lets go of the messages of partitions that
    block their rows: no delivery would ever end them.
    """

    def __init__(
        self,
        source: Source,
        progress: Progress,
        intake: Intake,
        absent: Absent,
        sessions: Sessions,
        present: PresentRows,
        *,
        catch_up: Callable[[], object],
        let_go: Callable[[Collection[int]], None],
        keeper_of: Callable[[Sealed], SealKeeper],
        warn: Callable[[str], None],
    ) -> None:
        self._source = source
        self._progress = progress
        self._intake = intake
        self._absent = absent
        self._sessions = sessions
        self._present_rows = present
        self._catch_up = catch_up
        self._let_go = let_go
        self._warn = warn
        self._base = dict(source.applied())
        self._owned: set[int] = set()
        self._missed: dict[int, int] = {}
        """The highest version that was dropped of a partition that was not held yet."""
        self._dropped: defaultdict[int, set[int]] = defaultdict(set)
        """Versions that were not delivered while it was in doubt whether the partition is held."""
        self._stale: dict[int, int] = {}
        """Messages up to this offset are of an earlier time in which the partition was held."""
        self._reached: dict[int, int] = {}
        self._tallies: dict[int, Tally] = {}
        """What is known to be settled of each partition that was taken, at least."""
        self._leaving: dict[int, Tally] = {}
        """The same of partitions that were held, until nothing of them is in flight any more."""
        self._awaiting: defaultdict[int, dict[str, bool]] = defaultdict(dict)
        """Consumers that joined before the partition was held, and whether they have been there before."""
        self._present_soon: defaultdict[str, dict[int, Settled | None]] = defaultdict(dict)
        """The partitions that consumers are to get as they are, at the end of this turn of the event loop; and since
        when changes of each are read (``None``: none are)."""
        self._closed = False
        self._sealed: set[int] = set()
        """The partitions of which a seal was found."""
        self._unsealed: set[int] = set()
        """The partitions that are delivered without a seal."""
        self._dirty = True
        self._applied: Mapping[int, int] = {}
        self._keeper = keeper_of(self)

    # ---- for the group

    def is_held(self, partition: int) -> bool:
        """Whether rows of a partition may be delivered."""
        return self._keeper.is_held(partition)

    def admits(self, change: Change) -> bool:
        """Whether a change from the worker is taken in."""
        partition = change.partition
        if not self._keeper.is_taken(partition):
            self._missed[partition] = max(change.version, self._missed.get(partition, 0))
            return False
        self._dirty = True
        return self._progress.is_new(change)

    def may_deliver(self, offset: int, change: Change) -> bool:
        """Whether a message may be delivered now. One that may not is let go, and comes again if it is to."""
        partition = change.partition
        if self.is_stale(offset, change):
            return False
        if self.is_held(partition):
            return True
        if self._keeper.is_taken(partition):
            self._dropped[partition].add(change.version)
            self._dirty = True
        return False

    def is_stale(self, offset: int, change: Change) -> bool:
        """Whether a message is of an earlier time in which the partition was held: another host delivers its row."""
        return offset <= self._stale.get(change.partition, 0)

    def settle(self, change: Change) -> None:
        """A message is settled: answered, or given up."""
        self._dirty = True
        leaving = self._leaving.get(change.partition)
        tally = leaving or self._tallies.get(change.partition)
        if tally is not None and tally.history == self._source.history:
            tally.settle(change.version)
        if leaving is not None:
            self._keeper.wake()

    def present(self, name: str, *, returns: bool) -> set[int]:
        """The partitions whose rows a consumer that joins gets as they are; it gets others once they are held.

        One that ``returns``, with its memory, gets none of those whose seal says what it has had.
        """
        now = set()
        for partition in self._source.applied():
            if not self._keeper.is_taken(partition):
                self._awaiting[partition][name] = returns
            elif not (returns and partition in self._sealed):
                now.add(partition)
        return now

    def status(self) -> dict[str, Any]:
        """The part of a group's status that is about partitions."""
        keeper = self._keeper
        if keeper.why_not:
            return _status(keeper.why_not, len(self._owned), 0, len(self._leaving))
        return _status("", len(keeper.held()), keeper.awaited, len(self._leaving))

    def look_soon(self) -> None:
        """The host has other partitions now."""
        self._keeper.wake()

    def close(self) -> None:
        """The group has ended: what it holds others may have, from where it has come to."""
        self._closed = True
        self.look()
        self._give_up(self._owned)
        for partition, tally in self._leaving.items():
            self._release(partition, tally)
        self._leaving.clear()
        self._keeper.close()

    # ---- for the keeper

    def start(self, partition: int) -> Settled:
        """Where the group begins in a partition without a seal."""
        if partition in self._unsealed:
            found = self._snapshot([partition]).get(partition)
            if found is not None:
                return found.settled()
        saved = self._progress.saved(partition)
        if saved is not None:
            return saved
        if partition in self._base:
            return Settled(self._source.history, self._base[partition])
        return _FROM_THE_BEGINNING

    def settled(self) -> Mapping[int, Settled]:
        """How far the group has come in the partitions that it holds."""
        applied = self._source.applied()
        waiting = self._intake.waiting + len(self._absent)
        if self._looks_for_rows or waiting > MOST_LOOKED_AT or not (self._dirty or applied != self._applied):
            return {}
        self._dirty, self._applied = False, applied
        found = self._snapshot(self._keeper.seals.held())
        self._tallies.update(found)
        return {partition: tally.settled() for partition, tally in found.items()}

    def look(self) -> None:
        """Gives up partitions that have gone to other hosts, and asks for those that have come."""
        owned = set(self._source.applied())
        if lost := self._owned - owned:
            self._give_up(lost)
            self._forget(lost)
            for partition in lost:
                self._base.pop(partition, None)
        if gained := owned - self._owned:
            self._keeper.seals.own(gained, asyncio.get_running_loop().time())
            if self._keeper.why_not:
                self._begin_unsealed(gained)
        self._owned = owned
        if self._leaving:
            in_flight = set[int]().union(*(consumer.partitions_in_flight for consumer in self._sessions))
            for partition in [each for each in self._leaving if each not in in_flight]:
                self._release(partition, self._leaving.pop(partition))

    def taken(self, partition: int, since: Settled, *, known: bool) -> None:
        """The group delivers a partition from now on."""
        self._dirty = True  # the claim does not say how far it has come
        # Without a seal the rows that are there may still have to be delivered: nothing counts as settled.
        self._tallies[partition] = Tally(*since) if known else Tally(self._source.history, 0)
        if partition in self._unsealed:
            self._unsealed.discard(partition)  # it was all the time
        else:
            self._begin(partition, since, known=known)

    def resumed(self, partition: int) -> None:
        """The group delivers a partition again, after a doubt."""
        self._dirty = True  # what was to be written is to be written again
        dropped = self._dropped.pop(partition, None)
        if not dropped:
            return
        applied, history = self._source.applied().get(partition, 0), self._source.history
        reached = self._progress.reached(partition, applied)
        if reached is not None and self._progress.hold(
            partition, Settled(history, reached, tuple(dropped)), current=False
        ):
            self._catch_up()

    def lost(self, partition: int) -> None:
        """Another process has a partition."""
        self._forget([partition])

    def unsealed(self, why: str) -> None:
        """Seals can't be kept, and why; empty: they can be again."""
        self._warn(why)
        if why:
            is_taken = self._keeper.seals.is_taken
            self._begin_unsealed(each for each in self._owned if not is_taken(each) and each not in self._unsealed)
            for partition in list(self._dropped):
                self.resumed(partition)
        else:
            for partition in self._unsealed:
                if not self._keeper.seals.is_taken(partition):
                    self._forget([partition])
            self._unsealed.clear()

    # ---- small

    def _give_up(self, partitions: Collection[int]) -> None:
        settled = self._snapshot(partitions)
        for partition in self._keeper.seals.give_up(partitions):
            self._leaving[partition] = settled.get(partition) or self._tallies[partition]

    def _begin_unsealed(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._begin(partition, self.start(partition), known=False)
            self._unsealed.add(partition)

    def _begin(self, partition: int, since: Settled, *, known: bool) -> None:
        applied, history = self._source.applied().get(partition, 0), self._source.history
        missed = self._missed.pop(partition, 0)
        current = (since.history, since.revision) == (history, applied) and missed <= since.revision
        if known:
            self._sealed.add(partition)
        if self._progress.hold(partition, since, current=current):
            self._catch_up()
        read_since = None if current and not since.pending else since
        for name, returns in self._awaiting.pop(partition, {}).items():
            if not (returns and known):
                if not self._present_soon:  # of several partitions at once: a look costs more than a partition
                    asyncio.get_running_loop().call_soon(self._deliver_present)
                self._present_soon[name][partition] = read_since

    def _deliver_present(self) -> None:
        read_since: dict[int, Settled | None] = {}
        wanted: dict[str, set[int]] = {}
        for name, partitions in self._present_soon.items():
            taken = {partition: since for partition, since in partitions.items() if self._keeper.is_taken(partition)}
            wanted[name] = set(taken)
            read_since.update(taken)
        self._present_soon.clear()

        def is_read(row_id: str) -> bool:
            change = self._source.change_of(row_id)
            since = read_since.get(change.partition) if change is not None else None
            if change is None or since is None:
                return False
            news = change.version > since.revision or change.version in since.pending
            return news or since.history != self._source.history

        if not self._closed:
            self._present_rows.deliver(wanted, is_read)

    @property
    def _looks_for_rows(self) -> bool:
        """Whether it is not known now which rows are to be delivered as they are."""
        return bool(self._present_soon) or self._present_rows.looking

    def _release(self, partition: int, tally: Tally) -> None:
        self._keeper.seals.release(partition, tally.settled())
        self._keeper.wake()

    def _forget(self, partitions: Collection[int]) -> None:
        self._intake.forget(partitions)
        self._absent.forget(partitions)
        for partition in partitions:
            self._stale[partition] = self._intake.window.last
            self._progress.lose(partition)
            self._sealed.discard(partition)
            for known in (self._missed, self._dropped, self._awaiting, self._reached, self._tallies):
                known.pop(partition, None)
        self._unsealed.difference_update(partitions)
        self._let_go(partitions)

    def _snapshot(self, partitions: Iterable[int]) -> dict[int, Tally]:
        """What is settled of each partition, where that is known."""
        wanted = set(partitions)
        if self._looks_for_rows or not wanted:
            return {}
        history, applied = self._source.history, self._source.applied()
        pending: dict[int, set[int]] = {partition: set(self._dropped.get(partition, ())) for partition in wanted}
        for change in chain(self._messages(), self._intake.later(), self._absent.changes(), self._present()):
            if change.partition in wanted:
                pending[change.partition].add(change.version)
        found = {}
        for partition in wanted:
            revision = applied.get(partition, self._reached.get(partition))
            reached = self._progress.reached(partition, revision) if revision is not None else None
            if reached is not None:
                self._reached[partition] = reached
                found[partition] = Tally(history, reached, pending[partition])
        return found

    def _messages(self) -> Iterable[Change]:
        stale = self._stale
        for offset, message in self._intake.messages.items():
            if offset > stale.get(message.change.partition, 0):
                yield message.change

    def _present(self) -> Iterable[Change]:
        changes = (self._source.change_of(row_id) for row_id in self._intake.present())
        return (change for change in changes if change is not None)


def _status(why_not: str, held: int, awaited: int, leaving: int) -> dict[str, Any]:
    return {
        "durable": not why_not,
        "not_durable_because": why_not,
        "partitions_held": held,
        "partitions_awaited": awaited,
        "partitions_leaving": leaving,
    }
