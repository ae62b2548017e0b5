"""The policies of a store as clients see them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from ringcast_testkit import PATIENCE_S
from ringcast_wire import POLICY_RANGES, ErrorCode
from ringcast_wire.grpc import error_from_rpc, pb

Running = Any  # of conftest.py


async def set_policy(service: Running, store: str, *lift: str, **policy: Any) -> pb.StorePolicyInfo:
    request = pb.SetStorePolicyRequest(name=store, policy=pb.StorePolicy(**policy), lift=lift)
    found: pb.StorePolicyInfo = await service.stub.SetStorePolicy(request)
    return found


async def refusal(call: Any) -> tuple[ErrorCode, str | None, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = error_from_rpc(caught.value)
    return error.code, error.field, str(error)


async def test_the_message_has_every_policy() -> None:
    assert {field.name for field in pb.StorePolicy.DESCRIPTOR.fields} == set(POLICY_RANGES)


async def test_set_show_and_lift(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "a", "xyz")
    show = pb.GetStorePolicyRequest(name=store_name)
    none = await service.stub.GetStorePolicy(show)
    assert (none.name, none.policy, none.rows, none.bytes, none.keys) == (store_name, pb.StorePolicy(), 1, 4, 1)
    await set_policy(service, store_name, max_rows=2, max_keys=1)
    found = await set_policy(service, store_name, "max_keys", max_bytes=9)
    assert found.policy == pb.StorePolicy(max_rows=2, max_bytes=9)
    assert await service.stub.GetStorePolicy(show) == found
    assert await refusal(service.put(store_name, "b", "123456")) == (
        ErrorCode.LIMIT_EXCEEDED,
        "max_bytes",
        f"store {store_name!r} would have 11 bytes of live rows, and its policy max_bytes allows 9",
    )
    await service.put(store_name, "b", "1")


async def test_what_is_no_policy_is_refused(service: Running, store_name: str) -> None:
    await service.create(store_name)
    for call, field, sentence in (
        (
            set_policy(service, store_name, max_row_bytes=0),
            "max_row_bytes",
            "max_row_bytes 0 is out of range: 1 to 1048576 is allowed",
        ),
        (
            set_policy(service, store_name, max_keys=101),
            "max_keys",
            "max_keys 101 is out of range: 0 to 100 is allowed",
        ),
        (
            set_policy(service, store_name, history_retention_ms=3_599_999),
            "history_retention_ms",
            "history_retention_ms 3599999 is out of range: 3600000 to 315360000000 is allowed",
        ),
        (
            set_policy(service, store_name, "max_keys", max_keys=1),
            "max_keys",
            "max_keys is set and lifted at once: one of them is needed",
        ),
        (
            set_policy(service, store_name, "color"),
            "lift",
            f"policy 'color' is unknown: {', '.join(POLICY_RANGES)} are known",
        ),
    ):
        assert await refusal(call) == (ErrorCode.INVALID_INPUT, field, sentence)
    code, *_ = await refusal(set_policy(service, "nowhere", max_rows=1))
    assert code is ErrorCode.UNKNOWN_STORE
    await service.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name))
    for deleted in (
        set_policy(service, store_name, max_rows=1),
        service.stub.GetStorePolicy(pb.GetStorePolicyRequest(name=store_name)),
    ):
        code, *_ = await refusal(deleted)
        assert code is ErrorCode.STORE_DELETED


async def test_max_row_bytes_by_every_way_of_writing(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "large", "x" * 200)
    await set_policy(service, store_name, max_row_bytes=100)
    said = "row 'a' has 101 bytes, and the policy max_row_bytes of its store allows 100"
    assert await refusal(service.put(store_name, "a", "x" * 100)) == (ErrorCode.INVALID_INPUT, "value", said)
    row = pb.RowWrite(row_id="a", value="x" * 100)
    commit = pb.CommitRequest(store=store_name, writes=[pb.KeyedWrite(key="k", row=row)])
    assert (await refusal(service.stub.Commit(commit)))[2] == f"write 0 of the commit: {said}"
    assert (await refusal(service.write(store_name, [row])))[2] == f"row 0 of the batch: {said}"
    batch = pb.WriteBatch(
        store=store_name,
        key="k",
        row_ids=["a", "b"],
        values=["x" * 100, "1"],
        sequence=1,
        on_invalid=pb.ON_INVALID_SKIP_ROW,
    )
    (answer,) = [answer async for answer in service.stub.Write(iter([batch]))]
    assert [(row.row_id, row.code, row.reason) for row in answer.rejected] == [("a", "TOO_LARGE", said)]
    assert answer.written == 1
    await service.stub.Delete(pb.DeleteRequest(store=store_name, key="k", row_id="large"))


async def test_releases_only_refuses_every_other_way_of_writing(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "a", "1")
    found = await set_policy(service, store_name, releases_only=True)
    assert found.policy == pb.StorePolicy(releases_only=True)
    said = (
        f"store {store_name!r} takes no direct writes, its policy releases_only is set: stage this as a release and "
        "publish it (ringcast release stage)"
    )
    refused = (ErrorCode.PERMISSION_DENIED, "releases_only", said)
    place: dict[str, Any] = {"store": store_name, "key": "k"}
    row = pb.RowWrite(row_id="a", value="2")
    assert await refusal(service.put(store_name, "a", "2")) == refused
    assert await refusal(service.stub.Delete(pb.DeleteRequest(row_id="a", **place))) == refused
    commit = pb.CommitRequest(store=store_name, writes=[pb.KeyedWrite(key=key, row=row) for key in ("k", "k2")])
    assert await refusal(service.stub.Commit(commit)) == refused
    assert await refusal(service.write(store_name, [row, pb.RowWrite(row_id="b", value="2")])) == refused
    changes = [pb.RowChange(number=1, row_id="a", value="2"), pb.RowChange(number=2, row_id="a", delete=True)]
    answers = [answer async for answer in service.stub.Change(iter([pb.Changes(changes=changes, **place)]))]
    results = {(result.error, result.field, result.message) for answer in answers for result in answer.results}
    assert results == {("PERMISSION_DENIED", "releases_only", said)}
    assert sum(len(answer.results) for answer in answers) == 2

    staged = pb.StageReleaseRequest(
        store=store_name,
        stage_id="one",
        rows=[pb.KeyedWrite(key="k", row=pb.RowWrite(row_id="b", value="2", if_absent=True))],
        complete=True,
    )
    await service.stub.StageRelease(staged)
    await service.stub.PublishRelease(pb.PublishReleaseRequest(store=store_name, number=1))
    async with asyncio.timeout(PATIENCE_S):
        state = pb.RELEASE_STATE_PUBLISHING
        while state == pb.RELEASE_STATE_PUBLISHING:
            release = await service.stub.GetRelease(pb.GetReleaseRequest(store=store_name, number=1))
            state = release.state
    assert (release.state, release.published) == (pb.RELEASE_STATE_PUBLISHED, 1)
    assert (await set_policy(service, store_name, "releases_only")).policy == pb.StorePolicy()
    await service.put(store_name, "a", "2")


async def test_a_service_without_logins_publishes_nothing_that_has_to_be_approved(
    service: Running, store_name: str
) -> None:
    await service.create(store_name)
    await set_policy(service, store_name, approvals=1)
    rows = [pb.KeyedWrite(key="k", row=pb.RowWrite(row_id="b", value="2", if_absent=True))]
    await service.stub.StageRelease(pb.StageReleaseRequest(store=store_name, stage_id="one", rows=rows, complete=True))
    approve = pb.ApproveReleaseRequest(store=store_name, number=1)
    assert await refusal(service.stub.ApproveRelease(approve)) == (
        ErrorCode.PERMISSION_DENIED,
        "number",
        f"release 1 of store {store_name!r} can't be approved by a client without a credential, since that does not "
        "say who it is",
    )
    approve.digest = "x" * 129
    assert await refusal(service.stub.ApproveRelease(approve)) == (
        ErrorCode.INVALID_INPUT,
        "digest",
        "digest has 129 characters: at most 128 are allowed",
    )
    code, field, _ = await refusal(service.stub.PublishRelease(pb.PublishReleaseRequest(store=store_name, number=1)))
    assert (code, field) == (ErrorCode.CONDITION_FAILED, "approvals")
    await set_policy(service, store_name, "approvals")
    await service.stub.PublishRelease(pb.PublishReleaseRequest(store=store_name, number=1))


async def test_a_change_is_in_the_audit_log(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await set_policy(service, store_name, max_rows=2, max_keys=1)
    await set_policy(service, store_name, "max_rows")
    await set_policy(service, store_name, "max_rows")
    await set_policy(service, store_name, releases_only=True)

    found = await service.stub.ListAudit(pb.ListAuditRequest(store=store_name, action="SetStorePolicy"))
    assert [(entry.details, entry.outcome) for entry in found.entries] == [
        ('{"max_rows":2,"max_keys":1}', "done"),
        ('{"max_rows":null}', "done"),
        ('{"releases_only":true}', "done"),
    ]
