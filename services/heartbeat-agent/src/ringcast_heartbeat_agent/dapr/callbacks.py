"""Updates of HTTP subscriptions: each is posted to the application, as Dapr does it."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

import aiohttp
from ringcast.hosting import METADATA_KEY, ConfigurationItem
from ringcast_wire import Backoff, EventLog
from yarl import URL

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dapr.subscription import Subscription
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_heartbeat_agent.telemetry import Measures

log = EventLog(logging.getLogger(__name__))

_TRIES: Final = 3
"""How often an update is sent to an application that answers, but not with 200."""


class CallbackSender:
    """Sends the updates of each HTTP subscription one after the other.

    An application that does not answer is tried again for ``callback_patience_s``; then it has gone, and its
    subscription ends. One that answers, but not with 200, gets an update three times, and then the next.
    """

    def __init__(self, config: Config, tasks: asyncio.TaskGroup, handlers: Handlers, measures: Measures) -> None:
        self._config = config
        self._tasks = tasks
        self._handlers = handlers
        self._measures = measures
        self._session: aiohttp.ClientSession | None = None
        self._running: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Must be called before the first subscription."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._config.callback_timeout_s),
            headers={"dapr-api-token": self._config.app_token} if self._config.app_token else {},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    def follow(self, subscription: Subscription) -> None:
        """Sends the updates of a subscription until it ends."""
        task = self._tasks.create_task(self._send_all(subscription), name=f"callbacks-{subscription.id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Lets go of what is being sent."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        if self._session is not None:
            await self._session.close()

    async def _send_all(self, subscription: Subscription) -> None:
        reason = ""
        try:
            async for batch in subscription.batches():
                for name, item in batch.items():
                    if subscription.ended:
                        break
                    if not await self._send(subscription, name, item):
                        reason = "unreachable"
                        subscription.end(
                            StoppedError(
                                f"{subscription.callback_url} did not answer for {self._config.callback_patience_s:g} s"
                            )
                        )
        except StoppedError:
            pass  # `drop` logs it: a callback can't carry an error
        finally:
            subscription.end()
            self._handlers.drop(subscription, reason)

    async def _send(self, subscription: Subscription, name: str, item: ConfigurationItem) -> bool:
        """Sends one update; ``False``: the application can't be reached."""
        loop = asyncio.get_running_loop()
        deadline, tries = loop.time() + self._config.callback_patience_s, 0
        backoff = Backoff(random.random, first_s=0.1, most_s=5.0)
        while not subscription.ended:
            status = await self._post(subscription, name, item)
            if status == 200:
                self._measures.callbacks["done"] += 1
                self._measures.sent["http"] += 1
                subscription.delivered([name])
                return True
            tries += status is not None
            if tries == _TRIES:
                self._measures.callbacks["given-up"] += 1
                log.error(
                    "callback.given_up",
                    subscription=subscription.id,
                    store=subscription.store,
                    item=name,
                    version=item.version,
                    status=status,
                    url=_url(subscription, item),
                )
                subscription.delivered([name], f"the application answered with status {status}")
                return True
            wait_s = backoff.next_s()
            if status is None and loop.time() + wait_s > deadline:
                return False
            self._measures.callbacks["repeated"] += 1
            await asyncio.sleep(wait_s)
        return True

    async def _post(self, subscription: Subscription, name: str, item: ConfigurationItem) -> int | None:
        """The status that the application answered with, if it did."""
        assert self._session is not None
        shown = {"value": item.value, "version": item.version, "metadata": dict(item.metadata)}
        body = {"id": subscription.id, "items": {name: shown}}
        try:
            url = URL(_url(subscription, item), encoded=True)
            async with self._session.post(url, json=body, allow_redirects=False) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("callback.unanswered", url=subscription.callback_url, error=error)
            return None


def _url(subscription: Subscription, item: ConfigurationItem) -> str:
    """Where an update is posted to: the config key is the last part, which every router takes as one.

    The name of an item is anybody's text: with a slash in it, escaped or not, the routes of most frameworks don't
    match. It stands in the body.
    """
    return f"{subscription.callback_url}/configuration/{subscription.store}/{item.metadata[METADATA_KEY]}"
