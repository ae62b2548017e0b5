"""A database in which an instance of a build to come has written what this one does not know, while this one runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ringcast_config_service.repository import PolicyChange
from ringcast_wire import Role, StorePolicy, UnavailableError

Bench = Any  # of conftest.py


async def test_policies_of_a_newer_build_stay_when_this_one_changes_others(bench: Bench) -> None:
    await bench.repo.policies.set_policy("s", PolicyChange(StorePolicy(max_keys=5, max_row_bytes=100)))
    await bench.execute("""UPDATE stores SET policy = '{"max_keys":5,"max_row_bytes":100,"max_moons":3}'""")

    async def stored() -> Any:
        ((text,),) = await bench.ask("SELECT policy FROM stores")
        return json.loads(text)

    found = await bench.repo.policies.set_policy("s", PolicyChange(StorePolicy(max_keys=7)))
    assert found.record.policy == StorePolicy(max_keys=7, max_row_bytes=100)
    assert await stored() == {"max_keys": 7, "max_row_bytes": 100, "max_moons": 3}
    lifted = PolicyChange(StorePolicy(), frozenset({"max_keys", "max_row_bytes"}))
    assert (await bench.repo.policies.set_policy("s", lifted)).record.policy == StorePolicy()
    assert await stored() == {"max_moons": 3}


async def test_a_role_of_a_newer_build_allows_nothing_and_keeps_no_other_from_being_read(bench: Bench) -> None:
    values = "INSERT INTO role_grants (principal, store, role, granted_by, granted_at_ms) VALUES"
    await bench.execute(f"{values} ('root', '*', 'admin', 'root', 1), ('eve', '*', 'auditor', 'root', 1)")
    assert [grant[:3] for grant in await bench.repo.roles.role_grants()] == [("root", "*", Role.ADMIN)]


@pytest.mark.parametrize(("column", "word"), [("strategy", "orbit"), ("mode", "RINGED")])
async def test_a_store_of_a_newer_build_is_left_to_its_instances(bench: Bench, column: str, word: str) -> None:
    """Every call that reads it is refused with a sentence, which has a client ask another instance."""
    await bench.execute(f"UPDATE stores SET {column} = '{word}'")
    sentence = f"^this instance does not know the {column} of store 's', '{word}': upgrade it$"
    for call in (bench.repo.stores.get_record, bench.repo.stores.get_store):
        with pytest.raises(UnavailableError, match=sentence):
            await call("s")
    with pytest.raises(UnavailableError, match=sentence):
        await bench.repo.stores.store_records()
