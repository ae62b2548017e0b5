"""The public keys of an issuer: a JSON Web Key Set (RFC 7517), from a file or a URL."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import jwt
from ringcast_wire import EventLog, InvalidInputError, UnavailableError, shown

from ringcast_config_service.oidc.issuers import Issuer
from ringcast_config_service.oidc.settings import OidcSettings
from ringcast_config_service.watched_file import WatchedFile

log = EventLog(logging.getLogger(__name__))

MAX_KEY_SET_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 128
MAX_KEY_ID_LENGTH: Final = 256
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}


class KeySet:
    """Keys by their id, and by the algorithms that each may be used for.

    Keys for other uses, private and shared ones, RSA keys of less than 2048 bits, and those that are not understood
    are left out.
    """

    def __init__(self, keys: Mapping[str, Mapping[str, jwt.PyJWK]]) -> None:
        self.keys = keys
        self._told = {name: {alg: key.key for alg, key in found.items()} for name, found in keys.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self._told == other._told

    __hash__ = None  # type: ignore[assignment]


NO_KEYS: Final = KeySet({})


class UnknownKeyIdError(Exception):
    """The issuer has no such key."""


class Keys(Protocol):
    """The keys of an issuer, as they are known now."""

    @property
    def version(self) -> int:
        """Grows whenever they are others than before."""

    def find(self, key_id: str) -> Mapping[str, jwt.PyJWK]:
        """The key with this id, by algorithm.

        Raises:
            UnknownKeyIdError: there is none.
            UnavailableError: it is not known whether there is.
        """


def read_key_set(data: bytes, algorithms: tuple[str, ...]) -> KeySet:
    """The keys of a key set that are good for one of the algorithms.

    Raises:
        InvalidInputError: it is none, is too large, or no key of it can be used.
    """
    if len(data) > MAX_KEY_SET_BYTES:
        raise InvalidInputError(f"the key set is larger than {MAX_KEY_SET_BYTES} bytes", field="keys")
    try:
        members = json.loads(data)["keys"]
        listed = [each for each in members if isinstance(each, dict)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInputError("the key set is not JSON with a list of keys", field="keys") from error
    if len(listed) > MAX_KEYS:
        raise InvalidInputError(f"the key set has {len(listed)} keys, the limit is {MAX_KEYS}", field="keys")
    found = {each["kid"]: usable for each in listed if (usable := _usable(each, algorithms))}
    if not found:
        raise InvalidInputError(f"the key set has no key with an id for {', '.join(algorithms)}", field="keys")
    return KeySet(found)


def _usable(key: dict[str, Any], algorithms: tuple[str, ...]) -> dict[str, jwt.PyJWK]:
    key_id, uses = key.get("kid"), key.get("key_ops", ["verify"])
    if not isinstance(key_id, str) or not 1 <= len(key_id) <= MAX_KEY_ID_LENGTH:
        return {}
    if key.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses or "d" in key:
        return {}
    if key.get("kty") == "RSA":
        fitting = {name for name in algorithms if name[:2] in ("RS", "PS")}
    else:
        fitting = {_CURVES.get(str(key.get("crv")), "")} & set(algorithms)
    if "alg" in key:
        fitting &= {key["alg"]} if isinstance(key["alg"], str) else set()
    found = {}
    for name in sorted(fitting):
        try:
            made = jwt.PyJWK(key, name)
            if made.Algorithm.check_key_length(made.key) is None:
                found[name] = made
        except (jwt.PyJWTError, ValueError, TypeError):
            return {}
    return found


class FileKeys:
    """The keys in a file, read again when it changes."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._file: WatchedFile[KeySet] = WatchedFile(issuer.keys, self._read, NO_KEYS)

    @property
    def unusable(self) -> bool:
        """Whether the file can't be used as it is now."""
        return self._file.unusable

    @property
    def version(self) -> int:
        """Grows whenever they are others than before."""
        self._file.now()
        return self._file.version

    def find(self, key_id: str) -> Mapping[str, jwt.PyJWK]:
        held = self._file.now()
        if key_id in held.keys:
            return held.keys[key_id]
        if not held.keys:
            raise UnavailableError(f"the keys of issuer {shown(self._issuer.issuer)} can't be read")
        raise UnknownKeyIdError

    def _read(self, path: str) -> KeySet:
        with Path(path).open("rb") as file:
            data = file.read(MAX_KEY_SET_BYTES + 1)
        try:
            return read_key_set(data, self._issuer.algorithms)
        except InvalidInputError as error:
            raise InvalidInputError(f"keys of issuer {shown(self._issuer.issuer)}: {error}", field="keys") from error


