"""Stores and keys that a job deletes and takes back."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_ringcast import delete_key, delete_store, restore_key, restore_store, update_store
from ringcast_wire import InvalidInputError, StoreDeletedError, UnavailableError, UnknownKeyError, UnknownStoreError
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py


def test_a_key_is_deleted_restored_and_purged(store: Store) -> None:
    store.save(store.frame({"a": "1", "b": "2"}))
    kept = store.load()
    info = delete_key(store.name, store.key, service=store.address, reason="TICKET-3")
    assert info.deletion is not None
    for read_or_write in (store.load, lambda: store.save(store.frame({"c": "3"}))):
        with pytest.raises(
            Exception, match=r"config key 'list' of store .* was deleted at .* it can be restored until"
        ):
            read_or_write()
    assert restore_key(store.name, store.key, service=store.address).rows == 2
    assert kept.count() == 2  # its snapshot is of the same history
    assert store.load().count() == 2
    purged = delete_key(store.name, store.key, service=store.address, purge=True, grace_s=0.05)
    assert purged.deletion is not None
    with pytest.raises(UnknownKeyError):
        restore_key(store.name, store.key, service=store.address)
    store.save(store.frame({"d": "4"}))
    assert store.rows() == {"d": "4"}
    request = pb.ListAuditRequest(store=store.name, action="DeleteKey")
    assert [entry.reason for entry in store.stub.ListAudit(request).entries] == ["TICKET-3", "", ""]


def test_a_store_is_changed_deleted_and_restored(store: Store) -> None:
    assert update_store(store.name, inline_max_bytes=16, service=store.address).inline_max_bytes == 16
    store.save(store.frame({"a": "1"}))
    assert delete_store(store.name, service=store.address).deletion is not None
    with pytest.raises(StoreDeletedError):
        update_store(store.name, inline_max_bytes=17, service=store.address)
    assert restore_store(store.name, service=store.address).deletion is None
    assert store.load().count() == 1
    delete_store(store.name, service=store.address, purge=True, grace_s=0)
    with pytest.raises(UnknownStoreError):
        restore_store(store.name, service=store.address)


def test_what_is_refused(store: Store) -> None:
    with pytest.raises(UnknownKeyError):
        delete_key(store.name, "other", service=store.address)
    with pytest.raises(InvalidInputError, match="grace_s 3601 is out of range"):
        delete_store(store.name, service=store.address, purge=True, grace_s=3_601)
    with pytest.raises(UnavailableError):
        delete_store(store.name, service="127.0.0.1:1", timeout_s=0.2)
    store.save(store.frame({"a": "1"}))
