"""The roles that are granted, as the databases keep them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ringcast_config_service.repository import Authorship, RoleGrant, make_repository, roles
from ringcast_testkit import attempt
from ringcast_wire import InvalidInputError, LimitExceededError, PermissionDeniedError, Role

Bench = Any  # of conftest.py


async def test_roles_are_kept_in_the_database(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over both databases: granted, listed in order, revoked; and another instance reads the same."""
    repo = bench.repo.roles
    admin = RoleGrant("root", "*", Role.ADMIN, 0, "root")
    with pytest.raises(InvalidInputError, match="the first role has to be admin"):
        await repo.grant_role(RoleGrant("a", "s", Role.READER, 0, "me"))
    first, again = [await repo.grant_role(admin) for _ in range(2)]
    assert again is None
    assert await repo.grant_role(RoleGrant("b", "s", Role.WRITER, 0, "root"))
    assert await repo.grant_role(RoleGrant("a", "s", Role.WRITER, 0, "root"))
    other = make_repository(bench.address) if not bench.address.startswith("sqlite") else None
    found = await repo.role_grants()
    assert found[0] == first
    assert [each[:3] for each in found] == [
        ("root", "*", Role.ADMIN),
        ("a", "s", Role.WRITER),
        ("b", "s", Role.WRITER),
    ]
    assert {each.granted_by for each in found} == {"root"}
    if other is not None:
        await other.open()
        assert await other.roles.role_grants() == found
        both = await asyncio.gather(
            other.roles.grant_role(RoleGrant("c", "s", Role.READER, 0, "root")),
            repo.grant_role(RoleGrant("c", "s", Role.READER, 0, "root")),
        )
        assert sorted(each is not None for each in both) == [False, True]
        await other.close()
    monkeypatch.setattr(roles, "MAX_GRANTS", len(await repo.role_grants()))
    with pytest.raises(LimitExceededError, match="roles are granted, the limit is"):
        await repo.grant_role(RoleGrant("d", "s", Role.READER, 0, "root"))
    assert [await repo.revoke_role("a", "s", Role.WRITER, Authorship("root")) for _ in range(2)] == [True, False]
    with pytest.raises(InvalidInputError, match="is the last admin"):
        await repo.revoke_role("root", "*", Role.ADMIN, Authorship("root"))


@attempt(
    "two admins",
    "revoke each other at the same moment, so that nobody is left",
    "one of them is refused",
)
async def test_two_admins_who_revoke_each_other_leave_one(bench: Bench) -> None:
    """At once, through two instances where the database has room for two."""
    repo = bench.repo.roles
    other = bench.repo if bench.address.startswith("sqlite") else make_repository(bench.address)
    if other is not bench.repo:
        await other.open()
    await repo.grant_role(RoleGrant("a", "*", Role.ADMIN, 0, "a"))
    for _ in range(5):
        (found,) = await repo.role_grants()
        rival = "b" if found.principal == "a" else "a"
        await repo.grant_role(RoleGrant(rival, "*", Role.ADMIN, 0, found.principal))
        ended = await asyncio.gather(
            repo.revoke_role("a", "*", Role.ADMIN, Authorship("b")),
            other.roles.revoke_role("b", "*", Role.ADMIN, Authorship("a")),
            return_exceptions=True,
        )
        assert {type(end) for end in ended} == {bool, PermissionDeniedError}
    if other is not bench.repo:
        await other.close()
