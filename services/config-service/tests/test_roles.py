"""Roles: what each call needs, as a client of a real service sees it, and how roles are granted."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from ringcast_config_service.access import EACH, INCLUDED, RULES, Access, Rule
from ringcast_config_service.caller import Caller
from ringcast_config_service.refusals import Refusals
from ringcast_config_service.repository import ALL, Authorship, RoleGrant, make_repository
from ringcast_config_service.security import Security
from ringcast_testkit import PATIENCE_S, attempt
from ringcast_wire import InvalidInputError, PermissionDeniedError, Role
from ringcast_wire.grpc import ROLES, STATUS, ConfigServiceStub, ServiceLogin, error_from_rpc, pb
from ringcast_wire.tokens import token_line

Keys = Any  # of conftest.py
Bench = Any  # of conftest.py
Stubs = dict[str, ConfigServiceStub]

DENIED = STATUS[PermissionDeniedError.code]
README = Path(__file__).parent.parent / "README.md"
CALLERS = ("root", "nobody", *Role)
ROW = pb.RowWrite(row_id="a", value="v")
STAGED = pb.KeyedWrite(key="k", row=pb.RowWrite(row_id="staged", value="v", if_absent=True))
NUMBER = ROLES[Role.READER]
REQUESTS: dict[str, Any] = {
    "GrantRole": pb.GrantRoleRequest(store="s", principal="guest", role=NUMBER),
    "RevokeRole": pb.RevokeRoleRequest(store="s", principal="guest", role=NUMBER),
    "RevokeToken": pb.RevokeTokenRequest(digest="0" * 64),
    "ListAudit": pb.ListAuditRequest(store="s"),
    "VerifyAudit": pb.VerifyAuditRequest(),
    "CreateStore": pb.CreateStoreRequest(name="s", partition_count=8),
    "GetStore": pb.GetStoreRequest(name="s"),
    "MigrateStore": pb.MigrateStoreRequest(name="s", stage=pb.MIGRATION_STAGE_SHADOW),
    "UpdateStore": pb.UpdateStoreRequest(name="s", inline_max_bytes=8),
    "GetStorePolicy": pb.GetStorePolicyRequest(name="s"),
    "SetStorePolicy": pb.SetStorePolicyRequest(name="s", policy=pb.StorePolicy(max_keys=50)),
    "RegisterSchema": pb.RegisterSchemaRequest(store="s", key="checked", definition="{}"),
    "CheckSchema": pb.CheckSchemaRequest(store="s", key="k", definition="{}"),
    "SetSchemaMode": pb.SetSchemaModeRequest(store="s", key="checked", mode=pb.SCHEMA_MODE_WARN),
    "ListSchemas": pb.ListSchemasRequest(store="s"),
    "GetSchema": pb.GetSchemaRequest(store="s", key="checked"),
    "DeleteStore": pb.DeleteStoreRequest(name="s"),
    "RestoreStore": pb.RestoreStoreRequest(name="s"),
    "DeleteKey": pb.DeleteKeyRequest(store="s", key="gone"),
    "RestoreKey": pb.RestoreKeyRequest(store="s", key="gone"),
    "NewHistory": pb.NewHistoryRequest(name="s"),
    "Put": pb.PutRequest(store="s", key="k", row_id="a", value="v"),
    "Delete": pb.DeleteRequest(store="s", key="k", row_id="b"),
    "Commit": pb.CommitRequest(store="s", writes=[pb.KeyedWrite(key="k", row=ROW)]),
    "Change": pb.Changes(store="s", key="k", changes=[pb.RowChange(number=1, row_id="a", value="v")]),
    "Write": pb.WriteBatch(store="s", key="k", rows=[ROW]),
    "StageRelease": pb.StageReleaseRequest(store="s", stage_id="one", rows=[STAGED], complete=True),
    "ListReleases": pb.ListReleasesRequest(store="s"),
    **dict.fromkeys(("GetRelease", "GetReleaseCertificate"), pb.GetReleaseRequest(store="s", number=1)),
    "ListReleaseRows": pb.ListReleaseRowsRequest(store="s", number=1),
    "PublishRelease": pb.PublishReleaseRequest(store="s", number=1),
    "ApproveRelease": pb.ApproveReleaseRequest(store="s", number=1),
    "RevokeApproval": pb.ChangeReleaseRequest(store="s", number=1),
    **dict.fromkeys(("PauseRelease", "ResumeRelease", "StopRelease"), pb.ChangeReleaseRequest(store="s", number=1)),
    "UndoRelease": pb.ChangeReleaseRequest(store="s", number=1),
    **dict.fromkeys(("DropRelease", "PinRelease", "UnpinRelease"), pb.ChangeReleaseRequest(store="s", number=1)),
    "ProveRelease": pb.ProveReleaseRequest(store="s", number=1),
    "ListRowReleases": pb.ListRowReleasesRequest(store="s", key="k", row_id="a"),
    "Get": pb.GetRequest(store="s", key="k", row_ids=["a"]),
    "List": pb.ListRequest(store="s", key="k"),
    "History": pb.HistoryRequest(store="s", key="k"),
    "Heads": pb.HeadsRequest(store="s", key="k"),
    "ListAsOf": pb.ListAsOfRequest(store="s", key="k"),
    "Diff": pb.DiffRequest(store="s", key="k"),
    "ListDeadLetters": pb.ListDeadLettersRequest(store="s"),
    "ReplayDeadLetters": pb.ReplayDeadLettersRequest(store="s", numbers=[1]),
    "DiscardDeadLetters": pb.DiscardDeadLettersRequest(store="s", numbers=[1]),
    "WhoAmI": pb.WhoAmIRequest(),
    "GetServiceStatus": pb.GetServiceStatusRequest(),
    "ListStores": pb.ListStoresRequest(),
    "ListRoles": pb.ListRolesRequest(),
}
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["ConfigService"].methods}


@pytest.fixture
def accesses() -> list[Access]:
    """The access of the service that :func:`stubs` starts."""
    return []


@pytest.fixture
def no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance reads the roles when it starts and when it changes them, and not by itself."""
    monkeypatch.setattr("ringcast_config_service.access._RELOAD_S", 3_600.0)


