"""Sealed values over a real service: what it stores, what each call gives back, and what a new key changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from ringcast_client import (
    ConfigServiceClient,
    KeyedWrite,
    OnInvalid,
    ResealResult,
    RowRecord,
    RowWrite,
)
from ringcast_testkit import ConfigServiceProcess
from ringcast_wire import InvalidInputError, UnknownKeyError, ValueSealedError, limits
from ringcast_wire.key_ring import ALGORITHM, KeyRing, KeyRingDocument, make_key, write_key_ring

DOCUMENT = KeyRingDocument(active="k1", keys={"k1": make_key(), "k2": make_key()}, encrypt=["*/secret*"])
SEALED = {"enc-alg": ALGORITHM, "enc-kid": "k1"}


class Clients:
    """Clients with this or that key ring, of one store."""

    def __init__(self, address: str, store: str, stack: AsyncExitStack) -> None:
        self._address = address
        self._stack = stack
        self.store = store

    async def with_ring(self, **changes: Any) -> ConfigServiceClient:
        facts = {name: getattr(DOCUMENT, name) for name in ("active", "keys", "encrypt", "accept_clear")}
        ring = KeyRing(KeyRingDocument(**{**facts, **changes}))
        return await self._stack.enter_async_context(ConfigServiceClient(self._address, key_ring=ring))

    async def plain(self) -> ConfigServiceClient:
        return await self._stack.enter_async_context(ConfigServiceClient(self._address))

    async def stored(self, key: str = "secret") -> dict[str, RowRecord]:
        return {row.row_id: row async for row in (await self.plain()).list(self.store, key)}


@pytest.fixture
async def clients(service: ConfigServiceProcess, store: str) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(service.address, store, stack)


async def _content(client: ConfigServiceClient, store: str) -> dict[str, tuple[str, dict[str, str]]]:
    return {row.row_id: (row.value, row.metadata) async for row in client.list(store, "secret")}


async def test_every_way_to_write_seals_and_every_way_to_read_opens(clients: Clients) -> None:
    client, store = await clients.with_ring(), clients.store
    await client.put(store, "secret", "put", "clear text", {"owner": "abuse"})
    await client.put(store, "open", "put", "clear text")
    async with client.changes(store, "secret") as writer:
        await writer.put("change", "clear text")
    async for _ in client.bulk_write(store, "secret", [RowWrite("bulk", "clear text"), RowWrite("bulk2", "")]):
        pass
    await client.commit(
        store, [KeyedWrite("secret", "commit", "clear text", {"owner": "abuse"}), KeyedWrite("open", "commit", "clear")]
    )
    async for _ in client.bulk_write(store, "secret", [RowWrite("gone", "clear text")]):
        pass
    await client.delete(store, "secret", "gone")

    stored = await clients.stored()
    assert not any("clear text" in row.value for row in stored.values())
    assert stored["put"].metadata == {"owner": "abuse", **SEALED}
    assert stored["bulk2"].metadata == SEALED
    assert {row.value for row in (await clients.stored("open")).values()} == {"clear text", "clear"}

    expected: dict[str, tuple[str, dict[str, str]]] = {name: ("clear text", {}) for name in ("change", "bulk")}
    expected |= {name: ("clear text", {"owner": "abuse"}) for name in ("put", "commit")} | {"bulk2": ("", {})}
    assert await _content(client, store) == expected
    (row,) = await client.get(store, "secret", ["put"])
    assert (row.value, row.metadata) == ("clear text", {"owner": "abuse"})
    (gone,) = [row async for row in client.list(store, "secret", include_deleted=True) if row.deleted]
    assert gone.value == ""
    history = {revision.row.row_id: revision.row.value async for revision in client.history(store, "secret")}
    assert history == {**{name: value for name, (value, _) in expected.items()}, "gone": ""}
    assert [row.value for row in await client.as_stored.get(store, "secret", ["put"])] == [stored["put"].value]


async def test_the_same_value_again_is_unchanged(clients: Clients) -> None:
    client, store = await clients.with_ring(), clients.store
    rows = [RowWrite(f"row{number}", f"value{number}", {"n": "m"}) for number in range(1_200)]
    for written, unchanged in ((1_200, 0), (0, 1_200)):
        batches = [batch async for batch in client.bulk_write(store, "secret", rows, skip_unchanged=True)]
        assert (sum(batch.written for batch in batches), sum(batch.unchanged for batch in batches)) == (
            written,
            unchanged,
        )
    result = await client.sync(store, "secret", [*rows[1:-1], RowWrite("row5", "other"), RowWrite("new")])
    assert (result.added, result.changed, result.deleted, result.unchanged) == (1, 1, 2, 1_197)
    assert (await _content(client, store))["row5"] == ("other", {})
    assert all(row.metadata["enc-kid"] == "k1" for row in (await clients.stored()).values())


async def test_a_new_key_changes_nothing_until_rows_are_sealed_again(clients: Clients) -> None:
    store = clients.store
    old, new = await clients.with_ring(), await clients.with_ring(active="k2")
    rows = [RowWrite(f"row{number}", f"value{number}") for number in range(30)]
    await old.sync(store, "secret", rows)
    result = await new.sync(store, "secret", [*rows[1:], RowWrite("row0", "other")])
    assert (result.changed, result.unchanged) == (1, 29)
    assert [row.metadata["enc-kid"] for row in (await clients.stored()).values()].count("k2") == 1
    result = await new.sync(store, "secret", [*rows[:20], *rows[20:]], reseal=True)
    assert (result.changed, result.unchanged) == (30, 0)
    assert {row.metadata["enc-kid"] for row in (await clients.stored()).values()} == {"k2"}
    only_new = await clients.with_ring(active="k2", keys={"k2": DOCUMENT.keys["k2"]})
    assert await _content(only_new, store) == {row.row_id: (row.value, {}) for row in rows}


async def test_reseal_writes_what_has_another_key_and_keeps_what_others_change(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = clients.store
    old, new = await clients.with_ring(), await clients.with_ring(active="k2")
    rows = [RowWrite(f"row{number}", f"value{number}", {"n": str(number)}) for number in range(1_500)]
    await old.sync(store, "secret", rows)
    await new.put(store, "secret", "row7", "new already")
    original = ConfigServiceClient.commit
    meddled: list[str] = []

    async def after_another(self: ConfigServiceClient, store: str, writes: list[KeyedWrite], **options: Any) -> Any:
        if not meddled:
            meddled.append(writes[3].row_id)
            await original(old, store, [KeyedWrite("secret", writes[3].row_id, "theirs")])
        return await original(self, store, writes, **options)

    seen: list[int] = []

    def on_progress(result: ResealResult) -> None:
        seen.append(result.resealed)

    with monkeypatch.context() as patched:
        patched.setattr(ConfigServiceClient, "commit", after_another)
        result = await new.reseal(store, "secret", reason="rotation", on_progress=on_progress)
    assert (result.rows, result.resealed, result.conflicts) == (1_500, 1_498, 1)
    assert (result.first_conflicts, seen) == (meddled, [999, 1_498])
    expected = {row.row_id: (row.value, dict(row.metadata)) for row in rows}
    assert await _content(new, store) == {**expected, "row7": ("new already", {}), meddled[0]: ("theirs", {})}
    again = await new.reseal(store, "secret")
    assert (again.resealed, again.conflicts) == (1, 0)
    assert {row.metadata["enc-kid"] for row in (await clients.stored()).values()} == {"k2"}
    assert (await new.reseal(store, "secret")).resealed == 0
    (revision,) = [found async for found in new.history(store, "secret", "row9", since=0) if found.reason == "rotation"]
    assert revision.row.value == "value9"


async def test_encrypting_a_list_of_clear_text(clients: Clients) -> None:
    store = clients.store
    await (await clients.plain()).sync(store, "secret", [RowWrite("a", "clear"), RowWrite("b", "clear")])
    strict, moving = await clients.with_ring(), await clients.with_ring(accept_clear=["*/secret"])
    for read in (strict.get(store, "secret", ["a"]), _content(strict, store), strict.reseal(store, "secret")):
        with pytest.raises(ValueSealedError, match=f"of {store}/secret is clear text"):
            await read
    assert await _content(moving, store) == {"a": ("clear", {}), "b": ("clear", {})}
    assert (
        await moving.sync(store, "secret", [RowWrite("a", "clear"), RowWrite("b", "clear")], dry_run=True)
    ).changed == 2
    assert (await moving.reseal(store, "secret")).resealed == 2
    assert await _content(strict, store) == {"a": ("clear", {}), "b": ("clear", {})}


async def test_with_the_key_lost_a_list_is_written_again(clients: Clients) -> None:
    store, lost = clients.store, await clients.with_ring()
    await lost.sync(store, "secret", [RowWrite("a", "1"), RowWrite("b", "2")])
    client = await clients.with_ring(active="k2", keys={"k2": DOCUMENT.keys["k2"]})
    with pytest.raises(ValueSealedError, match="is sealed with key 'k1', and the key ring has only k2"):
        await _content(client, store)
    with pytest.raises(ValueSealedError):
        await client.reseal(store, "secret")
    assert (await client.sync(store, "secret", [RowWrite("a", "1"), RowWrite("b", "2")])).changed == 2
    assert await _content(client, store) == {"a": ("1", {}), "b": ("2", {})}


async def test_a_value_moved_to_another_row_does_not_open(clients: Clients) -> None:
    store, client = clients.store, await clients.with_ring()
    await client.put(store, "secret", "a", "allow")
    stored = (await clients.stored())["a"]
    await (await clients.plain()).put(store, "secret", "b", stored.value, stored.metadata)
    with pytest.raises(ValueSealedError, match=f"row 'b' of {store}/secret does not open with key 'k1'"):
        await client.get(store, "secret", ["b"])


async def test_what_is_too_large_once_sealed_is_refused_before_it_is_sent(clients: Clients) -> None:
    store, client = clients.store, await clients.with_ring()
    large = "x" * (limits.MAX_ROW_BYTES - 100_000)
    with pytest.raises(InvalidInputError, match="once its value is encrypted; the limit is 1048576"):
        await client.put(store, "secret", "a", large)
    rows = [RowWrite("a", large), RowWrite("b", "fits")]
    (batch,) = [batch async for batch in client.bulk_write(store, "secret", rows, on_invalid=OnInvalid.SKIP_ROW)]
    assert ([row.row_id for row in batch.rejected], batch.written) == (["a"], 1)
    assert list(await clients.stored()) == ["b"]
    with pytest.raises(InvalidInputError, match="which only encryption sets"):
        await client.put(store, "secret", "a", "x", {"enc-kid": "k1"})


async def test_reseal_without_a_key_ring_and_of_no_list(clients: Clients) -> None:
    with pytest.raises(InvalidInputError, match="key_ring is missing"):
        await (await clients.plain()).reseal(clients.store, "secret")
    with pytest.raises(UnknownKeyError):
        await (await clients.with_ring()).reseal(clients.store, "secret")


async def test_the_environment_names_the_key_ring(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "ring.json")
    await asyncio.to_thread(write_key_ring, path, DOCUMENT, replace=False)
    monkeypatch.setenv("RINGCAST_KEY_RING", path)
    await (await clients.plain()).put(clients.store, "secret", "a", "clear text")
    monkeypatch.delenv("RINGCAST_KEY_RING")
    assert (await clients.stored())["a"].metadata == SEALED
