"""An issuer of tokens (OpenID Connect): its keys, tokens that it signs, and its key set over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://login.example.org/realms/ops"
RSA = rsa.generate_private_key(65_537, 2_048)
OTHER_RSA = rsa.generate_private_key(65_537, 2_048)
EC = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()


def public(key: Any, key_id: str, **words: Any) -> dict[str, Any]:
    """A key of a key set."""
    algorithm: Any = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
    }
    kind = next((found for base, found in algorithm.items() if isinstance(key, base)), jwt.algorithms.OKPAlgorithm)
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig", **words}


def key_set(*keys: dict[str, Any]) -> bytes:
    """A key set, as it is served."""
    return json.dumps({"keys": keys}).encode()


def signed(key: Any = RSA, algorithm: str = "RS256", headers: dict[str, Any] | None = None, **claims: Any) -> str:
    """A token of the issuer. A claim that is ``None`` is left out."""
    now = int(time.time())
    every = {"iss": ISSUER, "sub": "alice", "aud": "ringcast", "iat": now, "exp": now + 300, **claims}
    kept = {name: value for name, value in every.items() if value is not None}
    written = {"kid": "one", **(headers or {})}
    return jwt.encode(kept, key, algorithm, {name: value for name, value in written.items() if value is not None})


class IssuerServer:
    """An issuer's key set over HTTP. Its attributes say what it answers next."""

    def __init__(self) -> None:
        self.body = key_set(public(RSA, "one"))
        self.status = 200
        self.headers: dict[str, str] = {}
        self.silent = False
        self.reads = 0
        self.url = ""

    async def handle(self, _request: web.Request) -> web.Response:
        self.reads += 1
        if self.silent:
            await asyncio.Event().wait()
        return web.Response(body=self.body, status=self.status, headers=self.headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[IssuerServer]:
        app = web.Application()
        app.router.add_get("/keys", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/keys"
        try:
            yield self
        finally:
            await runner.cleanup()


def issuers_file(directory: Path, keys: str, **words: Any) -> str:
    """A file with one issuer."""
    lines = {"issuer": ISSUER, "audiences": ["ringcast"], "keys": keys, **words}
    path = directory / "issuers.toml"
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items())
    path.write_text(f"[[issuer]]\n{text}\n")
    return str(path)