@pytest.fixture
async def stubs(start: Any, nats_url: str, tmp_path: Path, keys: Keys, accesses: list[Access]) -> AsyncIterator[Stubs]:
    """A client with a token for each of :data:`CALLERS`, of a service with the stores ``s`` and ``other``."""
    tokens = {name: f"the-token-of-{name}-which-is-long" for name in CALLERS}
    file = keys.write("named", "".join(f"{token_line(name, token)}\n" for name, token in tokens.items()).encode())
    security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, token_file=file)
    async with AsyncExitStack() as stack:
        database = f"sqlite:{tmp_path / 'ringcast.db'}"
        service = await stack.enter_async_context(start(nats_url, database, security=security))
        accesses.append(service.app.core.access)
        found = {}
        for name, token in tokens.items():
            login = ServiceLogin(tls_ca_file=keys.ca, token_file=keys.write(f"of-{name}", token.encode()))
            channel = login.aio_channel(service.app.grpc_address, ())
            found[name] = ConfigServiceStub(await stack.enter_async_context(channel))
        root = found["root"]
        for name in ("s", "other"):
            await root.CreateStore(pb.CreateStoreRequest(name=name, partition_count=8))
        await root.Put(pb.PutRequest(store="s", key="k", row_id="a", value="v"))
        yield found


async def grant(stub: ConfigServiceStub, principal: str, store: str, role: Role) -> bool:
    request = pb.GrantRoleRequest(principal=principal, store=store, role=ROLES[role])
    return bool((await stub.GrantRole(request, timeout=PATIENCE_S)).granted)


async def revoke(stub: ConfigServiceStub, principal: str, store: str, role: Role) -> bool:
    request = pb.RevokeRoleRequest(principal=principal, store=store, role=ROLES[role])
    return bool((await stub.RevokeRole(request, timeout=PATIENCE_S)).revoked)


async def grant_all(stubs: Stubs) -> None:
    """``root`` is admin of all stores, and the others have the role of their name for ``s``."""
    await grant(stubs["root"], "root", "*", Role.ADMIN)
    for role in Role:
        await grant(stubs["root"], role, "s", role)


