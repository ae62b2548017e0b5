"""Looks whether a token of an issuer is valid, and whose it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import jwt
from ringcast_wire import shown
from ringcast_wire.tokens import digest

from ringcast_config_service.caller import Login, LoginRefusedError, line_of
from ringcast_config_service.oidc.issuers import PRINCIPAL, Issuer, read_issuers
from ringcast_config_service.oidc.keys import FileKeys, Keys, RemoteKeys, UnknownKeyIdError
from ringcast_config_service.oidc.settings import OidcSettings
from ringcast_config_service.watched_file import WatchedFile

GROUP: Final = "oidc-group:"
MAX_NAME_LENGTH: Final = 240
"""Characters of the name that an issuer gives to a principal or a group; a longer one ends in a digest of it all."""
_MOST_VERIFIED: Final = 4_096
"""Tokens that are remembered as verified: a signature takes longer than all the rest of a small call."""
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999: a later expiry fits neither a date nor an answer."""
_TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")
"""An issuer also signs what lets nobody in, such as the notice that a user has logged out."""


class Verifier:
    """The tokens of the issuers in a file, which is read again when it changes. :meth:`run` reads their keys."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._file: WatchedFile[tuple[Issuer, ...]] = WatchedFile(settings.issuers_file, read_issuers, ())
        self._sources: dict[str, tuple[Issuer, Keys]] = {}
        self._verified: OrderedDict[bytes, Login] = OrderedDict()
        self._version: tuple[int, ...] = ()
        self._seen = -1
        self._news = asyncio.Event()
        self._follow()

    @property
    def issuers(self) -> Sequence[str]:
        """Whose tokens are accepted now."""
        self._follow()
        return list(self._sources)

    @property
    def unusable(self) -> bool:
        """Whether the file of issuers, or one of their keys, can't be used as it is now."""
        files = (keys for _, keys in list(self._sources.values()) if isinstance(keys, FileKeys))
        return self._file.unusable or any(keys.unusable for keys in files)

    @property
    def keys_age_s(self) -> float:
        """How long ago the keys of some issuer were read at its URL, at the most; 0 where there is none."""
        return max((source.age_s for source in self._remote()), default=0.0)

    def login(self, token: str) -> Login:
        """Whose token it is.

        Raises:
            LoginRefusedError: nobody's; it says why, and nothing of the token but what it says of itself.
            UnavailableError: that can't be known now, since the keys of the issuer can't be read.
        """
        self._follow()
        name = digest(token)
        found = self._verified.get(name)
        if found is None:
            found = self._verified[name] = self._verify(token)
            if len(self._verified) > _MOST_VERIFIED:
                self._verified.popitem(last=False)
        self._verified.move_to_end(name)
        if found.has_expired:
            raise LoginRefusedError("expired_token", "the token has expired")
        return found

    async def start(self) -> None:
        """Reads the keys once; the service starts without those that can't be read."""
        async with self._session() as session:
            await self._read_due(session)

    async def run(self) -> None:
        """Reads the keys again and again."""
        async with self._session() as session:
            while True:
                wait_s = min([source.due_in_s for source in self._remote()], default=self._settings.keys_every_s)
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                await self._read_due(session)

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=32, force_close=True)  # a read now and then: nothing is kept open
        # What is not unpacked can't become larger than the limit that is looked at.
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)

    async def _read_due(self, session: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(source.read(session) for source in self._remote() if not source.due_in_s))

    def _remote(self) -> list[RemoteKeys]:
        self._follow()
        return [keys for _, keys in self._sources.values() if isinstance(keys, RemoteKeys)]

    def _follow(self) -> None:
        """Takes the file as it is now, and forgets what was verified by other issuers or keys."""
        issuers = self._file.now()
        if self._file.version != self._seen:
            self._seen, before = self._file.version, self._sources
            self._sources = {each.issuer: self._source(each, before) for each in issuers}
            self._version = ()
            self._news.set()
        version = tuple(keys.version for _, keys in self._sources.values())
        if version != self._version:
            self._version = version
            self._verified.clear()

    def _source(self, issuer: Issuer, before: Mapping[str, tuple[Issuer, Keys]]) -> tuple[Issuer, Keys]:
        if issuer.issuer in before and before[issuer.issuer][0] == issuer:
            return before[issuer.issuer]
        if issuer.has_url:
            return issuer, RemoteKeys(issuer, self._settings, self._news.set)
        return issuer, FileKeys(issuer)

    def _verify(self, token: str) -> Login:
        try:
            header = jwt.get_unverified_header(token)
            name = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise _refused("can't be read") from error
        if not isinstance(name, str) or name not in self._sources:
            raise _refused(f"is of the issuer {shown(name)}, which is not among those of --oidc-issuers")
        issuer, keys = self._sources[name]
        claims = _checked(token, issuer, _key(header, issuer, keys), self._settings.leeway_s)
        return Login(
            _name(PRINCIPAL, issuer, _principal(claims, issuer)),
            tuple(_name(GROUP, issuer, group) for group in _groups(claims, issuer)),
            _expiry_s(claims) + self._settings.leeway_s,
        )


