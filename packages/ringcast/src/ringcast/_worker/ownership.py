"""Which partitions of a config key a worker owns, and whether their events come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ringcast_wire import RingcastError

from ringcast._common.stats import Trigger
from ringcast._delivery.handler import Applier
from ringcast._protocol.key import KeyMachine
from ringcast._worker.anti_entropy import AntiEntropy
from ringcast._worker.host import KeyHost
from ringcast._worker.journal import KeyJournal
from ringcast._worker.observer import KeyObserver
from ringcast._worker.staleness import KeyStaleness
from ringcast._worker.subjects import KeySubjects
from ringcast._worker.vitals import Vitals


class KeyOwnership:
    """Takes and gives up the partitions of one key, and has their events delivered."""

    def __init__(
        self,
        machine: KeyMachine,
        subjects: KeySubjects,
        vitals: Vitals,
        *,
        applier: Applier,
        anti_entropy: AntiEntropy,
        staleness: KeyStaleness,
        journal: KeyJournal,
        host: KeyHost,
        observer: KeyObserver,
    ) -> None:
        self.deletion: RingcastError | None = None
        """Why the key was given up: it is deleted."""
        self._machine = machine
        self._subjects = subjects
        self._vitals = vitals
        self._applier = applier
        self._anti_entropy = anti_entropy
        self._staleness = staleness
        self._journal = journal
        self._host = host
        self._observer = observer
        self._now = asyncio.get_running_loop().time

    def assign(self, partitions: frozenset[int], trigger: Trigger | None = None) -> None:
        """Takes the partitions to own from now on; without a trigger there was no rebalance (mode FULL)."""
        if self.deletion is not None or self._vitals.withdrawn:
            return
        before = frozenset(self._machine.partitions)
        self._own(partitions)
        self._vitals.assigned, self._vitals.joining = True, False
        if trigger is not None:
            self._journal.rebalanced(trigger, partitions - before, before - partitions, len(partitions))
        self._host.want(self._machine.key, self._subjects.assign(partitions))
        self._observer.pump()

    def hold(self, partitions: frozenset[int]) -> None:
        """Takes the partitions to hold from now on: silently, but for those of them that are owned."""
        if self.deletion is not None or self._vitals.withdrawn:
            return
        self._own(partitions)
        self._host.want(self._machine.key, self._subjects.assign(partitions))
        self._observer.pump()

    def take_over(self, tokens: Mapping[int, int], trigger: Trigger) -> None:
        """Owns partitions that are held, each with its token."""
        tokens = {number: token for number, token in tokens.items() if number in self._machine.partitions}
        self._machine.silent.hand_over(tokens)
        self._vitals.assigned, self._vitals.joining = True, False
        self._journal.rebalanced(trigger, frozenset(tokens), frozenset(), len(self._machine.owned()))
        self._observer.pump()

    def become_exclusive(self, tokens: Mapping[int, int]) -> None:
        """Partitions have exclusive owners from now on. Owned ones that have a token go on; the others are silenced."""
        self._applier.lose(self._machine.partitions.keys() - tokens.keys())
        self._machine.become_exclusive(tokens, self._now())
        self._observer.pump()

    def become_shared(self, partitions: frozenset[int]) -> None:
        """The peer rule gives partitions from now on, and these to this worker. What it owns of them goes on."""
        if self.deletion is not None or self._vitals.withdrawn:
            return
        kept = partitions & self._machine.silent.undisturbed()
        self._own(kept)
        self._machine.become_shared(kept)
        self.assign(partitions)

    def has_no_share(self) -> None:
        """Others own all partitions, and none is to come: the worker stands by."""
        if not self._vitals.assigned:
            self._vitals.assigned, self._vitals.joining = True, False
            self._journal.stands_by()
            self._observer.pump()

    def hand_back(self, partitions: frozenset[int], trigger: Trigger) -> None:
        """Owns partitions no more: from now on nothing of them is handed over. They are held until :meth:`hold`."""
        lost = partitions & self._machine.owned()
        self._applier.lose(partitions)
        self._machine.silent.silence(lost, self._now())
        self._journal.rebalanced(trigger, frozenset(), lost, len(self._machine.owned()))
        self._observer.pump()

    def withdraw(self, undelivered: frozenset[str]) -> None:
        """Gives all partitions up, since events of these subjects can't be had; only they are still wanted."""
        lost = frozenset(self._machine.partitions)
        self._vitals.withdrawn = True
        self._own(frozenset())
        self._host.want(self._machine.key, self._subjects.narrow(undelivered))
        self._journal.rebalanced(Trigger.LEAVE, frozenset(), lost, 0)
        self._observer.pump()

    def do_without(self, undelivered: frozenset[str]) -> bool:
        """Loads partitions although events of these subjects can't be had: their head revisions show what changes.

        Returns whether there is one more of them.
        """
        late = self._subjects.do_without(undelivered)
        self._machine.filters_ready(late, self._now())
        self._observer.pump()
        return bool(late)

    def filters_confirmed(self, subjects: frozenset[str]) -> None:
        """The server delivers these subjects, of any key."""
        if self._subjects.wanted <= subjects:
            self._vitals.works("events")
            if self._vitals.withdrawn:
                self._host.recovered(self._machine.key)
                return
        ready, compare = self._subjects.confirmed(subjects)
        if compare:
            self._anti_entropy.compare_now()
        self._machine.filters_ready(ready, self._now())
        self._observer.pump()

    def give_up(self, deletion: RingcastError) -> None:
        """The key is deleted: its partitions are revoked, and none is taken again."""
        self.deletion = deletion
        self._vitals.assigned = True
        self._own(frozenset())
        self._host.want(self._machine.key, self._subjects.narrow(frozenset()))
        self._observer.pump()

    def check_there(self) -> None:
        """Raises why the key was given up, if it was."""
        if self.deletion is not None:
            raise type(self.deletion)(str(self.deletion), field=self.deletion.field)

    def _own(self, partitions: frozenset[int]) -> None:
        self._staleness.owned(partitions)
        self._journal.owned(partitions)
        self._subjects.keep(partitions)
        self._applier.lose(self._machine.partitions.keys() - partitions)
        self._machine.assign(partitions)