async def outcome(stub: ConfigServiceStub, name: str, request: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends, and what it says then."""
    method = METHODS[name]
    call = getattr(stub, name)(iter([request]) if method.client_streaming else request, timeout=PATIENCE_S)
    if method.server_streaming:
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
    return await call.code(), str(await call.details())


def test_each_call_has_a_rule_and_a_request_here() -> None:
    assert RULES.keys() == METHODS.keys() == REQUESTS.keys()
    for name, rule in RULES.items():
        assert rule.role is None or rule.store in (EACH, ALL) or rule.store in METHODS[name].input_type.fields_by_name


@pytest.mark.parametrize("caller", ["nobody", *Role])
@attempt(
    "a principal of each role, and one without",
    "make each of the calls, for its store and for another",
    "what the table of roles does not allow: `PERMISSION_DENIED`, naming principal, role and store",
)
async def test_each_call_as_each_role(stubs: Stubs, caller: str) -> None:
    await grant_all(stubs)
    allowed = INCLUDED[Role(caller)] if caller in list(Role) else frozenset()
    for name, rule in RULES.items():
        code, details = await outcome(stubs[caller], name, REQUESTS[name])
        if rule.role is None or rule.store == EACH or (rule.store != ALL and rule.role in allowed):
            assert code is not DENIED, f"{name}: {details}"
        elif rule.store == ALL:
            sentence = f"principal '{caller}' has no role admin for store '*', which {name} needs: it has none"
            assert (code, details) == (DENIED, sentence)
        elif caller == Role.BREAK_GLASS:
            sentence = f"which counts only in a call with a reason, and {name} came without one"
            assert (code, details) == (DENIED, f"principal '{caller}' has the role {caller} for store 's', {sentence}")
        else:
            has = caller if caller in list(Role) else "none"
            sentence = f"principal '{caller}' has no role {rule.role} for store 's', which {name} needs: it has {has}"
            assert (code, details) == (DENIED, sentence)
    for name, rule in RULES.items():  # nobody has a role for another store
        if rule.role is None or rule.store in (EACH, ALL):
            continue
        other = type(REQUESTS[name])()
        other.CopyFrom(REQUESTS[name])
        setattr(other, rule.store, "other")
        code, details = await outcome(stubs[caller], name, other)
        assert code is DENIED, f"{name}: {details}"
        assert f"for store 'other', which {name} needs: it has none" in details


async def test_what_a_role_allows_succeeds(stubs: Stubs) -> None:
    await grant_all(stubs)
    for name in ("Put", "Delete", "Commit", "Change", "Write", "Get", "List", "History", "Heads", "Diff", "GetStore"):
        for caller in ("writer", "admin"):
            assert await outcome(stubs[caller], name, REQUESTS[name]) == (grpc.StatusCode.OK, "")
    assert (await outcome(stubs["root"], "Put", REQUESTS["Put"]))[0] is grpc.StatusCode.OK


@attempt(
    "the author of a release, in a store that wants an approval; a writer, who is no approver",
    "approve it, or publish it without one",
    "refused: it is published once another principal has approved it, who has the role",
)
async def test_nobody_approves_what_he_has_staged(stubs: Stubs) -> None:
    await grant_all(stubs)
    await stubs["admin"].SetStorePolicy(pb.SetStorePolicyRequest(name="s", policy=pb.StorePolicy(approvals=1)))
    staged = await stubs["admin"].StageRelease(REQUESTS["StageRelease"])
    approve = pb.ApproveReleaseRequest(store="s", number=1, digest=staged.digest, reason="looks well")
    code, said = await outcome(stubs["admin"], "ApproveRelease", approve)
    assert code is DENIED
    assert "was staged by 'admin', and has to be approved by another principal" in said
    assert (await outcome(stubs["writer"], "ApproveRelease", approve))[0] is DENIED
    code, said = await outcome(stubs["writer"], "PublishRelease", REQUESTS["PublishRelease"])
    assert code is grpc.StatusCode.ABORTED
    assert "the policy approvals of its store wants 1, and it has 0" in said
    approved = await stubs["approver"].ApproveRelease(approve)
    assert [(each.principal, each.reason) for each in approved.approvals] == [("approver", "looks well")]
    await stubs["writer"].PublishRelease(REQUESTS["PublishRelease"])


@attempt(
    "a writer of a store that takes releases only",
    "write directly, or lift the policy",
    "refused, naming the policy, or the role that is missing; nothing is written",
)
async def test_a_writer_can_not_go_round_releases(stubs: Stubs) -> None:
    await grant_all(stubs)
    await stubs["admin"].SetStorePolicy(pb.SetStorePolicyRequest(name="s", policy=pb.StorePolicy(releases_only=True)))
    for name in ("Put", "Delete", "Commit", "Write"):
        code, said = await outcome(stubs["writer"], name, REQUESTS[name])
        assert code is DENIED, name
        assert "takes no direct writes, its policy releases_only is set" in said
    code, said = await outcome(stubs["writer"], "SetStorePolicy", pb.SetStorePolicyRequest(name="s"))
    assert (code, "has no role admin for store 's'" in said) == (DENIED, True)
    rows = (await stubs["reader"].Get(pb.GetRequest(store="s", key="k", row_ids=["a"]))).rows
    assert [(row.row_id, row.value, row.version) for row in rows] == [("a", "v", 1)]


@attempt(
    "a principal without a role for a store",
    "see it in lists of stores or roles",
    "the lists leave it out",
)
async def test_lists_have_what_the_caller_may_see(stubs: Stubs) -> None:
    await grant_all(stubs)

    async def seen(name: str) -> list[str]:
        return [store.name for store in (await stubs[name].ListStores(pb.ListStoresRequest())).stores]

    assert await seen("root") == ["other", "s"]
    assert await seen("nobody") == []
    assert [await seen(role) for role in Role] == [["s"]] * (len(Role) - 1) + [[]]
    listed = {name: len((await stubs[name].ListRoles(pb.ListRolesRequest())).roles) for name in CALLERS}
    nothing = dict.fromkeys(("nobody", "reader", "writer", "approver", "break-glass"), 0)
    assert listed == {**nothing, "root": 6, "admin": 5}
    one = await stubs["root"].ListRoles(pb.ListRolesRequest(store="s", principal="writer"))
    assert [(found.role, found.granted_by) for found in one.roles] == [(pb.ROLE_WRITER, "root")]
    assert one.roles[0].granted_at_ms > 1_700_000_000_000


@attempt(
    "a principal of one store",
    "write to another in the middle of a stream; write on over a stream when its role is gone",
    "the stream ends with `PERMISSION_DENIED`; nothing is written",
)
async def test_each_message_of_a_stream_is_looked_at(stubs: Stubs) -> None:
    await grant_all(stubs)
    batches = [pb.WriteBatch(store=store, key="k", sequence=number, rows=[ROW]) for number, store in enumerate("sx")]
    call = stubs["writer"].Write(iter(batches))
    assert (await call.read()).written == 1
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert isinstance(error_from_rpc(refused.value), PermissionDeniedError)
    changes = stubs["writer"].Change()
    await changes.write(REQUESTS["Change"])
    assert not (await changes.read()).results[0].error
    await revoke(stubs["root"], "writer", "s", Role.WRITER)
    await changes.write(REQUESTS["Change"])
    assert await changes.code() is DENIED


async def test_without_any_role_everybody_may_do_everything(stubs: Stubs) -> None:
    for name in REQUESTS.keys() - {"GrantRole", "ApproveRelease"}:  # which is of his own release here
        assert (await outcome(stubs["nobody"], name, REQUESTS[name]))[0] is not DENIED
    me = await stubs["nobody"].WhoAmI(pb.WhoAmIRequest())
    assert (me.principal, list(me.roles), me.unrestricted) == ("nobody", [], True)


async def test_the_first_role_and_the_last_keep_a_principal_that_may_grant(stubs: Stubs) -> None:
    root = stubs["root"]
    code, details = await outcome(root, "GrantRole", REQUESTS["GrantRole"])
    assert code is STATUS[InvalidInputError.code]
    assert details == "the first role has to be admin of the store '*', or nobody could grant another"
    assert await grant(root, "root", "*", Role.ADMIN)
    assert not await grant(root, "root", "*", Role.ADMIN)
    last = pb.RevokeRoleRequest(principal="root", store="*", role=pb.ROLE_ADMIN)
    code, details = await outcome(root, "RevokeRole", last)
    assert code is STATUS[InvalidInputError.code]
    assert "'root' is the last admin of the store '*'" in details
    assert await grant(root, "admin", "*", Role.ADMIN)
    assert await revoke(root, "root", "*", Role.ADMIN)
    assert (await outcome(root, "Put", REQUESTS["Put"]))[0] is DENIED
    assert not await revoke(stubs["admin"], "root", "*", Role.ADMIN)


async def test_a_role_may_be_everybodys(stubs: Stubs) -> None:
    await grant(stubs["root"], "root", "*", Role.ADMIN)
    await grant(stubs["root"], "*", "s", Role.READER)
    assert (await outcome(stubs["nobody"], "Get", REQUESTS["Get"]))[0] is grpc.StatusCode.OK
    assert (await outcome(stubs["nobody"], "Put", REQUESTS["Put"]))[0] is DENIED
    me = await stubs["nobody"].WhoAmI(pb.WhoAmIRequest())
    assert [(found.principal, found.store, found.role) for found in me.roles] == [("*", "s", pb.ROLE_READER)]
    assert not me.unrestricted


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GrantRoleRequest(principal="a", store="no name", role=NUMBER), "store"),
        (pb.GrantRoleRequest(principal="", store="s", role=NUMBER), "principal"),
        (pb.GrantRoleRequest(principal="a\n", store="s", role=NUMBER), "principal"),
        (pb.GrantRoleRequest(principal=" a", store="s", role=NUMBER), "principal"),
        (pb.GrantRoleRequest(principal="x" * 401, store="s", role=NUMBER), "principal"),
        (pb.GrantRoleRequest(principal="a", store="s"), "role"),
        (pb.GrantRoleRequest(principal="a", store="s", role=99), "role"),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_role_is_refused(service: Any, request_: pb.GrantRoleRequest, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await service.stub.GrantRole(request_)
    error = error_from_rpc(refused.value)
    assert isinstance(error, InvalidInputError)
    assert error.field == field


async def test_a_refusal_is_counted_and_logged_once(stubs: Stubs, caplog: pytest.LogCaptureFixture) -> None:
    await grant_all(stubs)
    for _ in range(3):
        assert (await outcome(stubs["reader"], "Put", REQUESTS["Put"]))[0] is DENIED
    lines = [record.getMessage() for record in caplog.records if "role.missing" in record.getMessage()]
    assert len(lines) == 1
    assert "principal=reader role=writer store=s method=Put" in lines[0]


@attempt(
    "many principals without a role",
    "fill the log with refusals",
    "20 lines a minute; all are counted",
)
def test_refusals_of_many_principals_are_logged_in_a_bounded_number(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for number in range(100):
        refusals.role("Put", Caller(f"p{number}", "c", "h"), "writer", "s")
    assert refusals.counts["unary", "no_role"] == 100
    assert len(caplog.records) == 20


@pytest.mark.usefixtures("no_news")
async def test_the_instance_that_changes_a_role_knows_it_without_a_reading_of_all(
    stubs: Stubs, accesses: list[Access], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or 10,000 roles, granted one after the other, would be 50 million readings of one."""
    (access,) = accesses
    root, me = stubs["root"], Caller("root", "c", "h")
    await grant(root, "root", "*", Role.ADMIN)
    await access._repository.grant_role(RoleGrant("by-another-instance", "s", Role.READER, 0, "root"))
    before = access.version
    with monkeypatch.context() as patched:
        patched.delattr(type(access._repository), "role_grants")
        for name in ("b", "a", "c"):
            assert await grant(root, name, "s", Role.WRITER)
            assert not await grant(root, name, "s", Role.WRITER)
        assert await grant(root, "a", "s", Role.APPROVER)
        assert await revoke(root, "a", "s", Role.WRITER)
        assert not await revoke(root, "a", "s", Role.WRITER)
        assert await revoke(root, "c", "s", Role.WRITER)
    assert access.version == before + 6
    known = access.list_roles(me, "", "")
    admin, *of_s = [found[:3] for found in known]
    assert (admin, of_s) == (("root", "*", Role.ADMIN), [("a", "s", Role.APPROVER), ("b", "s", Role.WRITER)])
    assert all(found.granted_at_ms for found in known)
    assert [access.may(Caller("a", "c", "h"), role, "s") for role in (Role.APPROVER, Role.WRITER)] == [True, False]
    assert not access.may(Caller("c", "c", "h"), Role.READER, "s")
    await access.load()
    assert {*access.list_roles(me, "", "")} - {*known} == {*access.list_roles(me, "", "by-another-instance")} != set()


@pytest.mark.usefixtures("no_news")
async def test_an_instance_that_takes_the_last_role_away_that_it_knows_reads_all(
    stubs: Stubs, accesses: list[Access]
) -> None:
    """Another instance has made somebody else an admin meanwhile, or it could not be taken away."""
    (access,) = accesses
    await grant(stubs["root"], "root", "*", Role.ADMIN)
    await access._repository.grant_role(RoleGrant("admin", "*", Role.ADMIN, 0, "root"))
    assert await revoke(stubs["root"], "root", "*", Role.ADMIN)
    assert not access.unrestricted
    assert (await outcome(stubs["root"], "Put", REQUESTS["Put"]))[0] is DENIED
    assert (await outcome(stubs["admin"], "Put", REQUESTS["Put"]))[0] is grpc.StatusCode.OK


@pytest.mark.usefixtures("no_news")
@attempt(
    "an admin whose role was taken away through another instance",
    "take it back before this instance knows",
    "`PERMISSION_DENIED`: the database decides",
)
async def test_an_instance_that_does_not_know_yet_grants_nothing(stubs: Stubs, accesses: list[Access]) -> None:
    """Another instance has granted the first role, or taken one away, less than 2 s ago: what this one remembers does
    not let anybody grant himself one."""
    (access,) = accesses
    elsewhere = access._repository
    await elsewhere.grant_role(RoleGrant("root", "*", Role.ADMIN, 0, "root"))
    assert access.unrestricted
    request = pb.GrantRoleRequest(principal="nobody", store="*", role=pb.ROLE_ADMIN)
    code, details = await outcome(stubs["nobody"], "GrantRole", request)
    assert (code, details) == (DENIED, "principal 'nobody' has no role admin for store '*', or not any more")
    await grant(stubs["root"], "admin", "*", Role.ADMIN)
    stale = access._grants
    await elsewhere.revoke_role("admin", "*", Role.ADMIN, Authorship("root"))
    assert access._grants is stale
    again = pb.RevokeRoleRequest(principal="root", store="*", role=pb.ROLE_ADMIN)
    assert (await outcome(stubs["admin"], "RevokeRole", again))[0] is DENIED
    request = pb.GrantRoleRequest(principal="admin", store="s", role=pb.ROLE_ADMIN)
    assert (await outcome(stubs["admin"], "GrantRole", request))[0] is DENIED


async def test_an_instance_learns_of_roles_by_itself(
    start: Callable[..., Any], nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringcast_config_service.access._RELOAD_S", 0.02)
    async with start(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}") as service:
        access, known = service.app.core.access, asyncio.Event()
        # As another instance would, past this one's own memory.
        await access._repository.grant_role(RoleGrant("ops", "*", Role.ADMIN, 0, "ops"))
        load = access.load

        async def load_and_tell() -> None:
            await load()
            known.set()

        monkeypatch.setattr(access, "load", load_and_tell)
        await asyncio.wait_for(known.wait(), PATIENCE_S)
        assert not (await service.stub.WhoAmI(pb.WhoAmIRequest())).unrestricted
        with pytest.raises(grpc.aio.AioRpcError, match=r"principal 'host:127.0.0.1' has no role admin for store 's'"):
            await service.create("s")


@pytest.mark.parametrize("granted", [False, True])
async def test_the_log_says_at_the_start_that_tokens_are_all_equal(
    start: Callable[..., Any],
    nats_url: str,
    tmp_path: Path,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
    granted: bool,
) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    repo = make_repository(database)
    await repo.open()
    if granted:
        await repo.roles.grant_role(RoleGrant("ops", "*", Role.ADMIN, 0, "ops"))
    await repo.close()
    security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, token_file=keys.tokens)
    async with start(nats_url, database, security=security):
        assert any("roles.none" in record.getMessage() for record in caplog.records) is not granted


def test_the_readme_has_the_role_of_each_call() -> None:
    text = README.read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text.partition("| call | needs |\n")[2], re.MULTILINE))
    assert table == {name: _in_words(rule) for name, rule in RULES.items()}, "\n".join(
        ["| call | needs |", "|---|---|", *(f"| `{name}` | {_in_words(rule)} |" for name, rule in RULES.items())]
    )


def _in_words(rule: Rule) -> str:
    if rule.role is None:
        return "no role"
    if rule.store == ALL:
        return f"`{rule.role}` of `*`"
    return f"`{rule.role}`, for each store that it lists" if rule.store == EACH else f"`{rule.role}` of the store"
