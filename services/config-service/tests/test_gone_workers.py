"""Workers of a store that migrates of which an operator says that they are gone for good."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError
from ringcast_config_service.nats import gone
from ringcast_config_service.nats.gone import GoneWorkers
from ringcast_config_service.nats.latest import read_newest
from ringcast_config_service.repository import SERVICE
from ringcast_wire import ConditionFailedError, ErrorCode, UnavailableError, limits, names
from ringcast_wire.grpc import pb
from ringcast_wire.owner_records import Rule
from ringcast_wire.reports import decode_report_request

Running = Any  # of conftest.py
Workers = Any  # of conftest.py

SHADOW, OFF = pb.MIGRATION_STAGE_SHADOW, pb.MIGRATION_STAGE_OFF
VALIDATE, SWITCH = pb.MIGRATION_STAGE_VALIDATE, pb.MIGRATION_STAGE_SWITCH
DELETED = {"KV-Operation": "DEL"}


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of workers that are said to be gone are not waited for as long as usual."""
    monkeypatch.setattr(gone, "ANSWER_S", 0.2)


async def has_said(workers: Workers, worker_id: str) -> bool:
    """Whether there is a state of a worker."""
    bucket = names.owners_bucket(workers.store)
    return bool((await read_newest(workers.service.nc.jetstream(), bucket, names.state_key("k", worker_id))).entries)


async def audited(service: Running, store: str) -> list[tuple[str, Any]]:
    """Who has said of which worker that it is gone, for which keys."""
    page = await service.stub.ListAudit(pb.ListAuditRequest(store=store, action="MigrateStore", limit=100))
    details = [(entry.principal, json.loads(entry.details)) for entry in page.entries]
    return [(principal, (each["gone"], each["named"])) for principal, each in details if "gone" in each]


@pytest.mark.usefixtures("brief")
async def test_a_worker_that_is_gone_is_not_waited_for_until_it_is_back(
    service: Running, store_name: str, workers: Workers
) -> None:
    await service.create(store_name)
    await workers.go(SHADOW)
    for worker_id in ("a", "b", "c"):
        await workers.register(worker_id)
    await workers.leave("c", may_call=True)
    await workers.say("a", 0)
    await workers.say("b", 0)
    await workers.is_refused(VALIDATE, "workers c of key 'k' take no part in the migration")
    number = await workers.go(VALIDATE, "c")
    assert await audited(service, store_name) == [("host:127.0.0.1", ("c", ["k"]))]
    await workers.say("a", number)
    await workers.is_refused(SWITCH, "workers b of key 'k' are not guarded")
    await workers.register("b")  # it gives a sign of life after all, and what was said of it before does not count
    await workers.say("b", number)
    await workers.leave("b", may_call=True)
    await workers.say("b", 0)
    await workers.go(SWITCH, "b")
    assert not await has_said(workers, "b")
    back = await workers.go(SHADOW)
    await workers.table(Rule.PEERS, back)
    await workers.is_refused(OFF, "workers a of key 'k' are still guarded")
    await workers.go(OFF, "a", "b", "c")
    assert [said for _, said in await audited(service, store_name)] == [("c", ["k"]), ("b", ["k"]), ("a", ["k"])]


@pytest.mark.usefixtures("brief")
async def test_a_later_registration_counts_again(service: Running, store_name: str, workers: Workers) -> None:
    await service.create(store_name)
    await workers.go(SHADOW)
    await workers.register("a")
    await service.is_refused(workers.go(SWITCH, "a"), "it can't go to switch")
    await workers.is_refused(VALIDATE, "workers a of key 'k' take no part")
    await workers.go(SHADOW, "a")  # the step is taken already, the word counts all the same
    await workers.register("a")
    await workers.is_refused(VALIDATE, "workers a of key 'k' take no part")
    await workers.leave("a", may_call=True)
    await workers.is_refused(VALIDATE, "workers a of key 'k' take no part")
    await workers.go(SHADOW, "a")
    await workers.go(VALIDATE)
    await workers.say("a", 0)  # it is back
    await workers.is_refused(SWITCH, "workers a of key 'k' are not guarded")


