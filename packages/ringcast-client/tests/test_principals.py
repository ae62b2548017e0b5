"""What the service takes a client for, and author and reason of what it writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from ringcast_client import AuditVerdict, ConfigServiceClient, KeyedWrite, RoleGrant, RowWrite
from ringcast_testkit import ConfigServiceProcess
from ringcast_wire import ConditionFailedError, InvalidInputError, PermissionDeniedError, Role
from ringcast_wire.audit import Link

ME = "host:127.0.0.1"


async def test_who_am_i(client: ConfigServiceClient) -> None:
    assert (await client.who_am_i()).principal == ME


async def test_roles(config_service: ConfigServiceProcess) -> None:
    async with ConfigServiceClient(config_service.address) as client:
        assert (await client.who_am_i()).unrestricted
        assert [await client.grant_role(ME, "*", Role.ADMIN) for _ in range(2)] == [True, False]
        assert await client.grant_role("deploy", "gateway", Role.WRITER)
        (found,) = await client.list_roles(store="gateway")
        assert found.granted_at_ms > 1_700_000_000_000
        assert found == RoleGrant("deploy", "gateway", Role.WRITER, found.granted_at_ms, ME)
        assert await client.list_roles(principal="deploy") == [found]
        assert [await client.revoke_role("deploy", "gateway", Role.WRITER) for _ in range(2)] == [True, False]
        me = await client.who_am_i()
        assert ([(grant.store, grant.role) for grant in me.roles], me.unrestricted) == ([("*", Role.ADMIN)], False)
        await client.grant_role("ops", "*", Role.ADMIN)
        await client.revoke_role(ME, "*", Role.ADMIN)
        with pytest.raises(PermissionDeniedError, match="has no role admin for store 'gateway'") as refused:
            await client.create_store("gateway", partition_count=4)
        assert refused.value.field == "store"


async def test_the_history_has_the_reason_of_each_kind_of_write(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=1)
    where = store_name, "k"
    await client.put(*where, "put", "1", reason="put")
    await client.delete(*where, "put", reason="deleted")
    await client.commit(store_name, [KeyedWrite("k", "commit", "1")], reason="committed")
    async with client.changes(*where) as writer:
        await writer.put("change", "1", reason="changed")
        await writer.delete("change", reason="changed back")
        await writer.put("silent", "1")
    rows = [RowWrite("bulk", "1"), RowWrite("more", "1", {"by": "me"})]
    assert [result.written async for result in client.bulk_write(*where, rows, reason="in bulk")] == [2]
    await client.sync(*where, [RowWrite("bulk", "2"), *rows[1:]], max_delete_share=1, reason="synced")
    found = [(one.row.row_id, one.author, one.reason) async for one in client.history(*where)]
    assert found[:8] == [
        ("put", ME, "put"),
        ("put", ME, "deleted"),
        ("commit", ME, "committed"),
        ("change", ME, "changed"),
        ("change", ME, "changed back"),
        ("silent", ME, ""),
        ("bulk", ME, "in bulk"),
        ("more", ME, "in bulk"),
    ]
    assert sorted(found[8:]) == [(row_id, ME, "synced") for row_id in ("bulk", "commit", "silent")]


async def test_a_sync_that_goes_on_one_by_one_keeps_its_reason(
    client: ConfigServiceClient, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_store(store_name, partition_count=1)
    await client.put(store_name, "k", "a", "1")
    original = client.bulk_write
    writes = iter([True])

    async def refused_once(*words: Any, **settings: Any) -> AsyncIterator[object]:
        if next(writes, False):
            raise ConditionFailedError("somebody else was first")
        async for result in original(*words, **settings):
            yield result

    monkeypatch.setattr(client, "bulk_write", refused_once)
    await client.sync(store_name, "k", [RowWrite("b", "1")], max_delete_share=1, reason="synced")
    found = {one.row.row_id: one.reason async for one in client.history(store_name, "k", since=1)}
    assert found == {"a": "synced", "b": "synced"}


async def test_a_reason_that_is_none_is_refused_before_anything_is_sent(client: ConfigServiceClient) -> None:
    with pytest.raises(InvalidInputError, match=r"reason .* has 513 bytes: at most 512 are allowed"):
        await client.put("nowhere", "k", "a", "1", reason="x" * 513)
    with pytest.raises(InvalidInputError, match="not printable"):
        client.bulk_write("nowhere", "k", [], reason="two\nlines")
    with pytest.raises(InvalidInputError, match="not printable"):
        await client.sync("nowhere", "k", [], reason="two\nlines")


async def test_the_audit_log(config_service: ConfigServiceProcess) -> None:
    async with ConfigServiceClient(config_service.address, reason="TICKET-1: täglich") as client:
        await client.create_store("gateway", partition_count=1)
        await client.put("gateway", "k", "a", "secret")
        await client.put("gateway", "k", "b", "secret", reason="its own")
        async with client.changes("gateway", "k") as writer:
            await writer.put("c", "1")
        assert [result.written async for result in client.bulk_write("gateway", "k", [RowWrite("d", "1")])] == [1]
        found = [entry async for entry in client.audit()]
        reasons = ["TICKET-1: täglich", "TICKET-1: täglich", "its own", "TICKET-1: täglich", "TICKET-1: täglich"]
        assert [entry.reason for entry in found] == reasons
        assert [entry.action for entry in found] == ["CreateStore"] + ["WriteRows"] * 4
        assert {entry.principal for entry in found} == {ME}
        newest = [entry async for entry in client.audit(store="gateway", newest_first=True, limit=2)]
        assert newest == found[:2:-1]
        assert [entry.seq async for entry in client.audit(action="CreateStore", principal=ME, since_ms=1)] == [1]
        assert not [entry async for entry in client.audit(store="*")]
        verdict = await client.verify_audit()
        assert verdict == AuditVerdict(5, f"5:{found[-1].hash}", "")
        assert await client.verify_audit(verdict.at) == verdict
        assert "another hash" in (await client.verify_audit(Link(3, found[0].hash))).problem
        with pytest.raises(InvalidInputError, match="is not SEQ:HASH"):
            await client.verify_audit("3")
        with pytest.raises(InvalidInputError, match="store 'no name'"):
            await anext(client.audit(store="no name"))
        history = [one.reason async for one in client.history("gateway", "k")]
        assert history == reasons[1:]


async def test_tokens_that_are_revoked(config_service: ConfigServiceProcess) -> None:
    async with ConfigServiceClient(config_service.address) as client:
        assert [await client.revoke_token(digest="a" * 64) for _ in range(2)] == [1, 0]
        with pytest.raises(InvalidInputError, match="has no token in this instance's file"):
            await client.revoke_token(principal="deploy")
        for wrong in ({}, {"principal": "a", "digest": "a" * 64}, {"digest": "a"}):
            with pytest.raises(InvalidInputError):
                await client.revoke_token(**wrong)


def test_a_reason_of_the_client_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not printable"):
        ConfigServiceClient(reason="two\nlines")
