"""The partitions of a group that this host holds, and what the group has of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.absent import Absent
from ringcast_heartbeat_agent.dispatch.intake import Intake
from ringcast_heartbeat_agent.dispatch.joiners import Joiners
from ringcast_heartbeat_agent.dispatch.present import PresentRows
from ringcast_heartbeat_agent.dispatch.progress import Progress
from ringcast_heartbeat_agent.dispatch.seal_keeper import Sealed, SealKeeper
from ringcast_heartbeat_agent.dispatch.seals import Settled
from ringcast_heartbeat_agent.dispatch.sessions import Sessions
from ringcast_heartbeat_agent.dispatch.settlements import Settlements
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.tally import Tally
from ringcast_heartbeat_agent.dispatch.window import Message

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

    def may_deliver(self, message: Message) -> bool:
        """Whether a message may be delivered now."""
        del message
        return True

    def settle(self, change: Change) -> None:
        """A message is settled."""

    def present(self, name: str, *, returns: bool) -> set[int] | None:
        """The partitions whose rows a consumer that joins gets as they are: all."""
        del name, returns
        return None

    def partitions_changed(self) -> None:
        """The host has other partitions now."""

    def close(self) -> None:
        """The group has ended."""

    def status(self) -> dict[str, Any]:
        """The part of a group's status that is about partitions."""
        why = self._why_not or "hosts of this agent do not share positions"
        return _status(why, len(self._source.applied()), 0, 0)


