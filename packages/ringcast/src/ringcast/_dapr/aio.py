"""``ringcast.aio.DaprClient``: the configuration calls of ``dapr.aio.clients.DaprClient``, answered by Ringcast."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from ringcast_wire import InvalidInputError, Mode, NatsLogin

from ringcast._common.config import WorkerConfig
from ringcast._dapr.errors import as_rpc_errors
from ringcast._dapr.items import (
    ConfigurationItem,
    KeySelector,
    check_store,
    item_name,
    item_of,
    parse_keys,
    subscription_options,
)
from ringcast._dapr.reader import KeyReader, login_settings
from ringcast._dapr.response import ConfigurationResponse
from ringcast._dapr.subscription import Subscription

MAX_SUBSCRIPTIONS: Final = 64
DEFAULT_TIMEOUT_S: Final = 10.0


class DaprClient:
    """Reads and follows configuration with the calls of the ``dapr`` package, without a sidecar.

    ``store_name`` is a Ringcast store. An entry of ``keys`` is a config key (``blocklist``: all of its rows) or names
    one row of it (``blocklist/<row id>``). ``address`` is the NATS server, or several with commas between; by default
    RINGCAST_SERVERS, or nats://127.0.0.1:4222. ``worker_id`` is the name to take part under; by default
    RINGCAST_WORKER_ID, or the host name and the process id. ``login`` says how to log in to NATS; by default the
    ``RINGCAST_*`` variables do.

    The constructor connects to nothing. Use it as ``async with DaprClient() as client``, or call :meth:`close`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        worker_id: str | None = None,
        timeout_s: float | None = None,
        login: NatsLogin | None = None,
    ) -> None:
        self._login = login_settings(login)
        self._servers = [part.strip() for part in address.split(",")] if address else None
        self._worker_id = worker_id
        self._timeout_s = timeout_s
        self._subscriptions: dict[str, Subscription] = {}
        self._reader = KeyReader(self._servers, worker_id=worker_id, timeout_s=timeout_s, login=login)

    async def get_configuration(
        self,
        store_name: str,
        keys: list[str],
        config_metadata: dict[str, str] | None = dict(),  # noqa: B006, C408  # the very default of dapr's
    ) -> ConfigurationResponse:
        """The rows that ``keys`` names; what is not there is not among the items.

        Of one whole config key the items have row ids as names; of several entries ``<key>/<row id>``. A row that is
        asked for by name has that name. The rows of all workers are among them. A whole config key of a
        FULL store that this client is subscribed to is answered from memory, everything else is fetched.

        Raises:
            InvalidInputError, ValueError: an argument breaks a rule.
            UnknownStoreError: there is no such store.
            UnavailableError: NATS or the config service does not answer.

        All of them but a plain ``ValueError`` are ``grpc.RpcError`` too, with ``code()`` and ``details()``.
        """
        with as_rpc_errors():
            return await self._get(store_name, keys)

    async def _get(self, store_name: str, keys: list[str]) -> ConfigurationResponse:
        store = check_store(store_name)
        wanted = parse_keys(keys)
        items: dict[str, ConfigurationItem] = {}
        named: dict[str, list[KeySelector]] = {}
        for one in wanted:
            if one.row_id is not None:
                named.setdefault(one.key, []).append(one)
                continue
            for row_id, item in await self._whole_key(store, one.key):
                items[item_name(wanted, one, row_id)] = item
        for key, some in named.items():
            items.update(await self._named_rows(store, key, some))
        return ConfigurationResponse(items)

    async def subscribe_configuration(
        self,
        store_name: str,
        keys: list[str],
        handler: Callable[[str, ConfigurationResponse], None],
        config_metadata: dict[str, str] | None = dict(),  # noqa: B006, C408  # the very default of dapr's
    ) -> str:
        """Takes part in the config keys as a worker, and returns the id of the subscription.

        ``handler(id, response)`` is called for each row that is there and then for each change, one at a time, with
        the row id as the item's name; a deleted row has an empty value and ``ringcast.deleted`` ``"true"`` in its
        metadata. A plain function runs in a thread of its own; an ``async`` one in this event loop. One that raises
        is called again, twice at most. In a PARTITIONED store the rows are shared out over all workers of the key.

        ``config_metadata`` may set ``worker_id``, ``mode`` (``PARTITIONED`` or ``FULL``) and ``partition_count`` to
        insist on, and ``window_s``; other names are ignored.

        Raises:
            InvalidInputError, ValueError: an argument breaks a rule.
            UnknownStoreError: there is no such store.
            MismatchError: the store has another mode or partition count than was insisted on.
            InUseError: another process has this worker id.
            UnavailableError: NATS does not answer.

        All of them but a plain ``ValueError`` are ``grpc.RpcError`` too, with ``code()`` and ``details()``.
        """
        with as_rpc_errors():
            store = check_store(store_name)
            wanted = parse_keys(keys)
            options = subscription_options(config_metadata)
            while (other := self._starting(store, wanted)) is not None:
                await other.settled.wait()  # only then is it known whether the two may be side by side
            return await self._subscribe(store, wanted, handler, options)

    async def _subscribe(
        self,
        store: str,
        wanted: Sequence[KeySelector],
        handler: Callable[[str, ConfigurationResponse], None],
        options: dict[str, object],
    ) -> str:
        self._check_room(store, wanted)
        options.update(self._login)
        options.setdefault("worker_id", self._free_worker_id(store, wanted))
        if self._timeout_s is not None:
            options["connect_timeout_s"] = self._timeout_s
        subscription = Subscription(secrets.token_hex(16), store, wanted, handler, options, servers=self._servers)
        self._subscriptions[subscription.id] = subscription
        try:
            await subscription.start()
        except BaseException:
            self._subscriptions.pop(subscription.id, None)
            raise
        return subscription.id

    async def unsubscribe_configuration(self, store_name: str, id: str) -> bool:  # noqa: A002  # dapr's name
        """Ends a subscription; ``False`` if there is none of that id in that store."""
        subscription = self._subscriptions.get(id)
        if subscription is None or subscription.store != store_name:
            return False
        del self._subscriptions[id]
        await subscription.stop()
        return True

    async def close(self) -> None:
        """Ends all subscriptions and the connection. The client may be used again after it."""
        subscriptions, self._subscriptions = list(self._subscriptions.values()), {}
        await asyncio.gather(*(subscription.stop() for subscription in subscriptions))
        await self._reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _whole_key(self, store: str, key: str) -> list[tuple[str, ConfigurationItem]]:
        for subscription in self._subscriptions.values():
            if not subscription.live or subscription.store != store or key not in subscription.rows:
                continue
            # One in its handler would wait for itself; one of a PARTITIONED store has its share alone.
            if subscription.in_handler or subscription.mode is not Mode.FULL:
                break
            await subscription.wait_ready(self._timeout_s or DEFAULT_TIMEOUT_S)
            return subscription.items(key)
        parts = await self._reader.key(store, key)
        return [
            (row.row_id, item_of(key, part.partition, row)) for part in parts for row in part.rows if not row.deleted
        ]

    async def _named_rows(self, store: str, key: str, wanted: Sequence[KeySelector]) -> dict[str, ConfigurationItem]:
        asked = {one.row_id: one.entry for one in wanted if one.row_id is not None}
        parts = await self._reader.rows(store, key, list(asked))
        return {
            asked[row.row_id]: item_of(key, part.partition, row)
            for part in parts
            for row in part.rows
            if not row.deleted and row.row_id in asked
        }

    def _starting(self, store: str, wanted: Sequence[KeySelector]) -> Subscription | None:
        """A subscription to one of these keys that has begun to start and not ended it."""
        keys = {one.key for one in wanted}
        return next(
            (
                one
                for one in self._subscriptions.values()
                if one.store == store and not one.settled.is_set() and not keys.isdisjoint(one.rows)
            ),
            None,
        )

    def _check_room(self, store: str, wanted: Sequence[KeySelector]) -> None:
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise InvalidInputError(
                f"client has {len(self._subscriptions)} subscriptions: at most {MAX_SUBSCRIPTIONS} are allowed"
            )
        for subscription in self._subscriptions.values():
            shared = sorted(subscription.rows.keys() & {one.key for one in wanted})
            if subscription.store == store and shared and subscription.live and subscription.mode is Mode.PARTITIONED:
                raise InvalidInputError(
                    f"keys has {shared[0]!r}, which this client is subscribed to already: "
                    "its partitions would be split between the two",
                    field="keys",
                )

    def _free_worker_id(self, store: str, wanted: Sequence[KeySelector]) -> str:
        """The client's worker id; a further subscription gets it with a number, as each is a worker of its own."""
        keys = [one.key for one in wanted][:1]
        given = {"store": store, "keys": keys, "worker_id": self._worker_id, "cache_dir": ""}
        first = WorkerConfig.resolve(given).worker_id
        taken = {subscription.worker_id for subscription in self._subscriptions.values()}
        numbered = (f"{first[:60]}-{number}" for number in range(2, MAX_SUBSCRIPTIONS + 2))
        return next(name for name in (first, *numbered) if name not in taken)
