"""How far a group has come in each partition: counted answer by answer, and from all that it has not settled yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.absent import Absent
from ringcast_heartbeat_agent.dispatch.intake import MOST_LOOKED_AT, Intake
from ringcast_heartbeat_agent.dispatch.progress import Progress
from ringcast_heartbeat_agent.dispatch.seals import Settled
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.tally import Tally


class Settlements:
    """What is settled of the partitions that a group holds, or holds no more and has still in flight."""

    def __init__(self, source: Source, progress: Progress, intake: Intake, absent: Absent) -> None:
        self.leaving: dict[int, Tally] = {}
        """What is settled of partitions that were held, until nothing of them is in flight any more."""
        self._source = source
        self._progress = progress
        self._intake = intake
        self._absent = absent
        self._tallies: dict[int, Tally] = {}
        """What is known to be settled of each partition that was taken, at least."""
        self._dropped: defaultdict[int, set[int]] = defaultdict(set)
        """Versions that were not delivered while it was in doubt whether the partition is held."""
        self._reached: dict[int, int] = {}
        self._dirty = True
        self._applied: Mapping[int, int] = {}
        self._read = 0

    def changed(self) -> None:
        """Something has changed that seals may have to say."""
        self._dirty = True

    def settle(self, change: Change) -> None:
        """A message is settled: answered, or given up."""
        self._dirty = True
        tally = self.leaving.get(change.partition) or self._tallies.get(change.partition)
        if tally is None:
            return
        # A key has no history before its first revision: what came since is of the one that it has now.
        tally.history = tally.history or self._source.history
        if tally.history == self._source.history:
            tally.settle(change.version)

    def drop(self, change: Change) -> None:
        """A message is not delivered, since it is in doubt whether its partition is held."""
        self._dropped[change.partition].add(change.version)
        self._dirty = True

    def in_doubt(self) -> list[int]:
        """The partitions of which messages were dropped."""
        return list(self._dropped)

    def take_dropped(self, partition: int) -> tuple[int, ...]:
        """The versions that were dropped, once: they are to be read again."""
        return tuple(self._dropped.pop(partition, ()))

    def take(self, partition: int, since: Settled, *, known: bool) -> None:
        """The group delivers a partition from now on; ``known``: a seal says since when."""
        self._dirty = True  # the claim does not say how far it has come
        # Without a seal the rows that are there may still have to be delivered: nothing counts as settled.
        self._tallies[partition] = Tally(*since) if known else Tally(self._source.history, 0)

    def leave(self, partition: int, settled: Tally | None) -> None:
        """A partition that was held is another host's; ``settled``: what is settled of it, where that is known."""
        before = self._tallies[partition]
        self.leaving[partition] = before if settled is None else settled.extended(before)

    def forget(self, partition: int) -> None:
        """What is known of a partition is worth nothing."""
        for known in (self._dropped, self._reached, self._tallies):
            known.pop(partition, None)

    def has_news(self) -> bool:
        """Whether :meth:`news` may have any now: not where the group has more to settle than can be looked through."""
        waiting = self._intake.waiting + len(self._absent)
        if waiting > MOST_LOOKED_AT:
            return False
        # The end of a read is news where nothing of it was to be delivered.
        is_read = self._progress.missed.done != self._read
        return self._dirty or is_read or self._source.applied() != self._applied

    def news(self, partitions: Iterable[int]) -> dict[int, Settled]:
        """What is settled of these partitions that are held, since this was called last."""
        self._dirty, self._applied, self._read = False, self._source.applied(), self._progress.missed.done
        # The worker counts a change as handed over a moment later: what is answered by then, answers alone tell.
        tallies = self._tallies
        found = {partition: tally.extended(tallies[partition]) for partition, tally in self.of(partitions).items()}
        tallies.update(found)
        return {partition: tally.settled() for partition, tally in found.items()}

    def of(self, partitions: Iterable[int]) -> dict[int, Tally]:
        """What is settled of each partition, where that is known."""
        wanted = set(partitions)
        if not wanted:
            return {}
        history, applied = self._source.history, self._source.applied()
        dropped, untaken = self._dropped, self._progress.missed.untaken
        pending = {partition: {*dropped.get(partition, ()), *untaken(partition)} for partition in wanted}
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
        return (message.change for message in self._intake.messages.values() if not message.gone)

    def _present(self) -> Iterable[Change]:
        changes = (self._source.change_of(row_id) for row_id in self._intake.present())
        return (change for change in changes if change is not None)
