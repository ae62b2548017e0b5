"""A client with a token, and no CA file, whose service has no TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ringcast_client import ConfigServiceClient
from ringcast_client.blocking import ServiceConnection
from ringcast_testkit import ConfigServiceProcess, ReservedPort
from ringcast_wire import InvalidInputError, UnavailableError
from ringcast_wire.grpc import ServiceLogin

TOKEN = "a-token-that-nobody-may-read"


class Listener:
    """A server without TLS that notes what clients send."""

    def __init__(self) -> None:
        self.address = ""
        self.connections = 0
        self.read = bytearray()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        while data := await reader.read(65_536):
            self.read += data
        writer.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    found = Listener()
    async with await asyncio.start_server(found.take, "127.0.0.1", 0) as server:
        found.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found
    assert TOKEN.encode() not in found.read


@pytest.fixture
def login(tmp_path: Path) -> ServiceLogin:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return ServiceLogin(token_file=str(file))


async def test_an_address_without_tls_is_refused_before_anything_is_sent(
    listener: Listener, login: ServiceLogin
) -> None:
    sentence = f"token_file is given without TLS at '{listener.address}': the token would be sent in the clear"
    for addresses in (listener.address, f"tls://127.0.0.1:1,{listener.address}"):
        with pytest.raises(InvalidInputError, match=sentence) as caught:
            await ConfigServiceClient(addresses, login=login).__aenter__()
        assert caught.value.field == "token_file"
        with pytest.raises(InvalidInputError, match=sentence):
            ServiceConnection(addresses, login)
    assert listener.connections == 0


async def test_a_server_that_answers_an_address_with_tls_without_it_gets_no_token(
    listener: Listener, login: ServiceLogin, shared_service: ConfigServiceProcess
) -> None:
    for address in (listener.address, shared_service.address):
        async with ConfigServiceClient(f"tls://{address}", login=login, timeout_s=5) as client:
            with pytest.raises(UnavailableError, match="can't be reached: what answers there has no TLS"):
                await client.list_stores()
    assert listener.connections > 0


async def test_instances_without_tls_that_are_found_are_left_out(listener: Listener, login: ServiceLogin) -> None:
    closed = ReservedPort()
    found = [listener.address, f"tls://{closed.address}"]
    async with ConfigServiceClient(lambda: found, login=login, timeout_s=1) as client:
        assert client.address == f"tls://{closed.address}"
        with pytest.raises(UnavailableError, match=f"tls://{closed.address} can't be reached: connection refused"):
            await client.list_stores()
        del found[1]
        with pytest.raises(InvalidInputError, match=f"token_file is given without TLS at '{listener.address}'"):
            await client.list_stores()
    assert listener.connections == 0
