"""``ringcast.aio.DaprClient``: the configuration calls of ``dapr.aio.clients.DaprClient``, answered by Ringcast."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from ringcast_wire import InvalidInputError, Mode, NatsLogin

from ringcast._config import WorkerConfig
from ringcast._connection import Connection
from ringcast._dapr_items import Item, Wanted, check_store, item_name, item_of, parse_keys, subscription_options
from ringcast._dapr_reader import read_key, read_rows
from ringcast._dapr_response import ConfigurationResponse
from ringcast._dapr_subscription import Subscription
from ringcast._fetch import FetchClient
from ringcast._log import Log

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
        self._login = {name: value for name, value in msgspec.structs.asdict(login).items() if value} if login else {}
        self._servers = [part.strip() for part in address.split(",")] if address else None
        self._worker_id = worker_id
        self._timeout_s = timeout_s
        self._subscriptions: dict[str, Subscription] = {}
        self._opening = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._connection: Connection | None = None
        self._fetches: FetchClient | None = None

    async def get_configuration(
        self,
        store_name: str,
        keys: list[str],
        config_metadata: dict[str, str] | None = dict(),  # noqa: B006, C408  # the very default of dapr's
    ) -> ConfigurationResponse:
        """The rows that ``keys`` names; what is not there is not among the items.

        Of one whole config key the items have row ids as names; of several entries ``<key>/<row id>``. A row that is
        asked for by name has that name. A config key that this client is subscribed to is answered from memory, which
        in a PARTITIONED store is this worker's share of it; everything else is fetched.

        Raises:
            InvalidInputError, ValueError: an argument breaks a rule.
            UnknownStoreError: there is no such store.
            UnavailableError: NATS or the config service does not answer.
        """
        store = check_store(store_name)
        wanted = parse_keys(keys)
        items: dict[str, Item] = {}
        named: dict[str, list[Wanted]] = {}
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
        """
        store = check_store(store_name)
        wanted = parse_keys(keys)
        options = subscription_options(config_metadata)
        while (other := self._starting(store, wanted)) is not None:
            await other.settled.wait()  # only then is it known whether the two may be side by side
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
        async with self._opening:
            await self._disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _whole_key(self, store: str, key: str) -> list[tuple[str, Item]]:
        for subscription in self._subscriptions.values():
            if not subscription.live or subscription.store != store or key not in subscription.rows:
                continue
            if subscription.in_handler:  # it would wait for itself
                break
            await subscription.wait_ready(self._timeout_s or DEFAULT_TIMEOUT_S)
            return subscription.held(key)
        parts = await read_key(await self._reader(store, key), store, key)
        return [
            (row.row_id, item_of(key, part.partition, row)) for part in parts for row in part.rows if not row.deleted
        ]

    async def _named_rows(self, store: str, key: str, wanted: Sequence[Wanted]) -> dict[str, Item]:
        asked = {one.row_id: one.asked for one in wanted if one.row_id is not None}
        parts = await read_rows(await self._reader(store, key), store, key, list(asked))
        return {
            asked[row.row_id]: item_of(key, part.partition, row)
            for part in parts
            for row in part.rows
            if not row.deleted and row.row_id in asked
        }

    async def _reader(self, store: str, key: str) -> FetchClient:
        """The connection for fetches, opened when it is first needed and again when it was lost for good."""
        async with self._opening:
            if self._connection is not None and self._connection.nc.is_closed:
                await self._disconnect()
            if self._fetches is None:
                await self._connect(store, key)
            assert self._fetches is not None
            return self._fetches

    async def _connect(self, store: str, key: str) -> None:
        given: dict[str, Any] = {
            "store": store,
            "keys": [key],
            "servers": self._servers,
            "worker_id": self._worker_id,
            "name": "ringcast-dapr-client",
            "cache_dir": "",
            **self._login,
        }
        if self._timeout_s is not None:
            given.update(connect_timeout_s=self._timeout_s, fetch_timeout_s=self._timeout_s)
        config = WorkerConfig.resolve(given)
        async with AsyncExitStack() as stack:
            log = Log(logging.getLogger("ringcast.dapr"))
            self._connection = await stack.enter_async_context(Connection.open(config, log))
            self._fetches = await stack.enter_async_context(FetchClient.open(self._connection, config.fetch_timeout_s))
            self._stack = stack.pop_all()

    async def _disconnect(self) -> None:
        stack, self._stack, self._connection, self._fetches = self._stack, None, None, None
        if stack is not None:
            await stack.aclose()

    def _starting(self, store: str, wanted: Sequence[Wanted]) -> Subscription | None:
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

    def _check_room(self, store: str, wanted: Sequence[Wanted]) -> None:
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

    def _free_worker_id(self, store: str, wanted: Sequence[Wanted]) -> str:
        """The client's worker id; a further subscription gets it with a number, as each is a worker of its own."""
        keys = [one.key for one in wanted][:1]
        given = {"store": store, "keys": keys, "worker_id": self._worker_id, "cache_dir": ""}
        first = WorkerConfig.resolve(given).worker_id
        taken = {subscription.worker_id for subscription in self._subscriptions.values()}
        numbered = (f"{first[:60]}-{number}" for number in range(2, MAX_SUBSCRIPTIONS + 2))
        return next(name for name in (first, *numbered) if name not in taken)
