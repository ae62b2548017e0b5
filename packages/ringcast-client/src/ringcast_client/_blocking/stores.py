"""The life of stores and keys for code that is not asynchronous: what may change, deleting, restoring."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Final

from ringcast_wire import (
    NO_POLICY,
    InvalidInputError,
    LimitExceededError,
    StorePolicy,
    UnknownKeyError,
    UnknownStoreError,
    check_reason,
    names,
)
from ringcast_wire.grpc import ConfigServiceStub, pb

from ringcast_client._blocking.calls import DEFAULT_RETRIES, CallRetries, retried
from ringcast_client._common.channel import StubWithReason
from ringcast_client._common.input import check_inline, where
from ringcast_client._common.records import (
    KeyInfo,
    StoreInfo,
    StorePolicyInfo,
    key_info,
    policy_info,
    policy_request,
    store_info,
)

_MAX_GRACE_S: Final = 3_600.0


class BlockingStoreCalls:
    """Calls over one stub, each tried again while the service is away: all of them may be made twice.

    ``timeout_s``: how long the service may be away. ``reason``: why, as each of them says; empty: nothing.
    """

    def __init__(
        self, stub: ConfigServiceStub, timeout_s: float, *, reason: str = "", retries: CallRetries = DEFAULT_RETRIES
    ) -> None:
        self._stub: Any = StubWithReason(stub, check_reason(reason)) if reason else stub
        self._timeout_s = timeout_s
        self._retries = retries

    def update_store(self, name: str, *, inline_max_bytes: int) -> StoreInfo:
        """As ``ConfigServiceClient.update_store``."""
        request = pb.UpdateStoreRequest(name=names.check_name("store", name))
        request.inline_max_bytes = check_inline(inline_max_bytes)
        return store_info(self._call(self._stub.UpdateStore, request))

    def get_store_policy(self, name: str) -> StorePolicyInfo:
        """As ``ConfigServiceClient.get_store_policy``."""
        request = pb.GetStorePolicyRequest(name=names.check_name("store", name))
        return policy_info(self._call(self._stub.GetStorePolicy, request))

    def set_store_policy(
        self, name: str, policy: StorePolicy = NO_POLICY, *, lift: Collection[str] = ()
    ) -> StorePolicyInfo:
        """As ``ConfigServiceClient.set_store_policy``."""
        return policy_info(self._call(self._stub.SetStorePolicy, policy_request(name, policy, lift)))

    def delete_store(self, name: str, *, purge: bool = False, grace_s: float = 0.0) -> StoreInfo:
        """As ``ConfigServiceClient.delete_store``. ``grace_s``: before a purge running workers have so long to learn of
        the deletion, and this waits; one that finds nothing any more keeps its rows and counts as stale.
        """
        names.check_name("store", name)

        def delete(purge: bool) -> pb.Store:
            found: pb.Store = self._call(self._stub.DeleteStore, pb.DeleteStoreRequest(name=name, purge=purge))
            return found

        if not purge:
            return store_info(delete(False))
        before = self._call(self._stub.GetStore, pb.GetStoreRequest(name=name, include_deleted=True))
        return store_info(_purged(delete, before, grace_s, UnknownStoreError))

    def restore_store(self, name: str) -> StoreInfo:
        """As ``ConfigServiceClient.restore_store``."""
        request = pb.RestoreStoreRequest(name=names.check_name("store", name))
        return store_info(self._call(self._stub.RestoreStore, request))

    def delete_key(self, store: str, key: str, *, purge: bool = False, grace_s: float = 0.0) -> KeyInfo:
        """The same for a config key."""
        place = where(store, key)

        def delete(purge: bool) -> pb.KeyInfo:
            found: pb.KeyInfo = self._call(self._stub.DeleteKey, pb.DeleteKeyRequest(**place, purge=purge))
            return found

        if not purge:
            return key_info(delete(False))
        keys = self._call(self._stub.GetStore, pb.GetStoreRequest(name=store, include_deleted=True)).keys
        before = next((one for one in keys if one.name == key), None)
        if before is None:
            raise UnknownKeyError(f"store {store!r} has no config key {key!r}", field="key")
        return key_info(_purged(delete, before, grace_s, UnknownKeyError))

    def restore_key(self, store: str, key: str) -> KeyInfo:
        """As ``ConfigServiceClient.restore_key``."""
        return key_info(self._call(self._stub.RestoreKey, pb.RestoreKeyRequest(**where(store, key))))

    def _call(self, method: Any, request: Any) -> Any:
        return retried(lambda left_s: method(request, timeout=left_s), self._timeout_s, self._retries)


def _purged(
    delete: Callable[[bool], Any], before: Any, grace_s: float, unknown: type[UnknownStoreError | UnknownKeyError]
) -> Any:
    """Deletes, waits for the workers, and purges.

    A purge whose answer was lost is made again, and finds nothing: it is done then, for ``before`` was there.
    """
    if not 0 <= grace_s <= _MAX_GRACE_S:
        raise InvalidInputError(f"grace_s {grace_s} is out of range: 0 to {_MAX_GRACE_S:g} is allowed", field="grace_s")
    if grace_s:
        try:
            before = delete(False)
            left_s = min(grace_s, grace_s - time.time() + before.deletion.deleted_at_ms / 1_000)
            time.sleep(max(0.0, left_s))
        except LimitExceededError:
            pass  # too many are deleted and can be restored: this one is purged at once
    try:
        return delete(True)
    except unknown:
        before.deletion.restorable_until_ms = 0
        before.deletion.SetInParent()
        return before
