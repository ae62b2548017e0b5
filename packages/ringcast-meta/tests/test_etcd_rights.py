"""What a user of etcd with the right to one key can do to others: why records of workers do not stand there.

``docs/architecture.md`` rests on it ("What keeps the records"). Where a later etcd does otherwise, these tests say so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from aetcd import rpc
from ringcast_testkit import EtcdServer

_QUOTA_BYTES: Final = 16 * 1024 * 1024
_VALUE: Final = b"v" * 1_000_000
"""Below what etcd takes in one request (1.5 MiB)."""


def key_of(user: str) -> bytes:
    return f"ringcast/config_leases/{user}".encode()


class Users:
    """The users ``a`` and ``b``, each with the right to read and write a key of its own and nothing else."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.kv, self.lease, self._auth = rpc.KVStub(channel), rpc.LeaseStub(channel), rpc.AuthStub(channel)
        self._maintenance = rpc.MaintenanceStub(channel)
        self.tokens: dict[str, Any] = {"": ()}

    async def make(self) -> None:
        await self._auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="r"))
        await self._auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        for name in "ab":
            await self._auth.UserAdd(rpc.AuthUserAddRequest(name=name, password="secret"))
            await self._auth.RoleAdd(rpc.AuthRoleAddRequest(name=name))
            granted = rpc.Permission(permType=rpc.Permission.Type.READWRITE, key=key_of(name))
            await self._auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name=name, perm=granted))
            await self._auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=name, role=name))
        await self._auth.AuthEnable(rpc.AuthEnableRequest())
        for name in "ab":
            answer = await self._auth.Authenticate(rpc.AuthenticateRequest(name=name, password="secret"))
            self.tokens[name] = (("token", answer.token),)

    async def grant(self, user: str, ttl_s: int = 10) -> int:
        """A lease."""
        answer = await self.lease.LeaseGrant(rpc.LeaseGrantRequest(TTL=ttl_s), metadata=self.tokens[user])
        return int(answer.ID)

    async def free(self) -> None:
        """Gives the space back that a compaction has freed, and ends the alarm, as only root may."""
        answer = await self._auth.Authenticate(rpc.AuthenticateRequest(name="root", password="r"))
        root = (("token", answer.token),)
        await self._maintenance.Defragment(rpc.DefragmentRequest(), metadata=root)
        found = await self._maintenance.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.GET), metadata=root)
        for alarm in found.alarms:
            words = {"memberID": alarm.memberID, "alarm": alarm.alarm}
            await self._maintenance.Alarm(rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, **words), metadata=root)

    async def put(self, user: str, key: bytes, value: bytes = b"", lease: int = 0) -> None:
        await self.kv.Put(rpc.PutRequest(key=key, value=value, lease=lease), metadata=self.tokens[user])

    async def keep_alive(self, user: str, lease: int) -> int:
        """Refreshes a lease; returns how long it lives now, in seconds."""
        requests = iter([rpc.LeaseKeepAliveRequest(ID=lease)])
        async for answer in self.lease.LeaseKeepAlive(requests, metadata=self.tokens[user]):
            return int(answer.TTL)
        return 0


@asynccontextmanager
async def users_of(server: EtcdServer) -> AsyncIterator[Users]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        users = Users(channel)
        await users.make()
        yield users


async def refused(call: Awaitable[Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_a_user_of_one_key_does_nothing_to_the_keys_of_others(etcd_server: EtcdServer) -> None:
    async with users_of(etcd_server) as users:
        lease = await users.grant("b")
        await users.put("b", key_of("b"), lease=lease)
        of_b, token = key_of("b"), users.tokens["a"]
        tried: list[Callable[[], Awaitable[Any]]] = [
            lambda: users.put("a", of_b),
            lambda: users.kv.Range(rpc.RangeRequest(key=of_b), metadata=token),
            lambda: users.kv.DeleteRange(rpc.DeleteRangeRequest(key=of_b), metadata=token),
            lambda: users.lease.LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease), metadata=token),
        ]
        for call in tried:
            assert await refused(call()) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("user", ["a", ""])
async def test_anybody_keeps_the_lease_of_another_alive(etcd_server: EtcdServer, user: str) -> None:
    """And so the record of a process that has died; also who has no user at all, who may make leases as well."""
    async with users_of(etcd_server) as users:
        lease = await users.grant("b")
        await users.put("b", key_of("b"), lease=lease)
        assert await users.keep_alive(user, lease) == 10
        assert await users.grant(user)


async def test_a_user_of_one_key_stops_the_writes_of_all(etcd_server: EtcdServer, tmp_path: Path) -> None:
    """It writes its own key again and again: the history fills the space of the whole cluster."""
    del etcd_server  # skips this where there is none
    with EtcdServer(tmp_path / "small", "--quota-backend-bytes", str(_QUOTA_BYTES)) as server:
        async with users_of(server) as users:
            lease = await users.grant("b", 600)
            await users.put("b", key_of("b"), lease=lease)

            async def fill() -> None:
                for _ in range(4 * _QUOTA_BYTES // len(_VALUE)):
                    await users.put("a", key_of("a"), _VALUE)

            assert await refused(fill()) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await refused(users.put("b", key_of("b"))) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await refused(users.grant("b")) is grpc.StatusCode.RESOURCE_EXHAUSTED
            found = await users.kv.Range(rpc.RangeRequest(key=key_of("b")), metadata=users.tokens["b"])
            assert await users.keep_alive("b", lease) == 600, "who is there stays there"
            # Nobody needs a right to compact, nor a user. It helps against the next time, and not this time.
            await users.kv.Compact(rpc.CompactionRequest(revision=found.header.revision, physical=True))
            assert await refused(users.put("b", key_of("b"))) is grpc.StatusCode.RESOURCE_EXHAUSTED
            await users.free()
            await users.put("b", key_of("b"))
