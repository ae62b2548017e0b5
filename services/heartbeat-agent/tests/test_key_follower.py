"""Keys that are joined and left."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ringcast.hosting import KeyReader
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.items import KeySelection
from ringcast_heartbeat_agent.dapr.observer import Position
from ringcast_heartbeat_agent.dapr.observers import Observers
from ringcast_heartbeat_agent.dapr.subscription import Subscription
from ringcast_heartbeat_agent.dispatch.key_follower import KeyFollower
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_heartbeat_agent.followers import Followers
from ringcast_heartbeat_agent.opening import Opener
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_wire import names


async def test_who_comes_while_a_key_is_being_left_follows_it_anew(
    shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    await asyncio.to_thread(writer.create, store_name)
    async with asyncio.TaskGroup() as tasks:
        config = Config(nats=(shared_nats.url,), agent_id="here")
        reader = KeyReader(config.nats, worker_id="here")
        followers = Followers(config, tasks)
        observers = Observers(config, followers, reader, None, Opener(""))

        def subscription() -> Subscription:
            wanted = KeySelection(["list"])
            return Subscription(store_name, wanted, max_items=10, max_bytes=10_000, api="grpc", changes=observers)

        first, second = subscription(), subscription()
        await observers.attach(first, "list")
        observers.detach(first)
        (observer,) = observers
        followers.leave(observer)
        await observers.attach(second, "list")
        assert not second.ended
        assert not first.waiting
        await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
        async with asyncio.timeout(PATIENCE_S):
            batch = await anext(second.batches())
        assert batch["a"].value == "1"
        assert len(followers.keys) == 1
        await followers.stop()
        assert second.ended
        await reader.close()
    assert len(followers.keys) == 0


async def test_who_comes_while_a_key_is_refused_for_good_is_told_as_well(
    shared_nats: NatsServer, store_name: str
) -> None:
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        config = Config(nats=(shared_nats.url,), agent_id="here")
        followers = Followers(config, tasks)
        observers = Observers(config, followers, KeyReader(config.nats, worker_id="here"), None, Opener(""))
        second = Subscription(store_name, KeySelection(["list"]), max_items=10, max_bytes=10_000, api="grpc")

        class First(Subscription):
            def end(self, error: StoppedError | None = None) -> None:
                if not self.ended:
                    observers.follow(store_name, "list").add(second, Position())
                super().end(error)

        first = First(store_name, KeySelection(["list"]), max_items=10, max_bytes=10_000, api="grpc")
        observers.follow(store_name, "list").add(first, Position())
    for one in (first, second):
        assert f"store '{store_name}' does not exist" in str(one.error)
    assert len(followers.keys) == 0


async def test_workers_keep_rows_on_disk_only_when_the_agent_is_told_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RINGCAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RINGCAST_JETSTREAM_API", "JS.elsewhere.API")
    worker = KeyFollower(Config(), "s", "list", None, Counter(), Opener(""))._worker
    assert (worker.config.cache_dir, worker.config.jetstream_api) == ("", "$JS.API")
    config = Config(agent_id="here", cache_dir=str(tmp_path / "own"), jetstream_api="JS.ringcast.API")
    worker = KeyFollower(config, "s", "list", None, Counter(), Opener(""))._worker
    assert (worker.config.cache_dir, worker.config.jetstream_api) == (str(tmp_path / "own"), "JS.ringcast.API")


def test_the_names_of_workers() -> None:
    """Known beforehand where they fit, and never the same for two keys of two stores."""
    worker_id = names.agent_worker_id
    assert worker_id("agent-a", "s", "list") == "agent-a-s-list"
    assert worker_id("a" * 40, "s" * 10, "k" * 12) == f"{'a' * 40}-{'s' * 10}-{'k' * 12}"
    long = {worker_id("a" * 40, "s", "k" * 63 + last) for last in "xy"}
    long |= {worker_id("a" * 64, store, "k") for store in ("x", "y")}
    long |= {worker_id("a", "b-c", "d"), worker_id("a", "b", "c-d")}
    long |= {names.agent_observer_id("agent-a", "s", key) for key in ("list", "list-observer")}
    assert len(long) == 8
    assert all(names.check_name("worker_id", name) for name in long)
