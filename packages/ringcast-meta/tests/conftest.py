"""Each backend with a real server of its own behind a network that can fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from ringcast_meta import MemoryServer, MemoryStore, MetadataStore, StoreOptions, open_store
from ringcast_meta._etcd.session import EtcdSession
from ringcast_meta._nats.bucket import Bucket
from ringcast_testkit import PATIENCE_S, EtcdServer, ManagedServer, NatsServer, TcpProxy

Late: TypeAlias = Callable[[Awaitable[Any]], Awaitable[Any]]
PATIENT = StoreOptions(call_timeout_s=60.0, check_interval_s=0.1, silent_after_s=PATIENCE_S)
QUICK = StoreOptions(call_timeout_s=3.0, check_interval_s=0.1, silent_after_s=1.5)
"""Takes a server for gone soon, on a machine with much to do also one that is well."""


class Bench(ABC):
    """A server, stores of it, and what may go wrong. ``near`` stores reach it whatever happens to the network."""

    has_network = True
    """Whether near stores still reach the server when the network fails."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    @abstractmethod
    async def store(self, options: StoreOptions = PATIENT, *, near: bool = False) -> MetadataStore:
        """One more store of the same entries."""

    async def quick(self, *, near: bool = False) -> MetadataStore:
        """One that notices soon that its server is gone."""
        return await self.store(QUICK, near=near)

    @abstractmethod
    def delay_checks(self, monkeypatch: pytest.MonkeyPatch, late: Late) -> None:
        """From now on the answers to the checks of watches go through ``late``."""

    @abstractmethod
    def pause(self) -> None:
        """SIGSTOP."""

    @abstractmethod
    def resume(self) -> None:
        """SIGCONT."""

    @abstractmethod
    def cut(self) -> None:
        """Every connection of the stores that are not near breaks, and every new one."""

    @abstractmethod
    def silence(self) -> None:
        """Their connections stay open, and nothing gets through."""

    @abstractmethod
    def mend(self) -> None:
        """The network is well again."""

    @abstractmethod
    def restart(self) -> None:
        """SIGKILL, and a start with the same data."""

    async def close(self) -> None:
        """Closes the stores."""
        await self._stack.aclose()


class MemoryBench(Bench):
    """In memory there is no network but the server."""

    has_network = False

    def __init__(self) -> None:
        super().__init__()
        self.server = MemoryServer()

    async def store(self, options: StoreOptions = PATIENT, *, near: bool = False) -> MetadataStore:
        return MemoryStore(self.server, options)

    def delay_checks(self, monkeypatch: pytest.MonkeyPatch, late: Late) -> None:
        pytest.skip("a check in memory does not wait for an answer")

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def cut(self) -> None:
        self.server.cut()

    def silence(self) -> None:
        self.server.pause()

    def mend(self) -> None:
        self.server.resume()

    def restart(self) -> None:
        self.server.break_watches()


class ServerBench(Bench):
    """A process, behind a proxy."""

    def __init__(self, server: ManagedServer, port: int, address: str) -> None:
        super().__init__()
        self.server = server
        self.proxy = TcpProxy(port)
        self._port = port
        self._address = address

    def delay_checks(self, monkeypatch: pytest.MonkeyPatch, late: Late) -> None:
        for kind, name in ((Bucket, "state"), (EtcdSession, "_range")):
            real = getattr(kind, name)
            monkeypatch.setattr(kind, name, lambda self, *args, real=real, **more: late(real(self, *args, **more)))

    async def store(self, options: StoreOptions = PATIENT, *, near: bool = False, **more: Any) -> MetadataStore:
        address = self._address.format(port=self._port if near else self.proxy.port)
        return await self._stack.enter_async_context(open_store(address, options=options, create=True, **more))

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def cut(self) -> None:
        self.proxy.cut()

    def silence(self) -> None:
        self.proxy.silence()

    def mend(self) -> None:
        self.proxy.resume()

    def restart(self) -> None:
        self.server.kill()
        self.server.restart()


@pytest.fixture
async def nats_bench(tmp_path: Path) -> AsyncIterator[ServerBench]:
    with NatsServer(tmp_path / "nats") as server:
        bench = ServerBench(server, server.port, "nats://127.0.0.1:{port}/cluster")
        with bench.proxy:
            try:
                yield bench
            finally:
                bench.mend()
                await bench.close()


@pytest.fixture
async def etcd_bench(etcd_server: EtcdServer) -> AsyncIterator[ServerBench]:
    bench = ServerBench(etcd_server, etcd_server.port, "etcd://127.0.0.1:{port}/ringcast/test")
    with bench.proxy:
        try:
            yield bench
        finally:
            bench.mend()
            await bench.close()


@pytest.fixture(params=["memory", "nats", "etcd"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each backend in turn."""
    if request.param == "memory":
        return MemoryBench()
    found: Bench = request.getfixturevalue(f"{request.param}_bench")
    return found
