"""Partitions of exclusive ownership in the machine of a key: held and current, and silent while they are not owned."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ringcast._protocol.deliveries import FirstDelivery
from ringcast._protocol.fetches import Fetches
from ringcast._protocol.key_context import KeyContext


class SilentPartitions:
    """Hands partitions over, and silences them again."""

    def __init__(self, context: KeyContext, fetches: Fetches) -> None:
        self._partitions = context.partitions
        self._deliveries = context.deliveries
        self._announcements = context.announcements
        self._fetches = fetches
        self._backlog = context.backlog
        self._saving = context.saving
        self._outbox = context.outbox
        self._random = context.random

    def is_current(self, number: int) -> bool:
        """Whether a partition has its rows, as an owner has them."""
        partition = self._partitions.get(number)
        return partition is not None and partition.live and not partition.replace

    def hand_over(self, tokens: Mapping[int, int]) -> None:
        """Owns partitions from now on, each with its token: the application gets what is there, then each change."""
        for number, token in tokens.items():
            self._partitions[number].receive_grant(token)
            self._deliveries.add(FirstDelivery(self._partitions[number]))
        self._announcements.add(True, frozenset(tokens))

    def adopt(self, tokens: Mapping[int, int], now: float) -> None:
        """Peers become exclusive owners. Those that have a token go on with it, undisturbed; others are silenced."""
        for number, token in tokens.items():
            self._partitions[number].receive_grant(token)
        self.silence([number for number in self._partitions if number not in tokens], now)

    def undisturbed(self) -> frozenset[int]:
        """The partitions that a peer can go on with: the application has been given their rows, or is being given."""
        return frozenset(number for number, partition in self._partitions.items() if not partition.silent)

    def drop_tokens(self) -> None:
        """Exclusive owners become peers: nothing is silent any more, and changes have no token."""
        for partition in self._partitions.values():
            partition.drop_grant()

    def hand_over_again(self) -> None:
        """Hands all rows of the owned partitions over once more: to another application."""
        for partition in self._partitions.values():
            if partition.grant and not partition.silent:  # else it is still to come
                self._deliveries.add(FirstDelivery(partition))

    def silence(self, numbers: Collection[int], now: float) -> None:
        """Owns these partitions no more. What is under way of them comes to nothing; their rows are kept current."""
        owned = [part for number in numbers if (part := self._partitions.get(number)) is not None and part.owned]
        for before in owned:
            after = self._partitions[before.number] = before.silenced(self._random, now)
            self._outbox.ack(before.give_up())
            self._backlog.count(before)
            self._backlog.count(after)
            if self._saving is not None:
                self._saving.changed(after)
        if owned:
            silenced = [self._partitions[before.number] for before in owned]
            self._fetches.give_up_lost()
            self._fetches.begin([part for part in silenced if part.filtered], now, whole_key=False)
            self._announcements.add(False, frozenset(part.number for part in owned))
