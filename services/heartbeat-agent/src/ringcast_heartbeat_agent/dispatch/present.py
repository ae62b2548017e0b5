"""Rows that are delivered to a consumer as they are, although they have not changed: it has just come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from ringcast_heartbeat_agent.dispatch.intake import AT_ONCE, Intake
from ringcast_heartbeat_agent.dispatch.shares import Shares
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.tasks import GroupTasks


class PresentRows:
    """Looks for the rows of a consumer, a few at a time. ``offer_soon``: has what was found become messages."""

    def __init__(
        self,
        source: Source,
        intake: Intake,
        shares: Callable[[], Shares],
        tasks: GroupTasks,
        offer_soon: Callable[[], None],
    ) -> None:
        self._source = source
        self._intake = intake
        self._shares = shares
        self._tasks = tasks
        self._offer_soon = offer_soon
        self._looking: set[asyncio.Task[None]] = set()

    @property
    def looking(self) -> bool:
        """Whether some are still being looked for: what is to be delivered is not known."""
        return bool(self._looking)

    def deliver(
        self, wanted: Mapping[str, Collection[int] | None], is_read: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Has the consumers of these names get their rows of these partitions each, or of all.

        A row for which ``is_read`` is true is passed over: it is read as a change, and would come twice.
        """
        shares = self._shares()
        for name, partitions in wanted.items():
            looking = self._tasks.spawn(self._look(name, shares, self._source.row_ids(partitions), is_read))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)

    async def _look(self, name: str, shares: Shares, row_ids: list[str], is_read: Callable[[str], bool]) -> None:
        """If the consumer has gone meanwhile, others get the rows."""
        for start in range(0, len(row_ids), AT_ONCE):
            some = [row_id for row_id in row_ids[start : start + AT_ONCE] if not is_read(row_id)]
            theirs = (row_id for row_id, owner in zip(some, shares.owners(some), strict=True) if owner == name)
            self._intake.deliver_present(theirs, name)
            self._offer_soon()
            await asyncio.sleep(0)
