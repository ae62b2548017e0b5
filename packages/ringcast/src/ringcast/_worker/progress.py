"""Reports events whose rows are still with the application as in progress, so that they are not delivered again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from ringcast._bus.bus import Bus
from ringcast._worker.session import KeySession

_SHARE_OF_ACK_WAIT: Final = 3
"""An event is reported between a third and two thirds of ``ack_wait_s`` after it came, or after its last report."""
_AT_ONCE: Final = 256


async def report_progress(bus: Bus, sessions: Mapping[str, KeySession], ack_wait_s: float) -> None:
    """Reports, until cancelled, which events are being worked on; those that are done quickly are never among them.

    The worker has the changes of these events, so another delivery would be of no use.
    """
    before: set[str] = set()
    while True:
        await asyncio.sleep(ack_wait_s / _SHARE_OF_ACK_WAIT)
        now = set(_unacknowledged(sessions))
        late = [*(before & now)]
        for at in range(0, len(late), _AT_ONCE):
            await bus.acks.report_progress(late[at : at + _AT_ONCE])
        before = now


def _unacknowledged(sessions: Mapping[str, KeySession]) -> Iterator[str]:
    for session in sessions.values():
        for partition in session.machine.partitions.values():
            yield from partition.unacknowledged
