"""Servers of the operator that the config service asks, over HTTP and over gRPC: they answer as a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio
from aiohttp import web


class Asked(NamedTuple):
    """A request: its path with what follows it, its body, and its header Authorization."""

    path: str
    body: bytes
    authorization: str


class HttpServer:
    """Gives the answer of :attr:`answer`, which may be awaited, and remembers what it was asked."""

    def __init__(self, answer: Callable[[web.Request], Any]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.url = ""

    async def _handle(self, request: web.Request) -> Any:
        authorization = request.headers.get("Authorization", "")
        self.asked.append(Asked(request.path_qs, await request.read(), authorization))
        found = self.answer(request)
        return await found if asyncio.iscoroutine(found) else found

    @asynccontextmanager
    async def serving(self, cert: str = "", key: str = "") -> AsyncIterator[Self]:
        """On a free port; with TLS, where the files of a certificate and of its key are given."""
        tls = None
        if cert:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(cert, key)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http{'s' if tls else ''}://{host}:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()


class GrpcServer:
    """Has one method, without streams, which gives the bytes of :attr:`answer`, and remembers what it was asked."""

    def __init__(self, method: str, answer: Callable[[bytes, grpc.aio.ServicerContext[Any, Any]], Awaitable[bytes]]):
        self.method = method
        self.answer = answer
        self.asked: list[Asked] = []
        self.url = ""
        self.packs = False
        """Whether the next one that serves packs its answers."""

    async def _handle(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        metadata = dict(context.invocation_metadata() or ())
        self.asked.append(Asked(self.method, request, str(metadata.get("authorization", ""))))
        return await self.answer(request, context)

    @asynccontextmanager
    async def serving(self, cert: str = "", key: str = "") -> AsyncIterator[Self]:
        """On a free port; with TLS, where the files of a certificate and of its key are given."""
        _, service, method = self.method.split("/")
        server = grpc.aio.server(compression=grpc.Compression.Gzip if self.packs else None)
        methods: Any = {method: grpc.unary_unary_rpc_method_handler(self._handle)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        if cert:
            pair = await asyncio.to_thread(_read, key), await asyncio.to_thread(_read, cert)
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        else:
            port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.url = f"grpc{'s' if cert else ''}://127.0.0.1:{port}"
        try:
            yield self
        finally:
            await server.stop(0)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
