"""Consumers that join a group before it holds all partitions, and the rows that they get of each as they are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection

from ringcast_heartbeat_agent.dispatch.present import PresentRows
from ringcast_heartbeat_agent.dispatch.seals import Settled
from ringcast_heartbeat_agent.dispatch.source import Source


class Joiners:
    """Remembers which consumers wait for a partition. ``is_taken`` says whether the group takes its changes in."""

    def __init__(self, source: Source, present: PresentRows, is_taken: Callable[[int], bool]) -> None:
        self._source = source
        self._present = present
        self._is_taken = is_taken
        self._awaiting: defaultdict[int, dict[str, bool]] = defaultdict(dict)
        """Consumers that joined before the partition was held, and whether they have been there before."""
        self._soon: defaultdict[str, dict[int, Settled | None]] = defaultdict(dict)
        """The partitions that consumers are to get as they are, at the end of this turn of the event loop; and since
        when changes of each are read (``None``: none are)."""
        self._closed = False

    @property
    def looking(self) -> bool:
        """Whether it is not known now which rows are to be delivered as they are."""
        return bool(self._soon) or self._present.looking

    def wait(self, partition: int, name: str, *, returns: bool) -> None:
        """A consumer has joined, and the partition is not held yet; ``returns``: it has been here before."""
        self._awaiting[partition][name] = returns

    def begin(self, partition: int, read_since: Settled | None, *, known: bool) -> None:
        """The partition is held: those that wait get its rows; ``known``: a seal says what those that return had."""
        for name, returns in self._awaiting.pop(partition, {}).items():
            if not (returns and known):
                if not self._soon:  # of several partitions at once: a look costs more than a partition
                    asyncio.get_running_loop().call_soon(self._deliver)
                self._soon[name][partition] = read_since

    def keep(self, partitions: Collection[int]) -> None:
        """The host has no others: nobody waits for them."""
        for partition in self._awaiting.keys() - partitions:
            del self._awaiting[partition]

    def forget(self, partition: int) -> None:
        """The partition is another host's."""
        self._awaiting.pop(partition, None)

    def close(self) -> None:
        """Nothing more is delivered."""
        self._closed = True

    def _deliver(self) -> None:
        read_since: dict[int, Settled | None] = {}
        wanted: dict[str, set[int]] = {}
        for name, partitions in self._soon.items():
            taken = {partition: since for partition, since in partitions.items() if self._is_taken(partition)}
            wanted[name] = set(taken)
            read_since.update(taken)
        self._soon.clear()

        def is_read(row_id: str) -> bool:
            change = self._source.change_of(row_id)
            since = read_since.get(change.partition) if change is not None else None
            if change is None or since is None:
                return False
            news = change.version > since.revision or change.version in since.pending
            return news or since.history != self._source.history

        if not self._closed:
            self._present.deliver(wanted, is_read)
