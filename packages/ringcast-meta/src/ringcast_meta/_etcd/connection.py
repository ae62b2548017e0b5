"""Calls of etcd's API, on the first member that answers, and their errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from aetcd import rpc
from ringcast_wire import (
    InvalidInputError,
    LimitExceededError,
    OutcomeUnknownError,
    PermissionDeniedError,
    RingcastError,
    UnauthenticatedError,
    UnavailableError,
    client_channel_options,
)
from ringcast_wire.addresses import check_address

from ringcast_meta._etcd.login import EtcdLogin

MAX_ENDPOINTS: Final = 16
_MAX_MESSAGE_BYTES: Final = 96 * 1024 * 1024
_OPTIONS: Final = (
    *client_channel_options(_MAX_MESSAGE_BYTES, max_reconnect_ms=2_000),
    # The time for one attempt: a member that has much to do takes it too, or that is far away.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Channels to one member would share a connection, and with it what is wrong with it.
    ("grpc.use_local_subchannel_pool", 1),
)
_STUBS: Final = {"Range": rpc.KVStub, "Txn": rpc.KVStub, "LeaseGrant": rpc.LeaseStub, "LeaseRevoke": rpc.LeaseStub}


_Metadata: TypeAlias = tuple[tuple[str, str], ...]


class CompactedError(UnavailableError):
    """A revision that was asked for is compacted."""


class LeaseNotFoundError(UnavailableError):
    """The lease has ended."""


class _NotLoggedInError(Exception):
    """The token is not valid any more."""


class _Member:
    """The channel to a member, and the token that it gave."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.token = ""
        self.users = 0


class EtcdConnection:
    """A connection to one member of a cluster at a time. When it does not answer, the next call goes to the next."""

    def __init__(self, endpoints: list[str], login: EtcdLogin, timeout_s: float) -> None:
        if not 1 <= len(endpoints) <= MAX_ENDPOINTS:
            raise InvalidInputError(
                f"endpoints has {len(endpoints)} addresses: 1 to {MAX_ENDPOINTS} are allowed", field="endpoints"
            )
        for endpoint in endpoints:
            check_address(endpoint, "endpoints")
        login.check_login()
        self._endpoints = endpoints
        self._login = login
        self._timeout_s = timeout_s
        self._index = 0
        self._member: _Member | None = None

    async def call(self, method: str, request: Any, *, writes: bool = False) -> Any:
        """One call, and its answer. A read is tried at each member, a write at one."""
        for _ in range(1 if writes else len(self._endpoints)):
            index = self._index
            try:
                return await self._call_once(method, request, writes)
            except (CompactedError, LeaseNotFoundError):
                raise
            except UnavailableError as error:
                failed = error
                self.avoid(index)
        raise failed

    async def _call_once(self, method: str, request: Any, writes: bool) -> Any:
        with translated(method, writes):
            try:
                return await self._send(method, request)
            except _NotLoggedInError:
                self._forget_token()
                return await self._send(method, request)

    async def _send(self, method: str, request: Any) -> Any:
        async with self.channel() as (channel, metadata):
            call = getattr(_STUBS[method](channel), method)
            try:
                return await call(request, timeout=self._timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if metadata and error.code() is grpc.StatusCode.UNAUTHENTICATED:
                    raise _NotLoggedInError from error
                raise

    async def refresh_lease(self, lease_id: int) -> bool:
        """Has a lease live for its time again; whether it still lives. Tried at one member."""
        index = self._index
        try:
            with translated("LeaseKeepAlive", False):
                async with self.channel() as (channel, metadata):
                    requests = iter([rpc.LeaseKeepAliveRequest(ID=lease_id)])
                    stub = rpc.LeaseStub(channel)
                    call: Any = stub.LeaseKeepAlive(requests, timeout=self._timeout_s, metadata=metadata)
                    async for answer in call:
                        return bool(answer.TTL > 0)
        except UnavailableError:
            self.avoid(index)
            raise
        except UnauthenticatedError:
            self._forget_token()
            raise
        raise UnavailableError("etcd has ended LeaseKeepAlive without an answer")

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[tuple[grpc.aio.Channel, _Metadata]]:
        """The channel to the present member, and what a call has to carry. It stays open as long as it is used here."""
        if self._member is None:
            self._member = _Member(self._open(self._endpoints[self._index]))
        member = self._member
        member.users += 1
        try:
            yield member.channel, await self._log_in(member)
        finally:
            member.users -= 1
            if member is not self._member and not member.users:
                await member.channel.close()

    async def _log_in(self, member: _Member) -> _Metadata:
        if not self._login.user:
            return ()
        if not member.token:
            request = rpc.AuthenticateRequest(name=self._login.user, password=self._login.password)
            with translated("Authenticate", False):
                answer = await rpc.AuthStub(member.channel).Authenticate(request, timeout=self._timeout_s)
            member.token = str(answer.token)
        return (("token", member.token),)

    def _forget_token(self) -> None:
        if self._member is not None:
            self._member.token = ""

    @property
    def member(self) -> int:
        """Which of the addresses calls go to now."""
        return self._index

    def avoid(self, index: int) -> None:
        """Has the next call go to another member than this one, if there is another. Calls under way go on."""
        if index == self._index and len(self._endpoints) > 1:
            self._index = (index + 1) % len(self._endpoints)
            # The last call on its channel closes it: to close it now would cancel the others.
            self._member = None

    async def close(self) -> None:
        """Closes the channel. The next call would open another."""
        member, self._member = self._member, None
        if member is not None:
            await member.channel.close()

    def _open(self, endpoint: str) -> grpc.aio.Channel:
        credentials = self._login.channel_credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)


@contextmanager
def translated(what: str, writes: bool) -> Iterator[None]:
    """Turns errors of gRPC into ours. ``writes``: one without an answer may have been carried out."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _ours(what, error, writes) from error


def _ours(what: str, error: grpc.aio.AioRpcError, writes: bool) -> RingcastError:
    code, details = error.code(), error.details() or ""
    said = f"etcd answers {what} with {details!r} ({code.name})"
    match code:
        case grpc.StatusCode.OUT_OF_RANGE if "compacted" in details:
            return CompactedError(said)
        case grpc.StatusCode.NOT_FOUND if "lease" in details:
            return LeaseNotFoundError(said)
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDeniedError(said)
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(said)
        case grpc.StatusCode.INVALID_ARGUMENT if "user" in details or "authentication" in details:
            return UnauthenticatedError(said)
        case grpc.StatusCode.INVALID_ARGUMENT if "too large" in details:
            return LimitExceededError(said, field="value")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "space exceeded" in details:
            return LimitExceededError(said)
        case (
            grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.RESOURCE_EXHAUSTED | grpc.StatusCode.FAILED_PRECONDITION
        ):
            return UnavailableError(said)
    return (OutcomeUnknownError if writes else UnavailableError)(
        f"no answer from etcd to {what}: {details} ({code.name})"
    )