class RemoteKeys:
    """The keys at a URL: read now and then, and at once when a token has another, but not more often than allowed.

    While the URL can't be read the known ones go on, and it is not known whether there are others.
    """

    def __init__(self, issuer: Issuer, settings: OidcSettings, wanted: Callable[[], None]) -> None:
        self._issuer = issuer
        self._settings = settings
        self._wanted = wanted
        self._held = NO_KEYS
        self._read_at = -math.inf
        self._tried_at = -math.inf
        self._made_at = time.monotonic()
        self._is_wanted = True
        self._problem = "they were not read yet"
        self.version = 0

    def find(self, key_id: str) -> Mapping[str, jwt.PyJWK]:
        if key_id in self._held.keys:
            return self._held.keys[key_id]
        if time.monotonic() < self._read_at + self._settings.keys_rest_s:
            raise UnknownKeyIdError
        if not self._is_wanted:
            self._is_wanted = True
            self._wanted()
        problem = self._problem or "they are being read again"
        raise UnavailableError(
            f"the key of the token is not among the known keys of issuer {shown(self._issuer.issuer)}: {problem}"
        )

    @property
    def age_s(self) -> float:
        """Since when they were not read."""
        return time.monotonic() - max(self._read_at, self._made_at)

    @property
    def due_in_s(self) -> float:
        """When they are to be read."""
        wait_s = self._settings.keys_rest_s if self._is_wanted else self._settings.keys_every_s
        return max(0.0, self._tried_at + wait_s - time.monotonic())

    async def read(self, session: aiohttp.ClientSession) -> None:
        """Reads them; what was known stays where that fails."""
        self._tried_at = time.monotonic()
        try:
            data = await self._fetch(session)
            held = await asyncio.to_thread(read_key_set, data, self._issuer.algorithms)
        except (aiohttp.ClientError, OSError, InvalidInputError, ValueError) as error:  # TimeoutError is an OSError
            self._is_wanted, before = True, self._problem
            self._problem = f"they can't be read ({_sentence(error)})"
            if self._problem != before:
                log.warning("issuer_keys.unreadable", issuer=self._issuer.issuer, error=_sentence(error))
            return
        self._is_wanted, self._problem = False, ""
        self._read_at = time.monotonic()
        if held != self._held:
            self._held = held
            self.version += 1
            log.info("issuer_keys.changed", issuer=self._issuer.issuer, keys=len(held.keys))

    async def _fetch(self, session: aiohttp.ClientSession) -> bytes:
        tls: ssl.SSLContext | bool = True
        if self._issuer.ca_file:
            tls = await asyncio.to_thread(partial(ssl.create_default_context, cafile=self._issuer.ca_file))
        timeout = aiohttp.ClientTimeout(total=self._settings.keys_timeout_s)
        # A redirect could lead to an address that nobody has allowed.
        words: dict[str, Any] = {"timeout": timeout, "allow_redirects": False, "ssl": tls}
        async with session.get(self._issuer.keys, headers={"Accept-Encoding": "identity"}, **words) as answer:
            if answer.status != 200:
                raise InvalidInputError(f"the answer has the status {answer.status}", field="keys")
            data = bytearray()
            async for part in answer.content.iter_chunked(16_384):
                data += part
                if len(data) > MAX_KEY_SET_BYTES:
                    break
            return bytes(data)


def _sentence(error: Exception) -> str:
    """What went wrong, in a few words, and nothing of an answer."""
    return shown(str(error) or type(error).__name__, 200)
