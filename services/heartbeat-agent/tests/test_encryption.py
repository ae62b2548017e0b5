"""Encrypted values at the agent: opened for subscribers, consumers and reads, refused without a key ring."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dapr.clients import DaprClient
from ringcast.dispatch import ConsumerError, Delivery
from ringcast_client import ConfigServiceClient
from ringcast_testkit import AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_testkit.dispatch import following, status_until
from ringcast_wire.key_ring import KeyRing, KeyRingDocument, make_key, write_key_ring

CLEAR = "the clear text"
DOCUMENT = KeyRingDocument(active="k1", keys={"k1": make_key()}, encrypt=["*/list"])


@pytest.fixture(scope="module")
def keyed_agent(
    tmp_path_factory: pytest.TempPathFactory, shared_nats: NatsServer, shared_service: ConfigServiceProcess
) -> Iterator[AgentProcess]:
    """An agent with the key ring, and with a cache on the disk."""
    directory = tmp_path_factory.mktemp("keyed")
    write_key_ring(str(directory / "ring.json"), DOCUMENT, replace=False)
    files = ("--cache-dir", str(directory / "cache"), "--key-ring", str(directory / "ring.json"), "--token-file", "off")
    options = (*files, "--id", "keyed", "--linger", "0.5", "--retry-first", "0.01", "--max-tries", "2")
    with AgentProcess(directory, nats_url=shared_nats.url, options=options) as agent:
        yield agent


@pytest.fixture
def put(shared_service: ConfigServiceProcess, writer: Any, store_name: str) -> Callable[..., None]:
    """Writes rows of clear text, sealed."""
    writer.create(store_name)

    async def write(rows: dict[str, str]) -> None:
        async with ConfigServiceClient(shared_service.address, key_ring=KeyRing(DOCUMENT)) as client:
            for row_id, value in rows.items():
                await client.put(store_name, "list", row_id, value, {"owner": "abuse"})

    return lambda **rows: asyncio.run(write(rows))


async def _dead_letters(service: ConfigServiceProcess, store: str, ring: KeyRing | None) -> list[Any]:
    async with ConfigServiceClient(service.address, key_ring=ring) as client:
        return [letter async for letter in client.dead_letters(store, with_values=True)]


def test_reads_and_subscriptions_of_dapr_are_opened(
    keyed_agent: AgentProcess, sidecar: Any, put: Any, updates: Any, store_name: str, tmp_path: Path
) -> None:
    put(a=CLEAR)
    sidecar(keyed_agent)
    heard = updates()
    with DaprClient() as client:
        for keys in (["list"], ["list/a"]):
            (item,) = client.get_configuration(store_name, keys).items.values()
            metadata = dict(item.metadata or {})
            assert (item.value, metadata["owner"]) == (CLEAR, "abuse")
            assert "enc-kid" not in metadata
        page = client.get_configuration(store_name, ["list"], {"ringcast.limit": "10"}).items
        assert [item.value for item in page.values()] == [CLEAR]
        subscription = client.subscribe_configuration(store_name, ["list"], heard, {"ringcast.rows": "true"})
        heard.until({"a": CLEAR})
        put(a=f"{CLEAR} 2", b=CLEAR)
        heard.until({"a": f"{CLEAR} 2", "b": CLEAR})
        client.unsubscribe_configuration(store_name, subscription)


async def test_consumers_of_a_group_get_values_and_dead_letters_keep_them_sealed(
    keyed_agent: AgentProcess,
    put: Any,
    writer: Any,
    store_name: str,
    shared_service: ConfigServiceProcess,
) -> None:
    heard: dict[str, str | None] = {}

    def answer(delivery: Delivery) -> None:
        heard[delivery.row_id] = delivery.value
        if delivery.row_id == "bad":
            delivery.reject("no")
        else:
            delivery.ack()

    await asyncio.to_thread(put, good=CLEAR, bad=CLEAR)
    await asyncio.to_thread(writer.put, store_name, "list", "slipped-in", "allow all")
    async with following(keyed_agent, store_name, poison_policy="dead-letter", answer=answer):
        await status_until(keyed_agent, store_name, lambda group: group["counts"]["dead_lettered"] == 2)
    assert heard == {"good": CLEAR, "bad": CLEAR}, "and never the clear text that was slipped in"
    letters = {letter.row_id: letter for letter in await _dead_letters(shared_service, store_name, None)}
    assert CLEAR not in repr(letters)
    assert letters["bad"].metadata["enc-kid"] == "k1"
    assert "is clear text, and the key ring says that this list is encrypted" in letters["slipped-in"].error
    opened = {letter.row_id: letter for letter in await _dead_letters(shared_service, store_name, KeyRing(DOCUMENT))}
    assert opened["bad"].value == CLEAR


async def test_a_consumer_without_answers_gets_values(keyed_agent: AgentProcess, put: Any, store_name: str) -> None:
    async with following(keyed_agent, store_name, mode="lossy") as consumer:
        await asyncio.to_thread(put, a=CLEAR)
        await consumer.values({"a": CLEAR})


def test_clear_text_ends_the_subscription_that_it_is_for(
    keyed_agent: AgentProcess, sidecar: Any, put: Any, writer: Any, updates: Any, store_name: str
) -> None:
    put(a=CLEAR)
    sidecar(keyed_agent)
    with DaprClient() as client:
        client.subscribe_configuration(store_name, ["list"], updates(), {"ringcast.rows": "true"})
        writer.put(store_name, "list", "slipped-in", "allow all")
        with pytest.raises(Exception, match=r"row .slipped-in. of .*/list is clear text"):
            client.get_configuration(store_name, ["list"])
        _until_no_subscription(keyed_agent, store_name)


async def test_without_a_key_ring_such_keys_are_refused(
    shared_agent: AgentProcess, sidecar: Any, put: Any, updates: Any, store_name: str
) -> None:
    await asyncio.to_thread(put, a=CLEAR)
    sidecar(shared_agent)
    sentence = f"row 'a' of {store_name}/list is sealed with key 'k1', and there is no key ring to open it"

    def read() -> None:
        with DaprClient() as client:
            with pytest.raises(Exception, match=sentence):
                client.get_configuration(store_name, ["list"])
            client.subscribe_configuration(store_name, ["list"], updates(), {"ringcast.rows": "true"})
            _until_no_subscription(shared_agent, store_name)

    await asyncio.to_thread(read)
    with pytest.raises(ConsumerError, match=sentence):
        async with following(shared_agent, store_name):
            pass


def _until_no_subscription(agent: AgentProcess, store: str) -> None:
    """Waits until the agent has ended all subscriptions of a store."""
    deadline = time.monotonic() + 30
    while any(key["subscriptions"] for key in agent.status()["workers"] if key["store"] == store):
        assert time.monotonic() < deadline, agent.status()
        time.sleep(0.05)
