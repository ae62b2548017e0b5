"""The file of issuers: whose tokens are accepted, and what of them counts."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

import msgspec
from ringcast_wire import InvalidInputError, shown, shown_path
from ringcast_wire.grpc import read_login_file

PRINCIPAL: Final = "oidc:"
"""What the name of a principal of an issuer begins with."""
MAX_ISSUERS: Final = 16
MAX_ISSUER_LENGTH: Final = 128
_MAX_AUDIENCES: Final = 16
_MAX_TEXT: Final = 512

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Those with a public key alone: with a shared secret, anybody who can check a token can make one."""

_ISSUER: Final = re.compile(rf"[!-\"$-~]{{1,{MAX_ISSUER_LENGTH}}}", re.ASCII)
_LOCAL: Final = "localhost"


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An issuer, and what of its tokens counts. ``keys``: URL or path of its JSON Web Key Set."""

    issuer: str
    audiences: tuple[str, ...]
    keys: str
    ca_file: str = ""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    principal_claim: str = "sub"
    groups_claim: str | tuple[str, ...] = ()

    @property
    def has_url(self) -> bool:
        """Whether the keys are read over HTTP."""
        return "://" in self.keys

    @property
    def groups_path(self) -> tuple[str, ...]:
        """Where the groups of a token are: names of claims, one within the other; none: they don't count."""
        claim = self.groups_claim
        return (claim,) if isinstance(claim, str) else claim


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    issuer: tuple[Issuer, ...] = ()


def read_issuers(path: str) -> tuple[Issuer, ...]:
    """The issuers of a file.

    Raises:
        InvalidInputError: it can't be read, is no TOML, has no issuer or too many, or one breaks a rule.
    """
    try:
        found = msgspec.toml.decode(read_login_file("issuers_file", path), type=_File).issuer
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"issuers_file {shown_path(path)}: {error}", field="issuers_file") from error
    if not 1 <= len(found) <= MAX_ISSUERS:
        raise _wrong(f"has {len(found)} tables [[issuer]]: 1 to {MAX_ISSUERS} are allowed")
    for issuer in found:
        _check(issuer)
    names = [issuer.issuer for issuer in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise _wrong(f"has the issuer {shown(twice)} twice")
    return found


def _check(issuer: Issuer) -> None:
    if _ISSUER.fullmatch(issuer.issuer) is None:
        raise _wrong(
            f"has the issuer {shown(issuer.issuer)}: 1 to {MAX_ISSUER_LENGTH} visible ASCII characters without # are "
            "allowed"
        )
    name = shown(issuer.issuer)
    if not 1 <= len(issuer.audiences) <= _MAX_AUDIENCES:
        raise _wrong(f"has {len(issuer.audiences)} audiences for {name}: 1 to {_MAX_AUDIENCES} are allowed")
    if not issuer.algorithms or not set(issuer.algorithms) <= set(ALGORITHMS):
        raise _wrong(f"has algorithms for {name} that are not of {', '.join(ALGORITHMS)}")
    for text in (*issuer.audiences, issuer.keys, issuer.principal_claim, *issuer.groups_path):
        if not 1 <= len(text) <= _MAX_TEXT:
            raise _wrong(f"has a text of {len(text)} characters for {name}: 1 to {_MAX_TEXT} are allowed")
    if issuer.has_url:
        _check_url(name, issuer.keys)
    if issuer.ca_file and not issuer.keys.startswith("https://"):
        raise _wrong(f"has a ca_file for {name}, whose keys are not read over https")


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises where it is none
    except ValueError:
        host = ""
    if not host or parts.username is not None or not (parts.scheme == "https" or _is_plain(parts.scheme, host)):
        raise _wrong(
            f"has keys for {name} at {shown(url)}: a path, https://, or http:// at a loopback address is allowed, "
            "without a login in it"
        )


def _is_plain(scheme: str, host: str) -> bool:
    """Whether it is HTTP without TLS that does not leave the machine."""
    try:
        return scheme == "http" and (host == _LOCAL or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def _wrong(what: str) -> InvalidInputError:
    return InvalidInputError(f"issuers_file {what}", field="issuers_file")
