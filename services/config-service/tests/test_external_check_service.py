"""The external check of releases in a service: how it is set up, what is published, and a stop during a check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ringcast_config_service.external_check.settings import ExternalCheckSettings
from ringcast_config_service.repository import Authorship, PolicyChange, RowWrite, StageBatch, StagedRow
from ringcast_service import ConfigError
from ringcast_testkit import until
from ringcast_testkit.check_servers import CheckServer, GrpcCheck, HttpCheck
from ringcast_wire import ErrorCode, ReleaseState, StorePolicy, UnavailableError
from ringcast_wire.grpc import error_from_rpc, pb

DAY_MS = 86_400_000


@pytest.fixture(params=[HttpCheck, GrpcCheck], ids=["http", "grpc"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[CheckServer]:
    """A server of each transport."""
    made: CheckServer = request.param()
    async with made.serving():
        yield made


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"token_file": "t"}, "external_check_token is given without external_check_url"),
        ({"url": "check:9090"}, "external_check_url 'check:9090' can't be used: "),
        ({"url": "http://a", "token_file": "t"}, "external_check_token is given, and external_check_url is neither"),
        ({"url": "https://a", "ca_file": "/none"}, "external_check_ca '/none' can't be read: "),
        (
            {"url": "grpc://a"},
            "external_check_url 'grpc://a' can't be used: http:// or https:// with a host is allowed",
        ),
        ({"url": "grpc://a:1/may"}, "external_check_url 'grpc://a:1/may' can't be used: "),
        ({"url": "grpc://me:secret@a:1"}, "external_check_url with a login in it can't be used: "),
        ({"url": "grpc://:1"}, "external_check_url 'grpc://:1' can't be used: "),
        ({"url": "unix:/run/check"}, "external_check_url 'unix:/run/check' can't be used: "),
        (
            {"url": "grpc://a:1", "token_file": "t"},
            "external_check_token is given, and external_check_url is neither grpcs",
        ),
        ({"url": "grpc://a:1", "ca_file": "t"}, "external_check_ca is given, and external_check_url is not grpcs://"),
        ({"url": "grpcs://a:1", "ca_file": "/none"}, "external_check_ca '/none' can't be read: "),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ExternalCheckSettings(**settings).endpoint.check()
    assert str(refused.value).startswith(sentence)


def keyed(row_id: str) -> pb.KeyedWrite:
    return pb.KeyedWrite(key="k", row=pb.RowWrite(row_id=row_id, value="v", if_absent=True))


async def test_a_store_that_wants_it_publishes_only_what_is_allowed(
    start: Any, nats_url: str, tmp_path: Path, either: CheckServer, store_name: str
) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    either.says = {"allow": False, "reason": "on holiday"}
    publish = pb.PublishReleaseRequest(store=store_name, number=1)
    async with start(nats_url, database, external_check=ExternalCheckSettings(url=either.url)) as service:
        await service.create(store_name)
        stage = pb.StageReleaseRequest(store=store_name, stage_id="one", rows=[keyed("a")], complete=True)
        staged = await service.stub.StageRelease(stage)
        policy = pb.StorePolicy(external_check=True)
        await service.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store_name, policy=policy))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.PublishRelease(publish)
        refused = error_from_rpc(caught.value)
        assert (refused.code, refused.field) == (ErrorCode.CONDITION_FAILED, "external_check")
        assert str(refused).endswith("the external check refuses it: 'on holiday'")
        (asked,) = either.asked
        assert asked["digest"] == staged.digest
        assert asked["keys"] == [{"key": "k", "added": 1, "changed": 0, "deleted": 0}]
        assert (await service.stub.GetRelease(pb.GetReleaseRequest(store=store_name, number=1))).state == staged.state
    async with start(nats_url, database) as service:
        await service.is_refused(
            service.stub.PublishRelease(publish), "no server that it could ask", ErrorCode.CONDITION_FAILED
        )
    either.says = {"allow": True}
    async with start(nats_url, database, external_check=ExternalCheckSettings(url=either.url)) as service:
        await service.stub.PublishRelease(publish)
        assert len(either.asked) == 2
        await service.stub.PublishRelease(publish)
        assert len(either.asked) == 2, "it is published, or about to be: nobody is asked again"


async def test_nothing_is_published_that_was_not_asked_about(bench: Any) -> None:
    row = RowWrite(0, "a", "v", None, 2, 0)
    by = Authorship("alice", "")
    await bench.repo.releases.stage(bench.store, StageBatch("one", 0, [StagedRow("k", row)], True), by)
    await bench.repo.policies.set_policy("s", PolicyChange(StorePolicy(external_check=True)))
    assert await bench.ask("SELECT usable_from FROM schema_version") == [(16,)]
    with pytest.raises(UnavailableError, match="external_check of its store was set just now"):
        await bench.repo.releases.publish("s", 1, DAY_MS, by)
    assert (await bench.repo.releases.get("s", 1)).state is ReleaseState.STAGED
    begun = await bench.repo.releases.publish("s", 1, DAY_MS, by, allowed=True)
    assert begun.state is ReleaseState.PUBLISHING


async def test_a_service_that_stops_during_a_check_publishes_nothing(
    start: Any, nats_url: str, tmp_path: Path, either: CheckServer, store_name: str
) -> None:
    """It waits for the call, which ends without an answer as it would otherwise."""

    async def hangs(*_: Any) -> Any:
        await asyncio.Event().wait()

    either.server.answer = hangs
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    async with start(nats_url, database, external_check=ExternalCheckSettings(url=either.url)) as service:
        await service.create(store_name)
        stage = pb.StageReleaseRequest(store=store_name, stage_id="one", rows=[keyed("a")], complete=True)
        staged = await service.stub.StageRelease(stage)
        policy = pb.StorePolicy(external_check=True)
        await service.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store_name, policy=policy))
        call = service.stub.PublishRelease(pb.PublishReleaseRequest(store=store_name, number=1))
        refused = asyncio.create_task(service.is_refused(call, "does not answer within 5 s", ErrorCode.UNAVAILABLE))
        await until(lambda: len(either.asked) == 1)
        await service.stop()
        await refused
    async with start(nats_url, database) as service:
        assert (await service.stub.GetRelease(pb.GetReleaseRequest(store=store_name, number=1))).state == staged.state
