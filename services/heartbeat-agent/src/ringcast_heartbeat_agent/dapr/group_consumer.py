"""Dapr subscriptions that share rows with the consumers of a group.

Dapr has no word for an acknowledgement, so the agent gives it: once an update is with the connection (gRPC), or the
application has answered its callback with 200 (HTTP).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from ringcast_heartbeat_agent.dapr.items import item_of
from ringcast_heartbeat_agent.dapr.subscription import Subscription
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery
from ringcast_heartbeat_agent.dispatch.group import Group
from ringcast_heartbeat_agent.errors import StoppedError

GROUP: Final = "ringcast.group"
"""Name in the metadata of a subscription: the group to share rows with."""
ROUTING_KEY: Final = "ringcast.routing_key"
"""And what the group keeps rows in order by, as all its consumers say it. Without it each row by itself."""
CONSUMER: Final = "ringcast.consumer"
"""And the name to take part under; it decides which rows come. Without it the subscription's id."""


class DaprConsumer:
    """A consumer whose deliveries are the updates of a subscription."""

    def __init__(self, subscription: Subscription, group: Group, consumer: ConsumerSession) -> None:
        self._subscription = subscription
        self._group = group
        self._consumer = consumer

    async def run(self) -> None:
        """Hands deliveries over until either ends, or until cancelled, when the subscriber has gone."""
        alive = asyncio.create_task(self._stay_alive())
        try:
            async for frame in self._consumer.frames():
                for delivery in frame.deliveries:
                    change = delivery.change
                    answer = partial(self._answer, delivery)
                    self._subscription.offer(change.key, change.row_id, item_of(change), answer=answer)
                self._group.sent(self._consumer, len(frame.deliveries))
        except StoppedError as error:
            self._subscription.end(error)
        finally:
            alive.cancel()
            if not self._consumer.ended:
                self._group.leave(self._consumer)
            if not self._consumer.ended:  # it has not answered everything, and will not: others get that now
                self._group.detach(self._consumer)

    async def _stay_alive(self) -> None:
        """While the connection or the patience with callbacks lasts, the subscriber lives: it can't say so itself."""
        while True:
            self._group.seen(self._consumer)
            await asyncio.sleep(self._group.evict_after_s / 4)

    def _answer(self, delivery: Delivery, why_not: str) -> None:
        offset, attempt = delivery.offset, delivery.attempt
        if why_not:
            self._group.answer(self._consumer, [], [], [(offset, attempt, why_not)])
        else:
            self._group.answer(self._consumer, [offset], [attempt])
