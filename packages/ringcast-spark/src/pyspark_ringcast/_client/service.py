"""The config service over gRPC, as the tasks of a job use it; one connection a process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ringcast_client.blocking import ServiceConnection, retried
from ringcast_wire import InvalidInputError, UnknownKeyError, client_channel_options, limits
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, pb

from pyspark_ringcast._common.options import Service

_connections: dict[Service, ServiceConnection] = {}
_lock = threading.Lock()


def shared_stub(service: Service | str) -> ConfigServiceStub:
    """The process's connection to a config service, one of its instances; it lives as long as the process.

    Certificates and tokens are files of the machine. What ``service`` does not name, an address alone none of them,
    comes from the environment: RINGCAST_SERVICE_TLS_CA_FILE and so on.

    Raises:
        InvalidInputError: they can't be read, or don't fit together.
    """
    service = Service(service) if isinstance(service, str) else service
    with _lock:
        if service not in _connections:
            options = client_channel_options(16 * limits.MIB, max_reconnect_ms=2_000)
            _connections[service] = _connection(service, options)
        return _connections[service].stub


def _connection(service: Service, options: tuple[tuple[str, int], ...]) -> ServiceConnection:
    login = ServiceLogin.from_environment()
    given = {name: getattr(service, name) or getattr(login, name) for name in login.__struct_fields__}
    try:
        return ServiceConnection(service.address, ServiceLogin(**given), options)
    except InvalidInputError as error:  # NATS has files of the same names
        raise InvalidInputError(f"the login at the config service: {error}", field=f"service_{error.field}") from None


def find_store(service: Service | str, store: str, timeout_s: float) -> pb.Store:
    """A store's settings and keys.

    Raises:
        UnknownStoreError: there is none of that name.
        UnavailableError: there was no reply in time.
    """
    stub, request = shared_stub(service), pb.GetStoreRequest(name=store)
    found: pb.Store = retried(lambda left_s: stub.GetStore(request, timeout=left_s), timeout_s)
    return found


def read_heads(service: Service | str, store: str, key: str, timeout_s: float) -> list[int]:
    """The revision of each partition; raises as :func:`find_store`, and ``UnknownKeyError``."""
    stub, request = shared_stub(service), pb.HeadsRequest(store=store, key=key)
    return list(retried(lambda left_s: stub.Heads(request, timeout=left_s), timeout_s).heads)


def heads_of_release(service: Service | str, store: str, key: str, release: int, timeout_s: float) -> pb.HeadsResponse:
    """The same when the last row of a release was published.

    Raises:
        InvalidInputError: there is no such release.
        ConditionFailedError: not all of it is published.
        RevisionGoneError: its rows, or revisions that were there then, are removed.
    """
    stub, request = shared_stub(service), pb.HeadsRequest(store=store, key=key, release=release)
    found: pb.HeadsResponse = retried(lambda left_s: stub.Heads(request, timeout=left_s), timeout_s)
    return found


def list_versions(service: Service | str, store: str, key: str, partition: int, timeout_s: float) -> dict[str, int]:
    """The version of each live row of a partition, by its id."""
    stub, request = shared_stub(service), pb.ListRequest(store=store, key=key, partition=partition)

    def read(left_s: float) -> dict[str, int]:
        return {row.row_id: row.version for page in stub.List(request, timeout=left_s) for row in page.rows}

    return retried(read, timeout_s)


def get_rows(service: Service | str, store: str, key: str, row_ids: Sequence[str], timeout_s: float) -> list[pb.Row]:
    """Those of up to 1,000 rows that are live; none where there is no such key.

    Raises:
        RingcastError: the service refused, or did not answer in time.
    """
    stub, request = shared_stub(service), pb.GetRequest(store=store, key=key, row_ids=row_ids)
    try:
        return list(retried(lambda left_s: stub.Get(request, timeout=left_s), timeout_s).rows)
    except UnknownKeyError:
        return []
    except InvalidInputError:
        if len(row_ids) == 1:
            raise
    half = len(row_ids) // 2  # they were more than fits one answer
    parts = row_ids[:half], row_ids[half:]
    return [row for part in parts for row in get_rows(service, store, key, part, timeout_s)]
