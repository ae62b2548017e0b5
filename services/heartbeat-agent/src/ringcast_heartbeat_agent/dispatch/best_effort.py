"""The group without any bookkeeping: a change goes to the owner of its row, or is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringcast import Change
from ringcast_core import Router

from ringcast_heartbeat_agent.dispatch.consumer_session import Delivery, Member, size_of
from ringcast_heartbeat_agent.dispatch.group import LOSSY, Group, Rejected, Source, Surroundings, milliseconds
from ringcast_heartbeat_agent.dispatch.routing import ROWS, Routing


class LossyGroup(Group):
    """No message is answered, tried again or waited for."""

    mode = LOSSY

    def __init__(self, source: Source, name: str, around: Surroundings, routing: Routing = ROWS) -> None:
        super().__init__(source, name, around, routing)
        self._router = Router(evict_after_ms=milliseconds(around.config.evict_after_s))

    def detach(self, member: Member) -> None:
        super().detach(member)
        self.leave(member)

    def leave(self, member: Member) -> None:
        self._router.leave(member.number)
        self._forget(member.number, None)

    def answer(
        self, member: Member, offsets: Sequence[int], attempts: Sequence[int], rejected: Sequence[Rejected] = ()
    ) -> None:
        self.seen(member)

    def seen(self, member: Member) -> None:
        self._router.heartbeat(member.number, self._now())

    def sent(self, member: Member, count: int) -> None:
        self._router.taken(member.number, count, self._now())

    def take(self, change: Change) -> None:
        (number,) = self._router.route([self.routing.note(change)])
        if self.routing.crowded:
            self.routing.keep(lambda row_id: self.source.change_of(row_id) is not None)
        if number is not None:
            self.members[number].give(Delivery(0, 0, change, size_of(change)), to_be_answered=False)

    def status(self) -> dict[str, Any]:
        consumers = [
            {
                "name": member.name,
                "api": member.api,
                "connected": member.connected,
                "leaving": False,
                "filters": list(member.filters),
                "capacity": member.capacity,
                "in_flight": 0,
                "waiting": member.unsent,
            }
            for member in self.members.values()
        ]
        return {
            "store": self.source.store,
            "key": self.source.key,
            "group": self.name,
            "mode": self.mode,
            "poison_policy": "",
            "routing_key": self.routing.setting,
            "cursor": 0,
            "last": 0,
            "in_flight": 0,
            "lag": 0,
            "bytes": 0,
            "behind": 0,
            "kept": 0,
            "blocked": [],
            "counts": self._router.counts(),
            "consumers": consumers,
        }

    def counts(self) -> dict[str, int]:
        return self._router.counts()

    def _add(self, name: str, filters: Sequence[str], capacity: int, api: str) -> Member:
        number = self._router.join(name, filters, capacity=capacity, now_ms=self._now())
        member = self.members[number] = Member(number, name, filters, capacity, api)
        self._arm(self._router.next_deadline_ms)
        return member

    def _evict(self, member: Member) -> None:
        self._router.leave(member.number)
        self._forget(member.number, self._evicted())

    def _tick(self) -> None:
        for number in self._router.tick(self._now()):
            self._forget(number, self._evicted())
        self._arm(self._router.next_deadline_ms)
