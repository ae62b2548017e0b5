"""What a message costs an agent in CPU time: from its worker's handler to a consumer's connection, and the answer.

Usage: python -m benchmarks.agent_messages [ROUNDS]. The worker and gRPC's transport are left out: changes are made
here, and what goes over a connection is encoded and decoded as for one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, cast

from ringcast import Change
from ringcast_core import row_partitions
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.group import Group, GroupContext
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.dispatch.transport import requested, responses
from ringcast_testkit.dispatch import OwnsAll
from ringcast_wire.dispatch import pb

CONSUMERS = 8
PARTITIONS = 256
MESSAGES = 40_000


class Left:
    """How many messages are still to be settled."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.none = asyncio.Event()

    def less(self, count: int) -> None:
        """So many have been."""
        self._count -= count
        if self._count == 0:
            self.none.set()


class _Consumer:
    """Takes everything and acknowledges it. Its own part of the time is not the agent's."""

    def __init__(self, group: Group, consumer: ConsumerSession, left: Left) -> None:
        self._group = group
        self._consumer = consumer
        self._left = left
        self.own_s = 0.0

    async def run(self) -> None:
        async for frame in self._consumer.frames():
            for response in responses(frame, self._group):
                sent = response.SerializeToString()
                answers = self._answers(sent)
                await asyncio.sleep(0)
                requested(pb.ConsumeRequest.FromString(answers), self._group, self._consumer)
            self._group.sent(self._consumer, len(frame.deliveries))
            self._left.less(len(frame.deliveries))

    def _answers(self, sent: bytes) -> bytes:
        began_s = time.process_time()
        told = pb.ConsumeResponse.FromString(sent).deliveries.deliveries
        answers = pb.Answers(done_offsets=[each.offset for each in told], done_attempts=[each.attempt for each in told])
        found = pb.ConsumeRequest(answers=answers).SerializeToString()
        self.own_s += time.process_time() - began_s
        return found


async def measure(messages: int, at_once: int) -> float:
    """Microseconds of CPU time a message; ``at_once`` come in one turn of the event loop."""
    row_ids = [f"row-{number}" for number in range(messages)]
    partitions = row_partitions(row_ids, PARTITIONS)
    changes = [
        Change("s", "k", partition, row_id, "v" * 100, 1, committed_at_ms=1)
        for row_id, partition in zip(row_ids, partitions, strict=True)
    ]
    async with asyncio.TaskGroup() as tasks:
        around = GroupContext(Config(), tasks.create_task, cast(Any, None))
        group = KeySharedGroup(OwnsAll("k"), "g", around, "drop")
        consumers, left = [], Left(messages)
        for number in range(CONSUMERS):
            consumer, _ = group.join(f"c{number}", (), capacity=0, changes_only=True, session="", api="stream")
            consumers.append(_Consumer(group, consumer, left))
        running = [tasks.create_task(each.run()) for each in consumers]
        began_s = time.process_time()
        for start in range(0, messages, at_once):
            for change in changes[start : start + at_once]:
                group.take(change)
            await asyncio.sleep(0)
        await left.none.wait()
        took_s = time.process_time() - began_s - sum(each.own_s for each in consumers)
        assert group.counts()["acked"] == messages
        group.close()
        for task in running:
            task.cancel()
    return took_s / messages * 1e6


def main(rounds: int = 7) -> None:
    """Prints the best of some rounds."""
    for at_once in (1, 64):
        best = min(asyncio.run(measure(MESSAGES, at_once)) for _ in range(rounds))
        print(f"{at_once} at once: {best:.1f} µs a message")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