class Holdings:
    """Decides which changes a group takes in and delivers, by the partitions that it holds.

    It asks for a partition once the worker has loaded it, and gives it up as soon as it is another host's. A change of
    a partition that it does not hold yet is dropped: once the partition is held, what has changed since its seal is
    read, and the worker tells every later change. ``keeper_of`` makes what keeps the seals; ``discard_blocked``
    discards the messages that block rows of partitions: no delivery would ever end them.
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
        discard_blocked: Callable[[Collection[int]], None],
        keeper_of: Callable[[Sealed], SealKeeper],
        warn: Callable[[str], None],
    ) -> None:
        self._source = source
        self._progress = progress
        self._intake = intake
        self._absent = absent
        self._sessions = sessions
        self._catch_up = catch_up
        self._discard_blocked = discard_blocked
        self._warn = warn
        self._settlements = Settlements(source, progress, intake, absent)
        self._joiners = Joiners(source, present, self._is_taken)
        self._base = dict(source.applied())
        self._loaded: set[int] = set()
        """The partitions that are the host's, and that its worker has loaded."""
        self._missed: dict[int, int] = {}
        """The highest version that was dropped of a partition that was not held yet."""
        self._sealed: set[int] = set()
        """The partitions of which a seal was found."""
        self._unsealed: set[int] = set()
        """The partitions that are delivered without a seal."""
        self._keeper = keeper_of(self)

    # ---- for the group

    def is_held(self, partition: int) -> bool:
        """Whether rows of a partition may be delivered."""
        return self._keeper.is_held(partition)

    def admits(self, change: Change) -> bool:
        """Whether a change from the worker is taken in."""
        partition = change.partition
        if not self._is_taken(partition):
            self._missed[partition] = max(change.version, self._missed.get(partition, 0))
            return False
        self._settlements.changed()
        return self._progress.is_new(change)

    def may_deliver(self, message: Message) -> bool:
        """Whether a message may be delivered now. One that may not is dropped, and comes again if it is to."""
        change = message.change
        if message.gone:
            return False
        if self.is_held(change.partition):
            return True
        if self._is_taken(change.partition):
            self._settlements.drop(change)
            self._progress.missed.dropped(change)
        return False

    def settle(self, change: Change) -> None:
        """A message is settled: answered, or given up."""
        self._settlements.settle(change)
        if change.partition in self._settlements.leaving:
            self._keeper.wake()

    def present(self, name: str, *, returns: bool) -> set[int]:
        """The partitions whose rows a consumer that joins gets as they are; it gets others once they are held.

        One that ``returns``, with its memory, gets none of those whose seal says what it has had.
        """
        now = set()
        for partition in self._source.applied():
            if not self._is_taken(partition):
                self._joiners.wait(partition, name, returns=returns)
            elif not (returns and partition in self._sealed):
                now.add(partition)
        return now

    def status(self) -> dict[str, Any]:
        """The part of a group's status that is about partitions."""
        keeper, leaving = self._keeper, len(self._settlements.leaving)
        if keeper.why_not:
            return _status(keeper.why_not, len(self._loaded), 0, leaving)
        return _status("", len(keeper.held()), keeper.awaited, leaving)

    def partitions_changed(self) -> None:
        """The host has other partitions now. What has gone is given up at once: it may be back soon."""
        self._joiners.keep(self._source.applied())
        self.look()

    def close(self) -> None:
        """The group has ended: what it holds others may have, from where it has come to."""
        self._joiners.close()
        self.look()
        self._give_up(self._loaded, self._snapshot(self._loaded))
        self._release(list(self._settlements.leaving))
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
        if self._joiners.looking or not self._settlements.has_news():
            return {}
        return self._settlements.news(self._keeper.seals.held())

    def look(self) -> None:
        """Gives up partitions that have gone to other hosts, and asks for those that have come.

        It asks once the worker has loaded them. Of a row that is read before, and deleted before, nobody would tell.
        """
        loaded = set(self._source.loaded())
        if lost := self._loaded - loaded:
            self._give_up(lost, self._snapshot(lost))
            self._forget(lost)
            for partition in lost:
                self._base.pop(partition, None)
            self._keeper.wake()
        if gained := loaded - self._loaded:
            self._keeper.seals.own(gained, asyncio.get_running_loop().time())
            if self._keeper.why_not:
                self._begin_unsealed(gained)
        self._loaded = loaded
        if leaving := self._settlements.leaving:
            in_flight = set[int]().union(*(consumer.partitions_in_flight for consumer in self._sessions))
            self._release([partition for partition in leaving if partition not in in_flight])

    def acquired(self, partition: int, since: Settled, *, known: bool) -> None:
        """The group delivers a partition from now on."""
        self._settlements.take(partition, since, known=known)
        if partition in self._unsealed:
            self._unsealed.discard(partition)  # it was all the time
        else:
            self._begin(partition, since, known=known)

    def resumed(self, partition: int) -> None:
        """The group delivers a partition again, after a doubt."""
        self._settlements.changed()  # what was to be written is to be written again
        dropped = self._settlements.take_dropped(partition)
        if not dropped:
            return
        if partition in self._progress.missed:
            self._progress.missed.read_again(partition)
            return
        applied, history = self._source.applied().get(partition, 0), self._source.history
        reached = self._progress.reached(partition, applied)
        if reached is not None and self._progress.hold(partition, Settled(history, reached, dropped), current=False):
            self._catch_up()

    def lost(self, partition: int) -> None:
        """Another process has a partition."""
        self._forget([partition])

    def unsealed(self, why: str) -> None:
        """Seals can't be kept, and why; empty: they can be again."""
        self._warn(why)
        if why:
            self._begin_unsealed(self._loaded)
            for partition in self._settlements.in_doubt():
                self.resumed(partition)
        else:
            is_taken = self._keeper.seals.is_taken
            self._forget([partition for partition in self._unsealed if not is_taken(partition)])
            self._unsealed.clear()

    # ---- small

    def _give_up(self, partitions: Collection[int], settled: Mapping[int, Tally]) -> None:
        for partition in self._keeper.seals.give_up(partitions):
            self._settlements.leave(partition, settled.get(partition))

    def _is_taken(self, partition: int) -> bool:
        """Whether the group takes changes of a partition in."""
        return self._keeper.seals.is_taken(partition) or partition in self._unsealed

    def _begin_unsealed(self, partitions: Iterable[int]) -> None:
        for partition in [each for each in partitions if not self._is_taken(each)]:
            self._begin(partition, self.start(partition), known=False)
            self._unsealed.add(partition)

    def _begin(self, partition: int, since: Settled, *, known: bool) -> None:
        applied, history = self._source.applied().get(partition, 0), self._source.history
        missed = self._missed.pop(partition, 0)
        if known and not since.history:
            # The last host was killed before it could say what it had delivered: nothing is settled, of whichever
            # history. What is read since the first revision of this one has the deletions too.
            since = Settled(history, 0)
        current = (since.history, since.revision) == (history, applied) and missed <= since.revision
        if known:
            self._sealed.add(partition)
        if self._progress.hold(partition, since, current=current):
            self._catch_up()
        self._joiners.begin(partition, None if current and not since.pending else since, known=known)

    def _release(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._keeper.seals.release(partition, self._settlements.leaving.pop(partition).settled())
            self._keeper.wake()

    def _forget(self, partitions: Collection[int]) -> None:
        self._intake.forget(partitions)
        self._absent.forget(partitions)
        for partition in partitions:
            self._settlements.forget(partition)
            self._joiners.forget(partition)
            self._progress.lose(partition)
            self._sealed.discard(partition)
            self._missed.pop(partition, None)
        self._unsealed.difference_update(partitions)
        self._discard_blocked(partitions)

    def _snapshot(self, partitions: Iterable[int]) -> dict[int, Tally]:
        """What is settled of each partition, where that is known."""
        return {} if self._joiners.looking else self._settlements.of(partitions)


def _status(why_not: str, held: int, awaited: int, leaving: int) -> dict[str, Any]:
    return {
        "durable": not why_not,
        "not_durable_because": why_not,
        "partitions_held": held,
        "partitions_awaited": awaited,
        "partitions_leaving": leaving,
    }
