"""Encrypted values in a worker: who gets them opened, what keeps them sealed, what becomes of one that won't open."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ringcast import Change, InvalidInputError, PoisonPolicy
from ringcast.aio import DaprClient
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S
from ringcast_wire import ValueSealedError
from ringcast_wire.key_ring import KeyRing, KeyRingDocument, make_key, write_key_ring

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

DOCUMENT = KeyRingDocument(active="k1", keys={"k1": make_key()}, encrypt=["*/list"])
CLEAR = "the clear text of a row"


def _rows_on_disk(directory: Path) -> dict[str, bool]:
    """Whether the cache has the clear text, by row."""
    (file,) = directory.rglob("*.db")
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT row_id, row FROM rows").fetchall()
    return {row_id: CLEAR.encode() in row for row_id, row in rows}


@pytest.fixture
def ring(tmp_path: Path) -> str:
    """The file of a key ring."""
    path = str(tmp_path / "ring.json")
    write_key_ring(path, DOCUMENT, replace=False)
    return path


@pytest.fixture
async def writer(store: Store) -> AsyncIterator[ConfigServiceClient]:
    """A client with the key ring; the store's own has none."""
    await store.create(partition_count=1, inline=4096)
    async with ConfigServiceClient(store.client.address, key_ring=KeyRing(DOCUMENT)) as client:
        yield client


async def test_the_handler_gets_values_and_the_disk_does_not(
    store: Store, writer: ConfigServiceClient, ring: str, tmp_path: Path, unused_tcp_port: int
) -> None:
    await writer.put(store.name, "list", "a", CLEAR, {"owner": "abuse"})
    await store.put("open", CLEAR, key="other")
    heard: list[Change] = []
    keys = ("list", "other")
    async with store.worker(keys=keys, key_ring=ring, cache_dir=tmp_path, handler=heard.append) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for row_id, value in (("inline", CLEAR), ("fetched", CLEAR * 300), ("empty", "")):
            await writer.put(store.name, "list", row_id, value)
        gone = await writer.delete(store.name, "list", "empty")
        await worker.wait_for("list", 0, gone.version, timeout_s=PATIENCE_S)
        assert [(change.row_id, change.value, change.metadata) for change in heard if change.key == "list"][:3] == [
            ("a", CLEAR, {"owner": "abuse"}),
            ("inline", CLEAR, None),
            ("fetched", CLEAR * 300, None),
        ]
        assert {row.row_id: row.value for row in worker.rows("list")} == {
            "a": CLEAR,
            "inline": CLEAR,
            "fetched": CLEAR * 300,
        }
        row = worker.get("list", "a")
        assert row is not None
        assert (row.value, row.metadata, worker.get("list", "empty")) == (CLEAR, {"owner": "abuse"}, None)
        assert (heard[-1].row_id, heard[-1].deleted, heard[-1].value) == ("empty", True, None)
        assert worker.health().keys[0].unopened_values == 0
    # The row of the other key, which is not encrypted, is found: so the search can find the others.
    on_disk = {"open": True, "a": False, "inline": False, "fetched": False}
    assert await asyncio.to_thread(_rows_on_disk, tmp_path) == on_disk

    heard.clear()
    nowhere = f"nats://127.0.0.1:{unused_tcp_port}"
    async with store.worker(
        keys=keys, key_ring=ring, cache_dir=tmp_path, servers=nowhere, connect_timeout_s=0.1, handler=heard.append
    ) as worker:
        await worker.wait_until("list", lambda: len(heard) >= 4, timeout_s=PATIENCE_S)
        assert all(change.stale for change in heard)
        assert {change.value for change in heard if change.row_id in ("a", "inline")} == {CLEAR}


