"""The audit log, break-glass and revoked tokens, as clients of a real service with roles see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from ringcast_config_service.audit import MAX_REFUSED, MAX_REFUSED_OF_PRINCIPAL, AuditTrail
from ringcast_config_service.caller import Caller
from ringcast_config_service.repository import AuditFact, Authorship, roles
from ringcast_config_service.repository.audit import ChainPage
from ringcast_config_service.security import Security
from ringcast_testkit import PATIENCE_S, attempt
from ringcast_wire import LimitExceededError, Role, UnavailableError, names
from ringcast_wire.audit import GENESIS, START, Chain, Link
from ringcast_wire.grpc import ROLES, ConfigServiceStub, ServiceLogin, error_from_rpc, pb
from ringcast_wire.tokens import KnownToken, digest, token_line

Keys = Any  # of conftest.py
Bench = Any  # of conftest.py
Running = Any  # of conftest.py

CALLERS = ("root", "deploy", "fire", "nobody", "local-admin")
PUT = pb.PutRequest(store="s", key="k", row_id="a", value="secret", reason="because")


def token_of(name: str) -> str:
    return f"the-token-of-{name}-which-is-long"


TOKENS = "".join(f"{token_line(name, token_of(name))}\n" for name in CALLERS).encode()


class Service:
    """A service with roles, and a stub for each of :data:`CALLERS`."""

    def __init__(self, running: Running, stubs: dict[str, ConfigServiceStub]) -> None:
        self.running = running
        self.stubs = stubs

    def __getitem__(self, name: str) -> ConfigServiceStub:
        return self.stubs[name]

    async def entries(self, **words: Any) -> list[pb.AuditEntry]:
        found, after = [], 0
        while True:
            page = await self["root"].ListAudit(pb.ListAuditRequest(after=after, limit=1_000, **words))
            found += page.entries
            if not page.next:
                return found
            after = page.next

    async def verify(self, anchor: str = "") -> pb.VerifyAuditResponse:
        steps = [step async for step in self["root"].VerifyAudit(pb.VerifyAuditRequest(anchor=anchor))]
        assert [step.last for step in steps] == [False] * (len(steps) - 1) + [True]
        end: pb.VerifyAuditResponse = steps[-1]
        return end


def reason(text: str) -> tuple[tuple[str, bytes], ...]:
    return ((names.GRPC_REASON_KEY, text.encode()),)


@pytest.fixture
async def service(start: Any, nats_url: str, tmp_path: Path, keys: Keys) -> AsyncIterator[Service]:
    tokens = keys.write("named", TOKENS)
    security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, token_file=tokens)
    async with AsyncExitStack() as stack:
        database = f"sqlite:{tmp_path / 'ringcast.db'}"
        running = await stack.enter_async_context(start(nats_url, database, security=security))
        stubs = {}
        for name in CALLERS:
            login = ServiceLogin(tls_ca_file=keys.ca, token_file=keys.write(f"of-{name}", token_of(name).encode()))
            channel = login.aio_channel(running.app.grpc_address, ())
            stubs[name] = ConfigServiceStub(await stack.enter_async_context(channel))
        for principal, store, role in (
            ("root", "*", Role.ADMIN),
            ("deploy", "s", Role.WRITER),
            ("fire", "s", Role.BREAK_GLASS),
            ("local-admin", "s", Role.ADMIN),
        ):
            await stubs["root"].GrantRole(pb.GrantRoleRequest(principal=principal, store=store, role=ROLES[role]))
        await stubs["root"].CreateStore(pb.CreateStoreRequest(name="s", partition_count=8), metadata=reason("new app"))
        await stubs["root"].CreateStore(pb.CreateStoreRequest(name="other", partition_count=8))
        yield Service(running, stubs)


async def denied(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return str(error_from_rpc(refused.value))


async def test_mutations_and_refusals_are_in_the_log(service: Service) -> None:
    await service["deploy"].Put(PUT)
    await denied(service["nobody"].Put(PUT))
    await denied(service["nobody"].Put(pb.PutRequest(store="s\0" + "x" * 99, key="k\n", row_id="a")))
    await service.running.app.core.audit.flush()
    found = await service.entries()
    assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
    assert [(entry.principal, entry.action, entry.store, entry.outcome, entry.reason) for entry in found[4:]] == [
        ("root", "CreateStore", "s", "done", "new app"),
        ("root", "CreateStore", "other", "done", ""),
        ("deploy", "WriteRows", "s", "done", "because"),
        ("nobody", "Put", "s", "refused", ""),
        ("nobody", "Put", "s?" + "x" * 62, "refused", ""),
    ]
    assert json.loads(found[7].details) == {"role": "writer", "host": "127.0.0.1"}
    assert json.loads(found[6].details)["written"] == 1
    assert not [entry for entry in found if "secret" in str(entry) or "the-token" in str(entry)]
    end = await service.verify()
    assert (end.checked, end.problem, end.at) == (len(found), "", f"{found[-1].seq}:{found[-1].hash}")
    assert not (await service.verify(f"{found[2].seq}:{found[2].hash}")).problem
    assert "another hash than the anchor" in (await service.verify(f"3:{GENESIS}")).problem


async def test_an_admin_of_a_store_sees_its_entries_only(service: Service) -> None:
    await service["deploy"].Put(PUT)
    request = pb.ListAuditRequest(store="s", newest_first=True, limit=2)
    page = await service["local-admin"].ListAudit(request)
    assert [entry.action for entry in page.entries] == ["WriteRows", "CreateStore"]
    assert page.next
    everything = await service["local-admin"].ListAudit(pb.ListAuditRequest(store="s"))
    assert {entry.store for entry in everything.entries} == {"s"}
    for request in (pb.ListAuditRequest(), pb.ListAuditRequest(store="*"), pb.ListAuditRequest(store="other")):
        assert "has no role admin for store" in await denied(service["local-admin"].ListAudit(request))
    assert "has no role admin for store '*', which VerifyAudit needs" in await denied(
        service["local-admin"].VerifyAudit(pb.VerifyAuditRequest()).read()
    )
    assert [entry.action for entry in await service.entries(store="*")] == ["GrantRole"]
    assert len(await service.entries(action="GrantRole")) == 4
    assert not await service.entries(since_ms=1 << 50)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ListAuditRequest(store="no name"), "store"),
        (pb.ListAuditRequest(principal="x" * 401), "principal"),
        (pb.ListAuditRequest(action="a\n"), "action"),
        (pb.ListAuditRequest(limit=1_001), "limit"),
        (pb.ListAuditRequest(since_ms=-1), "since_ms"),
        (pb.ListAuditRequest(after=-1), "after"),
    ],
)
async def test_what_can_not_be_listed_is_refused(service: Service, request_: pb.ListAuditRequest, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await service["root"].ListAudit(request_)
    assert error_from_rpc(refused.value).field == field


async def test_the_life_of_a_store_has_who_and_why(service: Service) -> None:
    root = service["root"]
    why = reason("täglich")
    await service["deploy"].Put(PUT)
    await root.UpdateStore(pb.UpdateStoreRequest(name="s", inline_max_bytes=8), metadata=why)
    await root.NewHistory(pb.NewHistoryRequest(name="s"), metadata=why)
    await root.DeleteKey(pb.DeleteKeyRequest(store="s", key="k"), metadata=why)
    await root.RestoreKey(pb.RestoreKeyRequest(store="s", key="k"), metadata=why)
    await root.DeleteStore(pb.DeleteStoreRequest(name="s"), metadata=why)
    await root.RestoreStore(pb.RestoreStoreRequest(name="s"), metadata=why)
    await root.RevokeRole(pb.RevokeRoleRequest(principal="deploy", store="s", role=pb.ROLE_WRITER), metadata=why)
    await root.DeleteStore(pb.DeleteStoreRequest(name="s", purge=True), metadata=why)
    found = (await service.entries(store="s"))[-9:]
    actions = ["UpdateStore", "NewHistory", "DeleteKey", "RestoreKey", "DeleteStore", "RestoreStore", "RevokeRole"]
    assert [entry.action for entry in found] == [*actions, "DeleteStore", "PurgeStore"]
    assert {(entry.principal, entry.reason) for entry in found[:-1]} == {("root", "täglich")}
    assert found[-1].principal == "local"


async def test_dead_letters_have_an_entry_before_and_after(service: Service) -> None:
    deploy = service["deploy"]
    await deploy.DiscardDeadLetters(pb.DiscardDeadLettersRequest(store="s", numbers=[3, 1]), metadata=reason("old"))
    request = pb.ReplayDeadLettersRequest(store="s", numbers=[7])
    assert [reply async for reply in deploy.ReplayDeadLetters(request, timeout=PATIENCE_S)]
    found = (await service.entries(principal="deploy"))[-4:]
    assert [(entry.action, entry.outcome, entry.reason, json.loads(entry.details)) for entry in found] == [
        ("DiscardDeadLetters", "begun", "old", {"asked": 2, "numbers": [1, 3]}),
        ("DiscardDeadLetters", "done", "old", {"discarded": 0}),
        ("ReplayDeadLetters", "begun", "", {"asked": 1, "numbers": [7]}),
        ("ReplayDeadLetters", "done", "", {"not_there": 1}),
    ]


async def test_break_glass_needs_a_reason_and_is_in_log_and_audit(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    fire = service["fire"]
    sentence = await denied(fire.Get(pb.GetRequest(store="s", key="k", row_ids=["a"])))
    assert sentence == (
        "principal 'fire' has the role break-glass for store 's', which counts only in a call with a reason, and Get "
        "came without one"
    )
    await service["deploy"].Put(PUT)
    why = reason("INC-7: everything is down")
    got = await fire.Get(pb.GetRequest(store="s", key="k", row_ids=["a"]), metadata=why)
    assert [row.value for row in got.rows] == ["secret"]
    await fire.Put(pb.PutRequest(store="s", key="k", row_id="b", value="v", reason="INC-7: by the row"))
    grant = pb.GrantRoleRequest(principal="nobody", store="s", role=pb.ROLE_READER)
    assert (await fire.GrantRole(grant, metadata=why)).granted
    assert [store.name for store in (await fire.ListStores(pb.ListStoresRequest(), metadata=why)).stores] == ["s"]
    assert "has no role reader for store 'other'" in await denied(
        fire.Get(pb.GetRequest(store="other", key="k", row_ids=["a"]), metadata=why)
    )
    await service.running.app.core.audit.flush()
    entries = await service.entries(principal="fire")
    found = [(entry.action, entry.store, entry.outcome, entry.reason) for entry in entries]
    assert sorted(each for each in found if each[2] == "refused") == [
        ("Get", "other", "refused", "INC-7: everything is down"),
        ("Get", "s", "refused", ""),
    ]
    assert [each for each in found if each[2] != "refused"] == [
        ("Get", "s", "break-glass", "INC-7: everything is down"),
        ("Put", "s", "break-glass", "INC-7: by the row"),
        ("WriteRows", "s", "done", "INC-7: by the row"),
        ("GrantRole", "s", "break-glass", "INC-7: everything is down"),
        ("GrantRole", "s", "done", "INC-7: everything is down"),
        ("ListStores", "*", "break-glass", "INC-7: everything is down"),
    ]
    lines = [record for record in caplog.records if "break_glass.used" in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING"] * 4
    assert 'principal=fire method=Get store=s key=k reason="INC-7: everything is down"' in lines[0].getMessage()


async def test_a_stream_by_break_glass_has_one_entry_for_each_key(service: Service) -> None:
    def changes(key: str, number: int) -> pb.Changes:
        return pb.Changes(store="s", key=key, changes=[pb.RowChange(number=number, row_id="a", value="v")])

    call = service["fire"].Change(iter([changes("k", 1), changes("k", 2), changes("l", 3)]), metadata=reason("INC-8"))
    assert sorted([result.number async for answer in call for result in answer.results]) == [1, 2, 3]
    found = [(entry.key, entry.outcome) for entry in await service.entries(principal="fire", action="Change")]
    assert found == [("k", "break-glass"), ("l", "break-glass")]


async def test_break_glass_without_a_log_opens_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_facts: Any) -> None:
        raise UnavailableError("the database does not answer")

    core = service.running.app.core
    monkeypatch.setattr(core.audit._repository, "add", away)
    call = service["fire"].Get(pb.GetRequest(store="s", key="k", row_ids=["a"]), metadata=reason("INC-9"))
    assert await denied(call) == "the database does not answer"


@pytest.mark.parametrize("text", ["x" * 513, "two\nlines"])
async def test_a_reason_that_is_none_is_refused(service: Service, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await service["root"].GetStore(pb.GetStoreRequest(name="s"), metadata=reason(text))
    assert error_from_rpc(refused.value).field == "reason"
    twice = (*reason("a"), *reason("b"))
    assert "reason is given 2 times" in await denied(
        service["root"].GetStore(pb.GetStoreRequest(name="s"), metadata=twice)
    )


@attempt(
    "a client whose token was revoked",
    "call",
    "`UNAUTHENTICATED`, though the token stands in the file",
)
async def test_a_revoked_token_is_refused_at_once(service: Service, keys: Keys) -> None:
    root = service["root"]
    await service["deploy"].Put(PUT)
    request = pb.RevokeTokenRequest(principal="deploy")
    assert (await root.RevokeToken(request, metadata=reason("leaked"))).revoked == 1
    assert (await root.RevokeToken(request)).revoked == 0
    assert "a token that the config service knows is needed" in await denied(service["deploy"].Put(PUT))
    by_digest = pb.RevokeTokenRequest(digest=digest(token_of("nobody")).hex())
    assert (await root.RevokeToken(by_digest)).revoked == 1
    assert "a token that the config service knows" in await denied(service["nobody"].WhoAmI(pb.WhoAmIRequest()))
    found = await service.entries(action="RevokeToken")
    assert [(entry.principal, entry.store, entry.reason) for entry in found] == [
        ("root", "*", "leaked"),
        ("root", "*", ""),
    ]
    assert json.loads(found[0].details) == {
        "tokens": 1,
        "principals": ["deploy"],
        "digests": [digest(token_of("deploy")).hex()[:16]],
    }
    # Another token of the principal counts.
    keys.write("named", TOKENS + token_line("deploy", token_of("deploy") + "-2").encode() + b"\n")
    login = ServiceLogin(tls_ca_file=keys.ca, token_file=keys.write("of-2", (token_of("deploy") + "-2").encode()))
    async with login.aio_channel(service.running.app.grpc_address, ()) as channel:
        await ConfigServiceStub(channel).Put(PUT)


@attempt(
    "an admin",
    "revoke the last token with which roles could be granted",
    "refused",
)
async def test_the_token_of_the_last_admin_can_not_be_revoked(service: Service) -> None:
    for request in (
        pb.RevokeTokenRequest(principal="root"),
        pb.RevokeTokenRequest(digest=digest(token_of("root")).hex()),
    ):
        assert await denied(service["root"].RevokeToken(request)) == (
            "no admin of the store '*' could log in without this token of 'root': make another token or another admin "
            "before"
        )
    grant = pb.GrantRoleRequest(principal="local-admin", store="*", role=pb.ROLE_ADMIN)
    await service["root"].GrantRole(grant)
    assert (await service["root"].RevokeToken(pb.RevokeTokenRequest(principal="root"))).revoked == 1
    await service["local-admin"].GetStore(pb.GetStoreRequest(name="other"))


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (pb.RevokeTokenRequest(), "one of principal and digest is needed"),
        (pb.RevokeTokenRequest(principal="a", digest="0" * 64), "one of principal and digest is needed"),
        (pb.RevokeTokenRequest(digest="0" * 63), "is not 64 hexadecimal digits"),
        (pb.RevokeTokenRequest(principal="absent"), "principal 'absent' has no token in this instance's files"),
    ],
)
async def test_what_is_no_token_is_refused(service: Service, request_: pb.RevokeTokenRequest, sentence: str) -> None:
    assert sentence in await denied(service["root"].RevokeToken(request_))


async def test_tokens_that_are_revoked_have_a_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "MAX_REVOKED_TOKENS", 2)
    repo, by = bench.repo.roles, Authorship("root")
    tokens = [KnownToken("a", digest(str(number))) for number in range(3)]
    assert await repo.revoke_tokens(tokens[:2] + tokens[:1], None, by) == 2
    assert await repo.revoke_tokens(tokens[:1], None, by) == 0
    with pytest.raises(LimitExceededError, match="2 tokens are revoked, the limit is 2"):
        await repo.revoke_tokens(tokens[2:], None, by)
    assert await repo.revoked_tokens() == {token.digest for token in tokens[:2]}


class Log:
    """In the place of the repository of the audit log: what was added, if it is there."""

    def __init__(self) -> None:
        self.facts: list[AuditFact] = []
        self.up = True
        self.calls: asyncio.Queue[bool] = asyncio.Queue()

    async def add(self, facts: Any) -> None:
        if not self.up:
            raise UnavailableError("away")
        self.facts += facts

    async def seal(self) -> int:
        self.calls.put_nowait(self.up)
        if not self.up:
            raise UnavailableError("away")
        return 0

    async def clock_ms(self) -> int:
        return 1

    async def chain_page(self, _after: int, _limit: int) -> ChainPage:
        return ChainPage(Chain(Link(7, GENESIS), START), [])


@attempt(
    "many principals without a role",
    "fill the audit log",
    "200 entries an hour; the others are counted",
)
async def test_refused_calls_can_not_fill_the_disk() -> None:
    log: Any = Log()
    trail = AuditTrail(log, log, retention_ms=1_000)

    def refuse(principal: str, times: int) -> None:
        for _ in range(times):
            trail.refused("Put", Caller(principal, "c", "h"), "writer", "s", "k")

    refuse("loud", 1_000)
    await trail.flush()
    assert len(log.facts) == MAX_REFUSED_OF_PRINCIPAL
    for number in range(5_000):
        refuse(f"p{number}", 1)
    log.up = False
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await trail.flush()
    log.up = True
    await trail.flush()
    assert len(log.facts) == MAX_REFUSED
    await trail.close()
    last = log.facts[-1]
    assert (last.principal, last.action, last.outcome) == ("local", "RefusedCalls", "refused")
    said = json.loads(last.details)
    assert said["left_out"] == 6_000 - MAX_REFUSED
    assert said["principals"]["loud"] == 1_000 - MAX_REFUSED_OF_PRINCIPAL
    assert len(last.details) < 1_000
    await trail.close()
    assert log.facts[-1] is last


async def test_entries_are_chained_without_being_asked_for(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = service.running.app.core.audit
    chained = asyncio.Event()
    seal = audit._repository.seal

    async def seal_and_tell() -> int:
        found: int = await seal()
        if found:
            chained.set()
        return found

    monkeypatch.setattr(audit._repository, "seal", seal_and_tell)
    await service["deploy"].Put(PUT)
    await asyncio.wait_for(chained.wait(), PATIENCE_S)


async def test_an_outage_is_logged_once_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ringcast_config_service.audit.SEAL_EVERY_S", 0.0)
    monkeypatch.setattr("ringcast_config_service.audit._AGAIN_S", 0.0)
    caplog.set_level("INFO", "ringcast_config_service.audit")
    log: Any = Log()
    trail = AuditTrail(log, log, retention_ms=1_000)
    log.up = False
    began, before = trail._chained_at, trail.behind_s
    running = asyncio.create_task(trail.run())
    for _ in range(3):
        assert not await asyncio.wait_for(log.calls.get(), PATIENCE_S)
    assert trail.behind_s > before
    log.up = True
    while not await asyncio.wait_for(log.calls.get(), PATIENCE_S):
        pass
    for _ in range(2):  # the second comes after the first was counted
        await asyncio.wait_for(log.calls.get(), PATIENCE_S)
    assert trail._chained_at > began
    running.cancel()
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "postponed" in line] == ["event=audit.postponed error=away"]
    assert [line for line in lines if "head" in line] == [f"event=audit.head anchor=7:{GENESIS}"]
