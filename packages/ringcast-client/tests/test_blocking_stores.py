"""The life of stores and keys by the blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from ringcast_client.blocking import BlockingStoreCalls, CallRetries
from ringcast_testkit import ConfigServiceProcess
from ringcast_wire import (
    InvalidInputError,
    KeyDeletedError,
    StoreDeletedError,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
)
from ringcast_wire.grpc import ConfigServiceStub, error_from_rpc, pb

RETRIES = CallRetries(first_wait_s=0.01, max_wait_s=0.01)


class LosesAnswers:
    """A stub whose first answers of each method are lost on the way, when the service has done what was asked."""

    def __init__(self, stub: Any, lost: int = 1) -> None:
        self._stub = stub
        self._lost = dict.fromkeys(("DeleteStore", "DeleteKey", "RestoreKey", "UpdateStore"), lost)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)

        def call(*words: Any, **settings: Any) -> Any:
            answer = method(*words, **settings)
            if self._lost.get(name):
                self._lost[name] -= 1
                raise UnavailableError("the answer was lost")
            return answer

        return call


def losing_answers(stub: Any, lost: int = 1) -> Any:
    return LosesAnswers(stub, lost)


@pytest.fixture
def stub(shared_service: ConfigServiceProcess) -> Iterator[Any]:
    with grpc.insecure_channel(shared_service.address) as channel:
        yield ConfigServiceStub(channel)


@pytest.fixture
def store(stub: Any, store_name: str) -> str:
    stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=4))
    put(stub, store_name)
    return store_name


def put(stub: Any, store: str, key: str = "k") -> None:
    try:
        stub.Put(pb.PutRequest(store=store, key=key, row_id="a", value="1"))
    except grpc.RpcError as error:
        refusal: Any = error
        raise error_from_rpc(refusal) from None


def test_a_store_and_a_key(stub: Any, store: str) -> None:
    calls = BlockingStoreCalls(stub, 10, reason="TICKET-3")
    assert calls.update_store(store, inline_max_bytes=0).inline_max_bytes == 0
    gone = calls.delete_key(store, "k")
    assert gone.deletion is not None
    assert gone.deletion.restorable_until_ms > gone.deletion.deleted_at_ms
    with pytest.raises(KeyDeletedError):
        put(stub, store)
    assert (calls.restore_key(store, "k").rows, calls.restore_key(store, "k").deletion) == (1, None)
    assert calls.delete_store(store).deletion is not None
    with pytest.raises(StoreDeletedError):
        put(stub, store)
    assert calls.restore_store(store).deletion is None
    put(stub, store)
    entries = stub.ListAudit(pb.ListAuditRequest(store=store)).entries
    reasons = {entry.action: entry.reason for entry in entries}
    assert {reasons[f"{call}{what}"] for call in ("Delete", "Restore") for what in ("Key", "Store")} == {"TICKET-3"}


def test_a_purge_frees_the_name_though_its_answer_is_lost(stub: Any, store: str) -> None:
    calls = BlockingStoreCalls(losing_answers(stub), 10, retries=RETRIES)
    assert calls.update_store(store, inline_max_bytes=1).inline_max_bytes == 1
    purged = calls.delete_key(store, "k", purge=True)
    assert purged.deletion is not None
    assert purged.deletion.restorable_until_ms == 0
    with pytest.raises(UnknownKeyError):
        calls.restore_key(store, "k")
    put(stub, store)
    done = BlockingStoreCalls(losing_answers(stub, 2), 10, retries=RETRIES).delete_store(
        store, purge=True, grace_s=0.05
    )
    assert done.deletion is not None
    assert done.deletion.restorable_until_ms == 0
    with pytest.raises(UnknownStoreError):
        put(stub, store)


def test_what_is_refused(stub: Any, store: str) -> None:
    calls = BlockingStoreCalls(stub, 10)
    for purge in (False, True):
        with pytest.raises(UnknownKeyError):
            calls.delete_key(store, "other", purge=purge)
        with pytest.raises(UnknownStoreError):
            calls.delete_store("nowhere", purge=purge)
        with pytest.raises(InvalidInputError, match="store 'a b'"):
            calls.delete_store("a b", purge=purge)
    for grace_s in (-1, 3_601, float("nan")):
        with pytest.raises(InvalidInputError, match=f"grace_s {grace_s} is out of range: 0 to 3600 is allowed"):
            calls.delete_key(store, "k", purge=True, grace_s=grace_s)
    with pytest.raises(InvalidInputError, match="inline_max_bytes 4097 is out of range"):
        calls.update_store(store, inline_max_bytes=4_097)
    with pytest.raises(InvalidInputError, match="reason"):
        BlockingStoreCalls(stub, 10, reason="x" * 513)
    put(stub, store)  # nothing of it was deleted
