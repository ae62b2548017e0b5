"""Messages of a group that failed: why, what becomes of them, and their dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ringcast import Change
from ringcast_wire import EventLog, ReplayOutcome

from ringcast_heartbeat_agent.dispatch.dead_letters import GroupDeadLetters
from ringcast_heartbeat_agent.dispatch.replays import GroupReplays

log = EventLog(logging.getLogger(__name__))

_REASON_CHARS: Final = 512
_DEAD_LETTERS_AT_ONCE: Final = 8


class Failures:
    """Why messages of one group failed, by offset, until they are settled.

    Args:
        group: the group's name, as dead letters give it.
        title: the group as log lines and errors name it.
        worker_id: the agent's worker of the config key.
        replays: the replays of the group, which are answered when their message has failed for good.
    """

    def __init__(
        self, group: str, title: str, worker_id: str, dead_letters: GroupDeadLetters, replays: GroupReplays
    ) -> None:
        self._group = group
        self._title = title
        self._worker_id = worker_id
        self._dead_letters = dead_letters
        self._replays = replays
        self.reasons: dict[int, str] = {}
        """Why messages failed last, by offset."""
        self._turns = asyncio.Semaphore(_DEAD_LETTERS_AT_ONCE)

    def reason(self, offset: int, default: str = "") -> str:
        """Why a message failed last."""
        return self.reasons.get(offset, default)

    def reject(self, consumer: str, reasons: Sequence[tuple[int, str]]) -> dict[int, str]:
        """Notes why a consumer rejects messages; returns the reasons before, for :meth:`restore`."""
        before = {offset: self.reasons.get(offset, "") for offset, _ in reasons}
        for offset, reason in reasons:
            self.reasons[offset] = f"rejected by {consumer}: {reason[:_REASON_CHARS]}"
        return before

    def restore(self, offset: int, before: str) -> None:
        """A rejection does not count: the reason is again what it was."""
        if before:
            self.reasons[offset] = before
        else:
            self.forget(offset)

    def time_out(self, offset: int, timeout_s: float) -> None:
        """Notes that a consumer did not answer in time."""
        self.reasons[offset] = f"not answered within {timeout_s:g} s"

    def forget(self, offset: int) -> None:
        """The message is settled."""
        self.reasons.pop(offset, None)

    def drop(self, offset: int, change: Change, deliveries: int, reason: str) -> None:
        """Logs that a message is dropped, and answers its replays."""
        log.error("message.dropped", **self._facts(offset, change, deliveries, reason))
        why = f"it failed again, and was dropped: {self.reason(offset, reason)}"
        self._replays.tell(change, ReplayOutcome.KEPT, why)

    def block(self, offset: int, change: Change, deliveries: int, reason: str) -> None:
        """Logs that a message blocks its row, and answers its replays."""
        log.error("message.blocked", **self._facts(offset, change, deliveries, reason))
        why = f"it failed again, and its row is blocked: {self.reason(offset, reason)}"
        self._replays.tell(change, ReplayOutcome.KEPT, why)

    async def publish(self, offset: int, change: Change, deliveries: int, reason: str) -> None:
        """Publishes the dead letter of a message, and answers its replays. Waits until the stream has stored it."""
        log.error("message.dead_lettered", **self._facts(offset, change, deliveries, reason))
        why = self.reason(offset, reason)
        async with self._turns:
            await self._dead_letters.publish(
                change,
                group=self._group,
                worker_id=self._worker_id,
                why=f"{self._title}: {why}",
                tries=deliveries,
                replayed=self._replays.of(change),
            )
        self._replays.tell(change, ReplayOutcome.FAILED_AGAIN, why)

    def clear(self) -> None:
        """The group has ended."""
        self.reasons.clear()

    def _facts(self, offset: int, change: Change, deliveries: int, reason: str) -> dict[str, object]:
        """The fields of a log line about a message that failed for good: not the row id, which may be a secret."""
        return {
            "group": self._title,
            "partition": change.partition,
            "version": change.version,
            "deliveries": deliveries,
            "reason": self.reason(offset, reason),
        }
