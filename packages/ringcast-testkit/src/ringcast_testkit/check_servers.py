"""External checks of releases, as an operator would write them: one over HTTP and one over gRPC."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from aiohttp import web
from ringcast_wire.external_check import SERVICE_NAME, pb

from ringcast_testkit.servers import GrpcServer, HttpServer

CHECK_METHOD: Final = f"/{SERVICE_NAME}/CheckRelease"


class CheckServer:
    """Allows releases, unless :attr:`says` has another answer. It is asked over one of two transports."""

    def __init__(self) -> None:
        self.says: dict[str, Any] = {"allow": True}
        """The fields of its answers; the digest is that of the question, unless it stands here."""
        self.login = ""
        """The token that it wants, if any."""
        self.server: Any = None

    @property
    def url(self) -> str:
        """What the config service is given."""
        return str(self.server.url) + ("/may" if isinstance(self.server, HttpServer) else "")

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The questions."""
        return [self.read(each.body) for each in self.server.asked]

    @property
    def logins(self) -> list[str]:
        """The logins of the questions."""
        return [each.authorization for each in self.server.asked]

    def _is_refused(self) -> bool:
        return bool(self.login) and self.logins[-1] != f"Bearer {self.login}"

    def read(self, body: bytes) -> dict[str, Any]:
        """A question."""
        raise NotImplementedError

    @asynccontextmanager
    async def serving(self, cert: str = "", key: str = "") -> AsyncIterator[CheckServer]:
        """On a free port; with TLS, where the files of a certificate and of its key are given."""
        async with self.server.serving(cert, key):
            yield self


class HttpCheck(CheckServer):
    """Over HTTP."""

    def __init__(self) -> None:
        super().__init__()
        self.server = HttpServer(self._answer)

    def read(self, body: bytes) -> dict[str, Any]:
        return dict(json.loads(body))

    async def _answer(self, request: web.Request) -> web.Response:
        if self._is_refused():
            return web.Response(status=401)
        return web.json_response({"digest": (await request.json())["digest"], **self.says})


class GrpcCheck(CheckServer):
    """Over gRPC."""

    def __init__(self) -> None:
        super().__init__()
        self.server = GrpcServer(CHECK_METHOD, self._answer)

    def read(self, body: bytes) -> dict[str, Any]:
        request = pb.CheckReleaseRequest.FromString(body)
        found = {field.name: getattr(request, field.name) for field in request.DESCRIPTOR.fields}
        names = pb.KeyChanges.DESCRIPTOR.fields_by_name
        return {**found, "keys": [{name: getattr(each, name) for name in names} for each in request.keys]}

    async def _answer(self, body: bytes, context: Any) -> bytes:
        if self._is_refused():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who is that?")
        return check_answer(**{"digest": self.read(body)["digest"], **self.says})


def check_answer(**words: Any) -> bytes:
    """An answer over gRPC with these fields."""
    return bytes(pb.CheckReleaseResponse(**words).SerializeToString())
