"""The store over etcd (API v3); needs the extra ``etcd``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self

from aetcd import rpc
from ringcast_wire import InvalidInputError, UnavailableError, shown

from ringcast_meta._conflict import conflict
from ringcast_meta._etcd.connection import EtcdConnection, LeaseNotFoundError
from ringcast_meta._etcd.login import EtcdLogin
from ringcast_meta._etcd.session import EtcdSession, entry_of, read_pages
from ringcast_meta._lease import Lease
from ringcast_meta._limits import check_key, check_last, check_prefix, check_ttl, check_value, no_leases, no_watches
from ringcast_meta._options import StoreOptions
from ringcast_meta._types import Entry
from ringcast_meta._watch import Deliver, Watch

__all__ = ["EtcdLogin", "EtcdStore"]

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}/", re.ASCII)


class EtcdStore:
    """A :class:`~ringcast_meta.MetadataStore` below one prefix of etcd's keys. Enter it with ``async with``.

    ``endpoints``: addresses (``host:port``) of members of one cluster, 16 at most. It talks to one of them, and to the
    next one when that does not answer. ``namespace``: what all keys begin with in etcd, with a slash at its end; a user
    of etcd needs the right to read, and to write, the range of it.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        namespace: str = "ringcast/",
        *,
        login: EtcdLogin | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        if not _NAMESPACE.fullmatch(namespace):
            raise InvalidInputError(
                f"namespace {shown(namespace)} is not valid: 1 to 128 characters of A-Z a-z 0-9 _ . / - and a slash are"
                " allowed",
                field="namespace",
            )
        self._namespace = namespace
        self._options = options or StoreOptions()
        self._connection = EtcdConnection(list(endpoints), login or EtcdLogin(), self._options.call_timeout_s)
        self._keeper = _EtcdKeeper(self._connection)
        self._watches = no_watches()
        self._leases = no_leases()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; leave watches and leases before."""
        await self._connection.close()

    async def get(self, key: str) -> Entry | None:
        """See :class:`~ringcast_meta.MetadataStore`."""
        answer = await self._connection.call("Range", rpc.RangeRequest(key=self._raw(check_key(key))))
        return entry_of(answer.kvs[0], self._namespace) if answer.kvs else None

    async def read(self, prefix: str = "") -> list[Entry]:
        """See :class:`~ringcast_meta.MetadataStore`."""
        entries, _ = await read_pages(self._connection, self._namespace, check_prefix(prefix))
        return entries

    async def create(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return await self._write(check_key(key), check_value(value), 0, lease)

    async def put(self, key: str, value: bytes, *, last: int, lease: Lease | None = None) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return await self._write(check_key(key), check_value(value), check_last(last), lease)

    async def delete(self, key: str, *, last: int) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        raw = self._raw(check_key(key))
        deletion = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=raw))
        return await self._if_at(key, check_last(last), deletion)

    async def _write(self, key: str, value: bytes, last: int, lease: Lease | None) -> int:
        request = rpc.PutRequest(key=self._raw(key), value=value)
        if lease is not None:
            lease.attach(key)
            request.lease = int(lease.id)
        try:
            return await self._if_at(key, last, rpc.RequestOp(request_put=request))
        except LeaseNotFoundError as error:
            raise UnavailableError(f"the lease {lease.id if lease else ''} has ended") from error

    async def _if_at(self, key: str, last: int, operation: Any) -> int:
        """Carries an operation out if the key was last written at a revision (0: nothing stands there)."""
        raw = self._raw(key)
        compare = rpc.Compare(
            key=raw, target=rpc.Compare.CompareTarget.MOD, result=rpc.Compare.CompareResult.EQUAL, mod_revision=last
        )
        look = rpc.RequestOp(request_range=rpc.RangeRequest(key=raw, keys_only=True))
        answer = await self._connection.call(
            "Txn", rpc.TxnRequest(compare=[compare], success=[operation], failure=[look]), writes=True
        )
        if answer.succeeded:
            return int(answer.header.revision)
        kvs = answer.responses[0].response_range.kvs
        raise conflict(key, last, int(kvs[0].mod_revision) if kvs else 0)

    def _raw(self, key: str) -> bytes:
        return f"{self._namespace}{key}".encode()

    def watch(self, prefix: str = "") -> Watch:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return Watch(check_prefix(prefix), self._open_session, self._options, self._watches)

    def _open_session(self, prefix: str, deliver: Deliver) -> EtcdSession:
        return EtcdSession(self._connection, self._namespace, prefix, deliver)

    def lease(self, ttl_s: int) -> AbstractAsyncContextManager[Lease]:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return Lease(self._keeper, check_ttl(ttl_s), self._options.call_timeout_s, self._leases)


class _EtcdKeeper:
    """Leases of etcd: it deletes what belongs to one that ends, and tells every watch."""

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection

    async def grant(self, ttl_s: int) -> str:
        answer = await self._connection.call("LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl_s))
        return str(answer.ID)

    async def refresh(self, lease_id: str) -> bool:
        return await self._connection.refresh_lease(int(lease_id))

    async def revoke(self, lease_id: str) -> None:
        try:
            await self._connection.call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=int(lease_id)))
        except LeaseNotFoundError:
            return