@pytest.mark.usefixtures("brief")
async def test_who_can_not_be_said_to_be_gone(service: Running, store_name: str, workers: Workers) -> None:
    await service.create(store_name)
    migrate = service.migrate
    await service.is_refused(workers.go(SHADOW, "a"), "does not migrate: it waits for no worker that could be")
    await migrate(pb.MigrateStoreRequest(name=store_name, stage=SHADOW, lease_ttl_ms=60_000, call_bound_ms=2_000))
    await workers.register("a")

    async def refused(match: str, *gone: str, code: ErrorCode = ErrorCode.CONDITION_FAILED) -> None:
        await service.is_refused(workers.go(VALIDATE, *gone), match, code)

    await refused("names the worker 'b': store .* has no record of it", "a", "b", code=ErrorCode.INVALID_INPUT)
    await refused("names the worker 'a' twice", "a", "a", code=ErrorCode.INVALID_INPUT)
    await refused("gone 'a.b' is not a valid name", "a.b", code=ErrorCode.INVALID_INPUT)
    many = [f"w{number}" for number in range(limits.MAX_WORKERS_PER_KEY + 1)]
    await refused("gone has 201 workers: at most 200 are allowed", *many, code=ErrorCode.LIMIT_EXCEEDED)
    # Its lease, or the one of its host.
    await workers.put(names.LEASES_BUCKET, "a", b"{}")
    await refused("the worker 'a' is not gone: its lease lives", "a")
    await workers.put(names.LEASES_BUCKET, "a", b"", DELETED)
    await workers.put(names.LEASES_BUCKET, "host-1.x", b"{}")
    await workers.register("a", "host-1.x")
    await refused("the worker 'a' is not gone: the lease 'host-1.x' that it names lives", "a")
    await workers.put(names.LEASES_BUCKET, "host-1.x", b"", DELETED)
    # Its session.
    await workers.put(names.owners_bucket(store_name), names.session_key("a"), b"{}")
    await refused("the worker 'a' is not gone: its session was refreshed .* s ago, and counts for 120 s", "a")
    # It answers.
    await workers.register("b")

    async def answer(message: Msg) -> None:
        request = decode_report_request(message.data)
        await service.nc.publish(names.reported_subject(store_name, "k", "b", request.round_id), b"x")

    await service.nc.subscribe(names.report_subject(store_name, "k"), cb=answer)
    await refused("the worker 'b' is not gone: it answers for key 'k'", "b")
    await workers.is_refused(VALIDATE, "workers a, b of key 'k' take no part in the migration")
    assert await audited(service, store_name) == []


@pytest.mark.usefixtures("brief")
async def test_a_word_that_breaks_off_is_given_again_and_two_operators_may_give_it(
    service: Running, store_name: str, workers: Workers
) -> None:
    await service.create(store_name)
    js = service.nc.jetstream()
    await workers.go(SHADOW)
    for key in ("k", "l"):
        await workers.register("a", key=key)
    await workers.say("a", 0)
    core = service.app.core
    store = (await core.lifecycle._stores.get_store(store_name)).record

    class Breaks:
        """Takes one write."""

        _nc, written = js._nc, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(js, name)

        async def publish(self, *args: Any, **words: Any) -> Any:
            self.written += 1
            if self.written > 1:
                raise ConnectionClosedError
            return await js.publish(*args, **words)

    breaks = GoneWorkers(service.nc, Breaks(), core.lifecycle._gone._audit)  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match=r"not all of store .* knows which workers are gone .*: try again"):
        await breaks.declare(store, ["a"], SERVICE)
    assert [said for _, said in await audited(service, store_name)] == [("a", ["k", "l"])]
    await workers.is_refused(VALIDATE, "workers a of key '[kl]' take no part")
    both = [core.lifecycle._gone.declare(store, ["a"], SERVICE) for _ in range(2)]
    await asyncio.gather(*both)
    await workers.go(VALIDATE)
    said = len(await audited(service, store_name))
    await core.lifecycle._gone.declare(store, ["a"], SERVICE)
    assert len(await audited(service, store_name)) == said, "nothing is left to be done"


@pytest.mark.usefixtures("brief")
async def test_a_worker_that_writes_at_that_moment_is_not_gone(
    service: Running, store_name: str, workers: Workers
) -> None:
    await service.create(store_name)
    js = service.nc.jetstream()
    await workers.go(SHADOW)
    await workers.say("a", 0)
    core = service.app.core
    store = (await core.lifecycle._stores.get_store(store_name)).record

    class Late:
        """The worker is faster."""

        _nc = js._nc

        def __getattr__(self, name: str) -> Any:
            return getattr(js, name)

        async def publish(self, *args: Any, **words: Any) -> Any:
            await workers.say("a", 0, session=1)
            return await js.publish(*args, **words)

    late = GoneWorkers(service.nc, Late(), core.lifecycle._gone._audit)  # type: ignore[arg-type]
    with pytest.raises(
        ConditionFailedError, match="the worker 'a' is not gone: it has just written its state of key 'k'"
    ):
        await late.declare(store, ["a"], SERVICE)
    assert await has_said(workers, "a")