@pytest.mark.parametrize("key_ring", ["none", "wrong"])
async def test_what_does_not_open_is_blocked_and_shows(
    store: Store, writer: ConfigServiceClient, tmp_path: Path, key_ring: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "ringcast")
    other = str(tmp_path / "other.json")
    document = KeyRingDocument(active="k2", keys={"k2": make_key()}, encrypt=["*/list"])
    write_key_ring(other, document, replace=False)
    await writer.put(store.name, "list", "bad", CLEAR)
    heard: list[Change] = []
    file = None if key_ring == "none" else other
    async with store.worker(handler=heard.append, poison_policy=PoisonPolicy.BLOCK, key_ring=file) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        health = worker.health().keys[0]
        assert (health.blocked_rows, health.unopened_values, heard) == (1, 1, [])
        (blocked,) = worker.blocked()
        assert "ValueSealedError" in blocked.error
        assert CLEAR not in repr(blocked)
        with pytest.raises(ValueSealedError, match=f"row 'bad' of {store.name}/list is sealed with key 'k1'"):
            worker.get("list", "bad")
        with pytest.raises(ValueSealedError):
            list(worker.rows("list"))
        assert not await worker.unblock("list", "bad")
        assert worker.stats().unopened == 2
        if key_ring == "wrong":
            both = {**document.keys, **DOCUMENT.keys}
            write_key_ring(other, KeyRingDocument(active="k2", keys=both, encrypt=["*/list"]), replace=True)
            assert await worker.unblock("list", "bad"), "it reads the file again for a key that it does not know"
            assert [(change.row_id, change.value) for change in heard] == [("bad", CLEAR)]
    assert any("change.given_up" in record.getMessage() for record in caplog.records)


async def test_clear_text_in_an_encrypted_list_goes_to_the_dead_letters(
    store: Store, writer: ConfigServiceClient, ring: str
) -> None:
    heard: list[Change] = []
    async with store.worker(handler=heard.append, key_ring=ring, poison_policy=PoisonPolicy.DEAD_LETTER) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        _, version = await store.put("slipped-in", "allow all")
        await worker.wait_for("list", 0, version, timeout_s=PATIENCE_S)
        assert (worker.stats().dead_letters, worker.stats().unopened, heard) == (1, 1, [])
        result = await writer.put(store.name, "list", "good", CLEAR)
        await worker.wait_for("list", 0, result.version, timeout_s=PATIENCE_S)
        assert [change.value for change in heard] == [CLEAR]
    (letter,) = [found async for found in store.client.dead_letters(store.name)]
    assert "is clear text, and the key ring says that this list is encrypted" in letter.error


async def test_a_dead_letter_of_a_failing_handler_is_sealed(
    store: Store, writer: ConfigServiceClient, ring: str
) -> None:
    await writer.put(store.name, "list", "bad", CLEAR)
    heard: list[str | None] = []

    def refuse(change: Change) -> None:
        heard.append(change.value)
        raise RuntimeError("no")

    policy = PoisonPolicy.DEAD_LETTER
    async with store.worker(handler=refuse, key_ring=ring, poison_policy=policy, handler_tries=1) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
    assert heard == [CLEAR]
    (letter,) = [found async for found in store.client.dead_letters(store.name, with_values=True)]
    assert CLEAR not in repr(letter)
    assert letter.metadata["enc-kid"] == "k1"
    (letter,) = [found async for found in writer.dead_letters(store.name, with_values=True)]
    assert (letter.value, letter.metadata) == (CLEAR, {})


async def test_the_iterator_of_changes(store: Store, writer: ConfigServiceClient, ring: str) -> None:
    for row_id in ("a", "b"):
        await writer.put(store.name, "list", row_id, CLEAR)
    await store.put("bad", "clear")
    async with store.worker(key_ring=ring, poison_policy=PoisonPolicy.BLOCK) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        heard: list[tuple[str, str | None]] = []
        async for change in worker.changes():
            heard.append((change.row_id, change.value))
            if len(heard) == 2:
                await writer.put(store.name, "list", "c", CLEAR)
            if len(heard) == 3:
                break
        assert (sorted(heard[:2]), heard[2]) == ([("a", CLEAR), ("b", CLEAR)], ("c", CLEAR))
        assert [row.change.row_id for row in worker.blocked()] == ["bad"]


async def test_the_client_of_dapr_opens_too(
    store: Store, writer: ConfigServiceClient, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.put(store.name, "list", "a", CLEAR)
    async with DaprClient(store.nats_url) as client:
        with pytest.raises(ValueSealedError, match="there is no key ring to open it"):
            await client.get_configuration(store.name, ["list"])
    monkeypatch.setenv("RINGCAST_KEY_RING", ring)
    async with DaprClient(store.nats_url) as client:
        for keys, name in ((["list"], "a"), (["list/a"], "list/a")):
            found = await client.get_configuration(store.name, keys)
            assert found.items[name].value == CLEAR
            assert "enc-kid" not in (found.items[name].metadata or {})


def test_a_bad_key_ring_is_refused_at_once(store: Store, ring: str) -> None:
    Path(ring).chmod(0o644)
    with pytest.raises(InvalidInputError, match="has the mode 0644"):
        store.worker(key_ring=ring)
