"""How connections end: by age, by silence, and when nobody is at the other end any more."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from ringcast_config_service.config import Config
from ringcast_config_service.grpc.admission import LIMITS, CallKind, Limit
from ringcast_config_service.grpc.connections import ConnectionSettings
from ringcast_service import ConfigError
from ringcast_testkit import PATIENCE_S, TcpProxy
from ringcast_wire.grpc import ConfigServiceStub, pb

OWN = (("grpc.use_local_subchannel_pool", 1),)


async def test_half_open_connections_lose_their_places(
    start: Any, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, CallKind.CHANGES, Limit(1, 1, 1))
    settings = ConnectionSettings(keepalive_s=0.2, keepalive_timeout_s=0.2)
    async with start(nats_url, f"sqlite:{tmp_path / 'x.db'}", connections=settings) as service:
        port = int(service.app.grpc_address.rpartition(":")[2])
        with TcpProxy(port) as proxy:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}", OWN)
            await ConfigServiceStub(channel).Change().wait_for_connection()
            proxy.silence()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await service.stub.Change().wait_for_connection()
                        break
            await channel.close()


async def test_calls_go_on_over_connections_that_reach_their_age(
    start: Any, nats_url: str, tmp_path: Path, store_name: str
) -> None:
    settings = ConnectionSettings(age_s=0.2, age_grace_s=PATIENCE_S)
    async with start(nats_url, f"sqlite:{tmp_path / 'x.db'}", connections=settings) as service:
        await service.create(store_name)
        began = asyncio.get_running_loop().time()
        written = 0
        while asyncio.get_running_loop().time() < began + 2:  # ten times the age
            await service.put(store_name, f"r{written}")
            written += 1
        heads = await service.stub.Heads(pb.HeadsRequest(store=store_name, key="k"))
        assert sum(heads.heads) == written


async def test_a_call_ends_with_the_grace_of_its_connection(start: Any, nats_url: str, tmp_path: Path) -> None:
    settings = ConnectionSettings(age_s=0.1, age_grace_s=0.1)
    async with start(nats_url, f"sqlite:{tmp_path / 'x.db'}", connections=settings) as service:
        call = service.stub.Change()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_times_are_checked() -> None:
    with pytest.raises(ConfigError, match="connection_idle is 0: it must be above 0"):
        Config(database="sqlite:x", connections=ConnectionSettings(idle_s=0))
