"""What the reports of the workers add up to at this moment: who owns what, and what was heard of the probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ringcast_testkit import Report

Place = tuple[str, int]
"""Config key and partition."""
_MOVES = ("assigned", "revoked", "killed", "ended", "failed")


class Mirror:
    """Follows a history as it grows; used in the thread of the event loop, fed from others."""

    def __init__(self, keys: tuple[str, ...], partitions: int, *, owners_each: int = 1) -> None:
        self._places = frozenset((key, number) for key in keys for number in range(partitions))
        self._owners: dict[Place, set[tuple[str, int]]] = {place: set() for place in self._places}
        self._owners_each = owners_each
        self._heard: dict[tuple[tuple[str, int], Place], dict[str, tuple[int, str | None]]] = {}
        self._begun: dict[tuple[tuple[str, int], Place], set[str]] = {}
        self.moves = 0
        """How often it was told of partitions that went to a worker, or from one."""
        self._grown = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def take(self, report: Report) -> None:
        """The listener for a :class:`~ringcast_testkit.History`."""
        self._loop.call_soon_threadsafe(self._take, report)

    def look(self) -> None:
        """Has who waits look again, from any thread: something that is not kept here has changed."""
        self._loop.call_soon_threadsafe(self._grown.set)

    def owned_once(self) -> bool:
        """Whether every partition has exactly one owner that lives (or as many as it should have in mode FULL)."""
        return all(len(owners) == self._owners_each for owners in self._owners.values())

    def taken_over(self, worker_id: str) -> bool:
        """Whether every partition has an owner other than this worker."""
        return all(any(owner != worker_id for owner, _ in owners) for owners in self._owners.values())

    def owned(self, worker_id: str, key: str) -> frozenset[int]:
        """The partitions of a key that a worker owns."""
        return frozenset(
            number
            for (held, number), owners in self._owners.items()
            if held == key and any(owner == worker_id for owner, _ in owners)
        )

    def owner_counts(self, key: str) -> list[int]:
        """How many owners each partition of a key has."""
        return [len(owners) for (held, _), owners in self._owners.items() if held == key]

    def heard(self, key: str, partition: int, row_id: str) -> int:
        """The highest version of a row that every owner of its partition was given; 0 without an owner."""
        return min((version for version, _ in self._given(key, partition, row_id)), default=0)

    def given(self, key: str, partition: int, row_id: str, value: str | None) -> bool:
        """Whether that value is the last of a row that every owner of its partition was given."""
        given = self._given(key, partition, row_id)
        return bool(given) and all(version > 0 and last == value for version, last in given)

    def _given(self, key: str, partition: int, row_id: str) -> list[tuple[int, str | None]]:
        place = (key, partition)
        return [self._heard.get((who, place), {}).get(row_id, (0, None)) for who in self._owners[place]]

    def at_rest(self) -> bool:
        """Whether no handler is at work with a change, or has failed with it and is to try it again."""
        return not any(self._begun.get((who, place)) for place, owners in self._owners.items() for who in owners)

    async def wait(self, condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        """Waits until a condition, looked at after each report, is true.

        Raises:
            AssertionError: it did not become true in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            raise AssertionError(f"{otherwise} within {timeout_s:g} s: {self.describe()}") from None

    def describe(self) -> str:
        """Which partitions have too few owners, or too many."""
        right = self._owners_each
        wrong = {place: sorted(owners) for place, owners in self._owners.items() if len(owners) != right}
        return f"{len(wrong)} partitions without exactly {right} owners: {dict(sorted(wrong.items())[:6])}"

    def _take(self, report: Report) -> None:
        who = (report.worker_id, report.life)
        self.moves += report.event in _MOVES
        match report.event:
            case "assigned":
                for number in report.fields["partitions"]:
                    self._owners[report.fields["key"], number].add(who)
            case "revoked":
                for number in report.fields["partitions"]:
                    place = (report.fields["key"], number)
                    self._owners[place].discard(who)
                    self._heard.pop((who, place), None)
                    self._begun.pop((who, place), None)
            case "killed" | "ended" | "failed":
                for owners in self._owners.values():
                    owners.discard(who)
            case "begun":
                self._begun.setdefault((who, _place(report)), set()).add(report.fields["row_id"])
            case "row":
                rows = self._heard.setdefault((who, _place(report)), {})
                rows[report.fields["row_id"]] = (report.fields["version"], report.fields["value"])
                self._begun.get((who, _place(report)), set()).discard(report.fields["row_id"])
        self._grown.set()


def _place(report: Report) -> Place:
    return (report.fields["key"], report.fields["partition"])
