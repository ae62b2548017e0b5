"""A service with several addresses, some of which drop every packet: the others are not kept waiting."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from ringcast_client import ConfigServiceClient
from ringcast_client._common.addresses import next_after_s
from ringcast_client.blocking import BlockingBulkWrite, BlockingStoreCalls, ServiceConnection
from ringcast_testkit import ConfigServiceProcess, SilentAddress, TcpProxy, until
from ringcast_wire import UnavailableError
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, pb

SILENT = 5
IN_TURN_S = 3.0
"""Far less than a second for each of them: they take 1.25 s together."""
SYN_SENT = "02"


@pytest.fixture(autouse=True)
def from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients begin with the first address, which is the worst that they can do here, and not with any of them."""
    monkeypatch.setattr(random, "choice", lambda found: found[0])


@pytest.fixture
def silent() -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(SilentAddress()).address for _ in range(SILENT)]


def connecting_to(addresses: list[str]) -> int:
    """Attempts of this host that have no answer yet, but for the one by which a silent address is made."""
    ports = {f"0100007F:{int(address.rpartition(':')[2]):04X}" for address in addresses}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[3] == SYN_SENT and line[2] in ports for line in lines)


async def test_the_next_address_is_tried_while_those_before_are_silent(
    silent: list[str], shared_service: ConfigServiceProcess
) -> None:
    before = connecting_to(silent)
    async with ConfigServiceClient([*silent, shared_service.address], timeout_s=30) as client:
        began_s = time.monotonic()
        await asyncio.gather(*(client.list_stores() for _ in range(20)))
        first_s = time.monotonic() - began_s
        assert 4 * next_after_s(SILENT + 1) < first_s < IN_TURN_S

        async def given_up() -> bool:
            return connecting_to(silent) == before

        await until(given_up)  # while the client is open
        began_s = time.monotonic()
        await client.list_stores()
        assert time.monotonic() - began_s < next_after_s(SILENT + 1)


async def test_an_address_that_is_slow_is_not_given_up_for_the_next_one(
    silent: list[str], shared_service: ConfigServiceProcess
) -> None:
    with TcpProxy(int(shared_service.address.rpartition(":")[2])) as slow:
        slow.delay(0.6)
        async with ConfigServiceClient([f"127.0.0.1:{slow.port}", *silent], timeout_s=30) as client:
            await client.list_stores()
            assert client._calls._endpoints.current.address == f"127.0.0.1:{slow.port}"
        assert slow.accepted == 1


async def test_addresses_of_which_none_answers_take_no_more_than_the_time_out(silent: list[str]) -> None:
    began_s = time.monotonic()
    async with ConfigServiceClient(silent, timeout_s=1.0) as client:
        with pytest.raises(UnavailableError, match=f"no config service can be reached: {', '.join(silent)}"):
            await client.list_stores()
        assert 0.8 < time.monotonic() - began_s < IN_TURN_S
        asked = asyncio.create_task(client.list_stores())
        await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="the client was closed while a call waited for a config service"):
        await asked


def test_all_addresses_are_tried_within_two_seconds() -> None:
    assert [round(next_after_s(count), 3) for count in (1, 2, 8, 16, 64)] == [0.25, 0.25, 0.25, 0.125, 0.031]


def test_blocking_calls_do_not_wait_for_silent_addresses_either(
    silent: list[str], shared_service: ConfigServiceProcess, store_name: str
) -> None:
    before = connecting_to(silent)
    with ServiceConnection([*silent, shared_service.address], ServiceLogin()) as connection:
        stub, began_s = connection.stub, time.monotonic()
        stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=4), timeout=30)
        assert 4 * next_after_s(SILENT + 1) < time.monotonic() - began_s < IN_TURN_S
        assert connecting_to(silent) == before
        began_s = time.monotonic()
        batches = [
            pb.WriteBatch(store=store_name, key="k", sequence=n, rows=[pb.RowWrite(row_id=f"r{n}")]) for n in (1, 2)
        ]
        results = [each.result.written for each in BlockingBulkWrite(stub, 30).results(batches)]
        assert results == [1, 1]
        assert BlockingStoreCalls(stub, 30).update_store(store_name, inline_max_bytes=0).inline_max_bytes == 0
        assert time.monotonic() - began_s < 4 * next_after_s(SILENT + 1)  # the connection that was found first


def test_a_blocking_call_that_reaches_no_address_says_which(silent: list[str]) -> None:
    with ServiceConnection(silent, ServiceLogin()) as connection:
        began_s = time.monotonic()
        with pytest.raises(UnavailableError, match=f"no config service can be reached: {', '.join(silent)}"):
            connection.stub.ListStores(pb.ListStoresRequest(), timeout=1.0)
        assert 0.8 < time.monotonic() - began_s < IN_TURN_S


def test_a_blocking_client_leaves_an_instance_that_does_not_answer(shared_service: ConfigServiceProcess) -> None:
    with TcpProxy(int(shared_service.address.rpartition(":")[2])) as proxy:
        addresses = f"127.0.0.1:{proxy.port},{shared_service.address}"
        with ServiceConnection(addresses, ServiceLogin()) as connection:
            stub: ConfigServiceStub = connection.stub
            stub.ListStores(pb.ListStoresRequest(), timeout=30)
            assert proxy.accepted == 1
            proxy.silence()
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListStores(pb.ListStoresRequest(), timeout=0.5)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            stub.ListStores(pb.ListStoresRequest(), timeout=30)
            proxy.cut()
            stub.ListStores(pb.ListStoresRequest(), timeout=30)