def _key(header: Mapping[str, Any], issuer: Issuer, keys: Keys) -> jwt.PyJWK:
    algorithm, key_id, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
    if algorithm not in issuer.algorithms:
        raise _refused(f"is signed with {shown(algorithm)}, which is not among the algorithms of its issuer")
    if not isinstance(kind, str) or kind.lower() not in _TYPES or "crit" in header:
        raise _refused("is not a token for a login")
    if not isinstance(key_id, str) or not key_id:
        raise _refused("does not name its key (kid)")
    try:
        found = keys.find(key_id).get(algorithm)
    except UnknownKeyIdError:
        raise _refused(f"is signed with the key {shown(key_id)}, which its issuer does not have") from None
    if found is None:
        raise _refused(f"is signed with {shown(algorithm)}, and its key is for another algorithm")
    return found


def _checked(token: str, issuer: Issuer, key: jwt.PyJWK, leeway_s: float) -> dict[str, Any]:
    """The claims of a token, all of which were checked."""
    try:
        return jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=issuer.audiences,
            issuer=issuer.issuer,
            leeway=leeway_s,
            options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
        )
    except jwt.ExpiredSignatureError:
        raise LoginRefusedError("expired_token", "the token has expired") from None
    except jwt.ImmatureSignatureError:
        raise _refused("does not count yet") from None
    except jwt.InvalidAudienceError:
        raise _refused("is for another audience") from None
    except jwt.MissingRequiredClaimError as error:
        raise _refused(f"has no claim {error.claim}") from None
    except jwt.InvalidSignatureError:
        raise _refused("has a signature that is not its issuer's") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise _refused("can't be read") from error


def _expiry_s(claims: Mapping[str, Any]) -> int:
    """When a token expires, as what has checked it counts: an issuer may write the number as text."""
    if (found := int(claims["exp"])) > _LATEST_S:
        raise _refused("expires after the year 9999")
    return found


def _principal(claims: Mapping[str, Any], issuer: Issuer) -> str:
    found = claims.get(issuer.principal_claim)
    if not isinstance(found, str) or not found:
        raise _refused(f"has no claim {issuer.principal_claim}")
    if issuer.principal_claim == "email" and claims.get("email_verified") is not True:
        raise _refused("has an email that its issuer has not verified")
    return found


def _groups(claims: Mapping[str, Any], issuer: Issuer) -> list[str]:
    found: Any = claims if issuer.groups_path else ()
    for name in issuer.groups_path:
        found = found.get(name, ()) if isinstance(found, dict) else ()
    if isinstance(found, str):
        found = (found,)
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise _refused("has groups that are no list of names")
    return list(dict.fromkeys(filter(None, found)))


def _name(kind: str, issuer: Issuer, name: str) -> str:
    """The issuer has no ``#``, so no name of one issuer is one of another."""
    return f"{kind}{issuer.issuer}#{line_of(name.encode('utf-8', 'surrogatepass'), MAX_NAME_LENGTH)}"


def _refused(why: str) -> LoginRefusedError:
    return LoginRefusedError("invalid_token", f"the token {why}")
