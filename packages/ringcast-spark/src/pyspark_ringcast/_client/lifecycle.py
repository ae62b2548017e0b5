"""The life of stores and keys from a job or a notebook: what may change, deleting, restoring. All of it is done by the
driver, over gRPC."""

from __future__ import annotations

from typing import TypedDict, Unpack

from ringcast_client import KeyInfo, StoreInfo
from ringcast_client.blocking import BlockingStoreCalls

from pyspark_ringcast._client.service import shared_stub
from pyspark_ringcast._common.options import DEFAULT_SERVICE, Service


class Place(TypedDict, total=False):
    """Where the config service is, and how to log in: as :func:`partition_count` takes them.

    ``reason``: why, in one line of up to 512 bytes; the audit log has it. ``timeout_s``: how long a service that is
    away is waited for, 30 by default.
    """

    service: str
    timeout_s: float
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    token_file: str
    reason: str


DEFAULT_GRACE_S = 15.0
"""More than workers take between two questions."""


def update_store(store: str, *, inline_max_bytes: int, **place: Unpack[Place]) -> StoreInfo:
    """Changes what is not locked at creation: the largest value that a change event carries, in bytes (0 to 4096).

    Raises:
        UnknownStoreError, StoreDeletedError: there is no such store.
        UnavailableError: the config service did not answer in time.
    """
    return _calls(place).update_store(store, inline_max_bytes=inline_max_bytes)


def delete_store(
    store: str, *, purge: bool = False, grace_s: float = DEFAULT_GRACE_S, **place: Unpack[Place]
) -> StoreInfo:
    """Deletes a store with all its keys: reads and writes of it are refused from now on, and its workers end.

    It can be restored within the service's retention, 7 days by default: ``deletion.restorable_until_ms`` of what is
    returned says until when. With ``purge`` it can't: running workers have ``grace_s`` seconds to learn of the
    deletion, which this waits for, and its name is free when this returns.

    Raises:
        UnknownStoreError: there is no such store.
        LimitExceededError: 50 stores are deleted and not purged yet.
        UnavailableError: the config service did not answer in time.
    """
    return _calls(place).delete_store(store, purge=purge, grace_s=grace_s)


def restore_store(store: str, **place: Unpack[Place]) -> StoreInfo:
    """Undoes the deletion of a store; one that is not deleted is left alone. Its workers have to be started again.

    Raises:
        UnknownStoreError: there is no such store, or no more.
        StoreDeletedError: it is too late.
        UnavailableError: the config service did not answer in time.
    """
    return _calls(place).restore_store(store)


def delete_key(
    store: str, key: str, *, purge: bool = False, grace_s: float = DEFAULT_GRACE_S, **place: Unpack[Place]
) -> KeyInfo:
    """The same as :func:`delete_store` for a config key. To delete the rows and keep the key, overwrite it with none.

    Raises:
        UnknownStoreError, StoreDeletedError, UnknownKeyError: there is no such key.
        LimitExceededError: 1,000 keys of the store are deleted and not purged yet.
        UnavailableError: the config service did not answer in time.
    """
    return _calls(place).delete_key(store, key, purge=purge, grace_s=grace_s)


def restore_key(store: str, key: str, **place: Unpack[Place]) -> KeyInfo:
    """Undoes the deletion of a config key; one that is not deleted is left alone.

    Raises:
        UnknownStoreError, StoreDeletedError, UnknownKeyError: there is no such key, or no more.
        KeyDeletedError: it is too late.
        LimitExceededError: the store has 100 keys without it.
        UnavailableError: the config service did not answer in time.
    """
    return _calls(place).restore_key(store, key)


def _calls(place: Place) -> BlockingStoreCalls:
    service = Service(
        place.get("service", DEFAULT_SERVICE),
        place.get("tls_ca_file", ""),
        place.get("tls_cert_file", ""),
        place.get("tls_key_file", ""),
        place.get("token_file", ""),
    )
    return BlockingStoreCalls(shared_stub(service), place.get("timeout_s", 30.0), reason=place.get("reason", ""))
