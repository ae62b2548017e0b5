"""What the calls of Dapr's API do, the same for gRPC and HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import nats.errors
from nats.js import JetStreamContext
from nats.js import errors as js_errors
from ringcast import InvalidInputError, LimitExceededError, RingcastError, UnavailableError, UnknownStoreError
from ringcast.hosting import ConfigurationItem, KeyReader, KeySelector
from ringcast_wire import EventLog, ProtocolError, names, shown

from ringcast_heartbeat_agent.clients import check_share, current
from ringcast_heartbeat_agent.config import VERSION, Config
from ringcast_heartbeat_agent.dapr.group_consumer import CONSUMER, GROUP, ROUTING_KEY, DaprConsumer
from ringcast_heartbeat_agent.dapr.items import KeySelection, wire_size
from ringcast_heartbeat_agent.dapr.observers import Observers
from ringcast_heartbeat_agent.dapr.reads import ADVICE, Measure, Reads, page_of, selectors_of
from ringcast_heartbeat_agent.dapr.subscription import Subscription
from ringcast_heartbeat_agent.dispatch.groups import Dispatch, Registration
from ringcast_heartbeat_agent.dispatch.routing import ROW, routing_of
from ringcast_heartbeat_agent.errors import (
    DaprError,
    StoppingError,
    get_failed,
    metadata_refused,
    no_app_channel,
    store_not_found,
    subscribe_failed,
)
from ringcast_heartbeat_agent.opening import Opener
from ringcast_heartbeat_agent.telemetry import Measures

log = EventLog(logging.getLogger(__name__))

CALLBACK_URL: Final = "ringcast.callback_url"
"""Name in the metadata of an HTTP subscription: where its callbacks go."""
ROWS: Final = "ringcast.rows"
"""Name in the metadata of a subscription: ``"true"`` delivers every existing row first."""
Api = Literal["grpc", "http"]
_MAX_ENTRIES: Final = 64
_MAX_NAME: Final = 128
_MAX_VALUE: Final = 1_024


class Handlers:
    """Answers requests. Every refusal is a :class:`DaprError`."""

    def __init__(
        self,
        config: Config,
        js: JetStreamContext,
        reader: KeyReader,
        opener: Opener,
        observers: Observers,
        dispatch: Dispatch,
        tasks: asyncio.TaskGroup,
        measures: Measures,
    ) -> None:
        self._config = config
        self._js = js
        self._reads = Reads(config, reader, opener)
        self._observers = observers
        self._dispatch = dispatch
        self._tasks = tasks
        self._measures = measures
        self._refuses = ""
        self._extended: dict[str, str] = {}
        self._stores: set[str] = set()
        self.subscriptions: dict[str, Subscription] = {}

    async def get(
        self, store: str, keys: Sequence[str], metadata: Mapping[str, str] | None = None, measure: Measure = wire_size
    ) -> Mapping[str, ConfigurationItem]:
        """The rows that ``keys`` names, all of the store's if it is empty; each answer is fetched.

        ``metadata`` may ask for a page of them; ``measure`` says how many bytes an item takes in the answer.

        Raises:
            DaprError: the store is not there, or what the read failed with.
        """
        try:
            page = page_of(metadata or {})
            entries = selectors_of(keys) or [
                KeySelector(key, key, None) for key in sorted(await self._keys(store)) if not keys
            ]
            prefixed = len(dict.fromkeys(keys)) != 1
            if page is None:
                items = await self._reads.read(store, entries, prefixed=prefixed)
            else:
                items = await self._reads.page(store, _whole(entries), page, measure, prefixed=prefixed)
        except UnknownStoreError:
            raise store_not_found(store) from None
        except (RingcastError, ValueError) as error:
            raise _unknown_store(error, store) or get_failed(keys, store, error) from error
        self._stores.add(store)
        return items

    def check_size(self, store: str, keys: Sequence[str], size: int) -> None:
        """Refuses an answer of so many bytes if that is too much.

        Raises:
            DaprError: it is.
        """
        most = self._config.max_response_bytes
        if size > most:
            raise get_failed(
                keys,
                store,
                f"the answer has {size} bytes: at most {most} are allowed. {ADVICE}",
            )

    async def subscribe(
        self, store: str, keys: Sequence[str], api: Api, metadata: Mapping[str, str] | None = None
    ) -> Subscription:
        """Follows what ``keys`` names, from now on, without waiting until it is held here.

        The caller must give the subscription to :meth:`drop` in the end.

        Raises:
            DaprError: the store is not there, or why its keys can't be followed.
        """
        try:
            wanted = KeySelection(keys)
            names.check_name("store_name", store)
            subscription = Subscription(
                store,
                wanted,
                max_items=self._config.queue_items,
                max_bytes=self._config.queue_bytes,
                api=api,
                changes=self._observers,
                callback_url=self._callback_url(metadata or {}) if api == "http" else "",
            )
            subscription.group = (metadata or {}).get(GROUP, "")
            subscription.consumer = (metadata or {}).get(CONSUMER, "") or f"dapr-{subscription.id}"
            subscription.routing_key = (metadata or {}).get(ROUTING_KEY, "")
            self._check_room()
            self.subscriptions[subscription.id] = subscription
            try:
                followed = wanted.keys or await self._keys(store)  # which also says whether there is such a store
                if not wanted.all:
                    followed = wanted.keys
                if wanted.impossible:
                    log.warning(
                        "subscription.impossible_keys", id=subscription.id, store=store, keys=shown(wanted.impossible)
                    )
                rows = not subscription.group and (metadata or {}).get(ROWS) == "true"
                await self._attach(subscription, followed, with_rows=rows)
                subscription.begun = True
            except BaseException:
                self._forget(subscription)
                raise
        except UnknownStoreError:
            raise store_not_found(store) from None
        except (RingcastError, ValueError) as error:
            raise _unknown_store(error, store) or subscribe_failed(keys, store, error) from error
        self._stores.add(store)
        return subscription

    def unsubscribe(self, subscription_id: str) -> bool:
        """Ends a subscription of either API; ``False`` if there is none of that id."""
        subscription = self.subscriptions.get(subscription_id)
        if subscription is None:
            return False
        subscription.end()
        self.drop(subscription)
        return True

    def drop(self, subscription: Subscription, reason: str = "") -> None:
        """A subscription has ended: nothing more is kept for it. Calling it again is harmless."""
        if self._forget(subscription):
            error = subscription.error
            self._measures.ended[subscription.api, reason or (error.reason if error else "client")] += 1
            if error is not None:
                log.warning("subscription.ended", id=subscription.id, api=subscription.api, error=error)

    @property
    def unread_s(self) -> dict[str, float]:
        """For how long a subscriber has not received what it is behind with, since reads fail, by store and key."""
        found: dict[str, float] = {}
        for subscription in list(self.subscriptions.values()):
            for key, seconds in subscription.unread_s.items():
                place = f"{subscription.store}/{key}"
                found[place] = max(seconds, found.get(place, 0.0))
        return found

    @property
    def groups_unread_s(self) -> dict[str, float]:
        """As :attr:`unread_s`, of groups."""
        return self._dispatch.unread_s

    def metadata(self) -> dict[str, object]:
        """What the sidecar says of itself."""
        components = [
            {"name": store, "type": "configuration.ringcast", "version": "v1"} for store in sorted(self._stores)
        ]
        stale_s = {f"{each.store}/{each.key}": each.staleness_s for each in self._observers if each.staleness_s}
        for place, seconds in self.unread_s.items():
            stale_s[place] = max(seconds, stale_s.get(place, 0.0))
        return {
            "id": self._config.agent_id,
            "runtimeVersion": f"ringcast-{VERSION}",
            "components": components,
            "extended": {
                **self._extended,
                "ringcast.subscriptions": str(len(self.subscriptions)),
                "ringcast.staleness_s": f"{max(stale_s.values(), default=0.0):.0f}",
                **{f"ringcast.staleness_s.{place}": f"{seconds:.0f}" for place, seconds in stale_s.items()},
            },
        }

    def set_metadata(self, name: str, value: str) -> None:
        """Adds an entry to the metadata, or replaces it, as with a sidecar.

        Raises:
            DaprError: its name is empty or one of the agent's, it is too long, or there are too many.
        """
        if not name or name.startswith("ringcast.") or len(name) > _MAX_NAME or len(value) > _MAX_VALUE:
            raise metadata_refused(
                f"{shown(name)} with {len(value)} characters: a name has 1 to {_MAX_NAME} and does not begin with "
                f"'ringcast.', a value has {_MAX_VALUE} at most"
            )
        if name not in self._extended and len(self._extended) >= _MAX_ENTRIES:
            raise metadata_refused(f"there are {len(self._extended)} entries: at most {_MAX_ENTRIES} are allowed")
        self._extended[name] = value

    def refuse(self, why: str) -> None:
        """Takes no new subscriptions, because of ``why``; empty: it does again."""
        self._refuses = why

    def stop(self) -> None:
        """Ends every subscription with an error, and takes no new ones."""
        self.refuse("the agent is stopping")
        for subscription in list(self.subscriptions.values()):
            subscription.end(StoppingError(self._refuses))

    async def run(self) -> None:
        """Lets those who follow all keys of a store hear of new ones, until cancelled."""
        while True:
            await asyncio.sleep(self._config.relist_s)
            everything = [each for each in self.subscriptions.values() if each.wanted.all and each.begun]
            for store in {subscription.store for subscription in everything}:
                try:
                    keys = await self._keys(store)
                except Exception as error:  # noqa: BLE001  # it is tried again; the agent serves on
                    log.warning("keys.unreadable", store=store, error=error)
                    continue
                for subscription in everything:
                    if subscription.store == store and not subscription.ended:
                        await self._follow_new(subscription, keys - subscription.followed)

    async def _follow_new(self, subscription: Subscription, new: set[str]) -> None:
        """Each key by itself: one that can't be followed now keeps no other from it, and is tried again."""
        token = current.set(subscription.client)  # whose share they are of
        try:
            follows = [self._follow(subscription, key, with_rows=True) for key in new]
            outcomes = await asyncio.gather(*follows, return_exceptions=True)
        finally:
            current.reset(token)
        failed = [each for each in outcomes if each is not None]
        if failed:
            log.warning(
                "subscription.new_keys_postponed",
                id=subscription.id,
                store=subscription.store,
                count=len(failed),
                error=failed[0],
            )

    async def _keys(self, store: str) -> set[str]:
        """The config keys of a store that were ever written to, as far as its event stream remembers."""
        stream = names.notify_stream(names.check_name("store_name", store))
        try:
            info = await self._js.stream_info(stream, subjects_filter=names.notify_stream_subjects(store))
        except js_errors.NotFoundError:
            raise UnknownStoreError(f"store {store!r} does not exist") from None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise UnavailableError(f"the keys of store {store} can't be read from NATS: {error}") from error
        try:
            return {names.parse_notify_subject(subject).config_key for subject in info.state.subjects or ()}
        except ProtocolError as error:
            raise UnavailableError(str(error)) from error

    async def _attach(self, subscription: Subscription, keys: Iterable[str], *, with_rows: bool = False) -> None:
        new = set(keys) - subscription.followed
        try:
            async with asyncio.TaskGroup() as group:
                for key in new:
                    group.create_task(self._follow(subscription, key, with_rows=with_rows))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _follow(self, subscription: Subscription, key: str, *, with_rows: bool) -> None:
        if subscription.group:
            await self._join(subscription, key, changes_only=not with_rows)
        else:
            await self._observers.attach(subscription, key, with_rows=with_rows)

    async def _join(self, subscription: Subscription, key: str, *, changes_only: bool) -> None:
        """Lets a subscription take part in its group of a key. As always in Dapr, existing rows are not delivered.

        Those of a key that is new are: they came after the subscription.
        """
        filters = subscription.wanted.filters_of(key)
        if filters and routing_of(subscription.routing_key).setting != ROW:
            raise InvalidInputError(
                f"keys names rows of {key}, and group {subscription.group} shares them out by "
                f"{subscription.routing_key}: name the whole key",
                field="keys",
            )
        asked = Registration(
            store=subscription.store,
            key=key,
            group=subscription.group,
            name=subscription.consumer,
            filters=filters,
            changes_only=changes_only,
            routing_key=subscription.routing_key,
            api=f"dapr-{subscription.api}",
        )
        group, consumer, _ = await self._dispatch.join(asked)
        task = self._tasks.create_task(
            DaprConsumer(subscription, group, consumer).run(), name=f"dapr-{asked.name}-{key}"
        )
        subscription.consumers.add(task)
        subscription.followed.add(key)
        if subscription.ended:
            task.cancel()

    def _check_room(self) -> None:
        if self._refuses:
            raise UnavailableError(self._refuses)
        if len(self.subscriptions) >= self._config.max_subscriptions:
            raise LimitExceededError(
                f"the agent has {len(self.subscriptions)} subscriptions: at most {self._config.max_subscriptions} "
                "are allowed"
            )
        clients = (subscription.client for subscription in self.subscriptions.values())
        check_share("subscriptions", clients, self._config.max_subscriptions, self._config.client_share)

    def _callback_url(self, metadata: Mapping[str, str]) -> str:
        url = metadata.get(CALLBACK_URL, self._config.app_url)
        if not url:
            raise no_app_channel()
        try:
            return self._config.callback_url(url)
        except ValueError as error:
            raise InvalidInputError(f"{CALLBACK_URL} {error}", field=CALLBACK_URL) from None

    def _forget(self, subscription: Subscription) -> bool:
        self._observers.detach(subscription)
        for task in subscription.consumers:
            task.cancel()
        return self.subscriptions.pop(subscription.id, None) is not None


def _whole(entries: Sequence[KeySelector]) -> list[str]:
    named = next((entry for entry in entries if entry.row_id is not None), None)
    if named is not None:
        raise InvalidInputError(
            f"keys names the row {shown(named.row_id)} of {named.key}: pages are of whole keys", field="keys"
        )
    return [entry.key for entry in entries]


def _unknown_store(error: Exception, store: str) -> DaprError | None:
    """A name that can't be a store's is the name of no store."""
    bad_name = isinstance(error, RingcastError) and error.field == "store_name"
    return store_not_found(store) if bad_name or not store.strip() else None
