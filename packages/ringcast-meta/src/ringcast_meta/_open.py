"""A store by its address, so that one setting says where the cluster's state is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from ringcast_wire import InvalidInputError, NatsLogin, shown, without_passwords
from ringcast_wire.addresses import check_address as check_host

from ringcast_meta._memory import MemoryStore
from ringcast_meta._options import StoreOptions
from ringcast_meta._store import MetadataStore

if TYPE_CHECKING:
    from ringcast_meta.etcd import EtcdLogin

_NATS: Final = ("nats", "tls")
_ETCD: Final = ("etcd", "etcd+tls")


@asynccontextmanager
async def open_store(
    address: str,
    *,
    login: NatsLogin | EtcdLogin | None = None,
    options: StoreOptions | None = None,
    create: bool = False,
    replicas: int = 1,
    jetstream_api: str = "$JS.API",
    inbox_prefix: str = "_INBOX",
) -> AsyncIterator[MetadataStore]:
    """Opens a store, and closes it in the end.

    ``address`` is one of

    - ``nats://host:4222,host:4222/bucket`` (``tls://`` likewise): a bucket of NATS KV. ``create``: make it if need be,
      with so many ``replicas``;
    - ``etcd://host:2379,host:2379/namespace`` (``etcd+tls://`` likewise): the keys of etcd that begin with
      ``namespace/``;
    - ``memory:``: a new one in the memory of this process.

    ``jetstream_api``, ``inbox_prefix``: where a user of NATS has the API of JetStream, and may have its inboxes.

    Raises:
        InvalidInputError: it is none of these, or ``login`` is another server's.
        UnavailableError: NATS can't be reached. (etcd is first called when something is read or written.)
        UnauthenticatedError: NATS refuses the login.
    """
    options = options or StoreOptions()
    if address == "memory:":
        yield MemoryStore(options=options)
        return
    scheme, hosts, name = _parts(address)
    if scheme in _NATS:
        async with _open_nats(
            scheme, hosts, name, login, options, create, replicas, jetstream_api, inbox_prefix
        ) as nats_store:
            yield nats_store
    else:
        async with _open_etcd(scheme, hosts, name, login, options) as etcd_store:
            yield etcd_store


def check_address(address: str) -> str:
    """Returns ``address`` if :func:`open_store` can take it; looks at nothing but the text.

    Raises:
        InvalidInputError: it is none.
    """
    if address != "memory:":
        _parts(address)
    return address


def _parts(address: str) -> tuple[str, list[str], str]:
    scheme, separator, rest = address.partition("://")
    hosts, slash, name = rest.partition("/")
    found = [host.strip() for host in hosts.split(",") if host.strip()]
    if separator and scheme in (*_NATS, *_ETCD) and found and slash and name:
        if scheme in _ETCD:
            for host in found:
                check_host(host, "address")
        return scheme, found, name
    raise InvalidInputError(
        f"address {shown(without_passwords([address]))} is not a metadata store: nats://host:port/bucket,"
        " tls://host:port/bucket, etcd://host:port/namespace, etcd+tls://host:port/namespace or memory: is expected",
        field="address",
    )


@asynccontextmanager
async def _open_nats(
    scheme: str,
    hosts: list[str],
    bucket: str,
    login: Any,
    options: StoreOptions,
    create: bool,
    replicas: int,
    jetstream_api: str,
    inbox_prefix: str,
) -> AsyncIterator[MetadataStore]:
    from ringcast_meta._nats.connection import open_connection
    from ringcast_meta.nats_kv import NatsKvStore

    login = NatsLogin() if login is None else login
    if not isinstance(login, NatsLogin):
        raise InvalidInputError("login is not one of NATS: a NatsLogin is expected", field="login")
    login.check_login()
    store: NatsKvStore | None = None

    async def take(error: Exception) -> None:
        # Of the others, calls and watches tell.
        if store is not None:
            store.take_error(error)

    connection = await open_connection(
        [f"{scheme}://{host}" for host in hosts],
        login,
        inbox_prefix=inbox_prefix,
        timeout_s=options.call_timeout_s,
        on_error=take,
    )
    try:
        store = NatsKvStore(connection, bucket, options, jetstream_api=jetstream_api)
        if create:
            await store.create_bucket(replicas=replicas)
        yield store
    finally:
        await connection.close()


@asynccontextmanager
async def _open_etcd(
    scheme: str, hosts: list[str], namespace: str, login: Any, options: StoreOptions
) -> AsyncIterator[MetadataStore]:
    from dataclasses import replace

    from ringcast_meta.etcd import EtcdLogin, EtcdStore

    login = EtcdLogin() if login is None else login
    if not isinstance(login, EtcdLogin):
        raise InvalidInputError("login is not one of etcd: an EtcdLogin is expected", field="login")
    if scheme == "etcd+tls":
        login = replace(login, tls=True)
    async with EtcdStore(hosts, f"{namespace.rstrip('/')}/", login=login, options=options) as store:
        yield store
