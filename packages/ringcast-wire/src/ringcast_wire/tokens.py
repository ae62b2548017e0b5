"""The tokens of the config service: how one is made, and the file in which the service finds those it accepts.

A line of the file is ``NAME sha256:DIGEST``. The name is the principal of each call that comes with the token, and the
digest is the SHA-256 of the token in hexadecimal. So the file holds no secret. ``expires=2027-01-31T12:00:00Z`` may
follow: from then on the token counts no more. A name may have several lines, as while a token is replaced; a token has
one name, and one time at which it expires. A line that is only a token is accepted too: its principal is ``token-`` and
the first 8 digits of the digest. Blank lines, and those that begin with ``#``, don't count. The last line needs its
end: of one that is cut off the name alone may be left, which would count as a token, or all but the time of expiry.

A digest without salt is enough for a token of 16 characters that a machine has made: nobody can guess it. A password
that a person has chosen is no token.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from datetime import UTC, datetime
from typing import Final, NamedTuple

from ringcast_wire._common.errors import InvalidInputError, shown, shown_path
from ringcast_wire._connections.login_settings import check_end, read_login_file, text_lines
from ringcast_wire._connections.service_login import TOKEN

MAX_PRINCIPAL_LENGTH: Final = 64
"""Characters of the name of a token."""

_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_EXPIRES: Final = re.compile(r"expires=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", re.ASCII)
_RESERVED: Final = frozenset({"local", "anonymous"})
"""What the service calls itself, and a client without a name."""


class KnownToken(NamedTuple):
    """A token that the service accepts: the principal that has it, its SHA-256 (32 bytes), and when it expires, in
    seconds of the clock (``None``: never)."""

    principal: str
    digest: bytes
    expires_at_s: float | None = None

    @property
    def has_expired(self) -> bool:
        """Whether it counts no more."""
        return self.expires_at_s is not None and time.time() >= self.expires_at_s


def make_token() -> str:
    """A new token: 32 random bytes in 43 characters."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    """The SHA-256 of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def token_line(principal: str, token: str, expires_at_s: float | None = None) -> str:
    """The line of a token for the service's file, without an end of line. It expires at a full second.

    Raises:
        InvalidInputError: the name of the principal is not one.
    """
    line = f"{check_principal('name', principal)} sha256:{digest(token).hex()}"
    if expires_at_s is None:
        return line
    return f"{line} expires={datetime.fromtimestamp(int(expires_at_s), UTC).strftime(_TIME)}"


def check_principal(field: str, value: str) -> str:
    """Returns ``value`` if it may be the name of a token.

    Raises:
        InvalidInputError: it is not 1 to 64 characters of ``A-Z a-z 0-9 . _ @ -``, or is a name of the service's own.
    """
    if _PRINCIPAL.fullmatch(value) is None or value in _RESERVED:
        raise InvalidInputError(
            f"{field} {shown(value)} is not a valid name: 1 to {MAX_PRINCIPAL_LENGTH} characters of A-Z a-z 0-9 . _ @ "
            f"- are allowed, the first of them a letter or digit, and neither of {', '.join(sorted(_RESERVED))}",
            field=field,
        )
    return value


def read_known_tokens(path: str) -> list[KnownToken]:
    """The tokens of the service's file.

    Raises:
        InvalidInputError: the file can't be read, is larger than 64 KiB, holds no token, is cut off, or a line breaks
            a rule. The message gives the number of the line, and nothing of a token.
    """
    where = f"token_file {shown_path(path)}"
    found: dict[bytes, tuple[int, KnownToken]] = {}
    data = read_login_file("token_file", path)
    for number, line in enumerate(text_lines(data), 1):
        if not line.strip() or line.startswith("#"):
            continue
        token = _known(f"{where}: line {number}", line.strip())
        before, known = found.setdefault(token.digest, (number, token))
        if known != token:
            raise InvalidInputError(
                f"{where}: lines {before} and {number} have the same token with different names or times",
                field="token_file",
            )
    if not found:
        raise InvalidInputError(f"{where} holds no token", field="token_file")
    try:
        check_end(data)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}", field="token_file") from None
    return [token for _, token in found.values()]


def _known(where: str, line: str) -> KnownToken:
    name, *rest = line.split()
    if not rest:
        if TOKEN.fullmatch(line) is None or _DIGEST.fullmatch(line) is not None:
            raise InvalidInputError(
                f"{where} is neither NAME sha256:DIGEST nor a token of 16 to 4096 visible ASCII characters",
                field="token_file",
            )
        hashed = digest(line)
        return KnownToken(f"token-{hashed.hex()[:8]}", hashed)
    if len(rest) > 2 or (hexadecimal := _DIGEST.fullmatch(rest[0])) is None:
        raise InvalidInputError(
            f"{where} is not NAME sha256:DIGEST with a digest of 64 hexadecimal digits in small letters",
            field="token_file",
        )
    expires_at_s = _expiry(where, rest[1]) if len(rest) == 2 else None
    try:
        return KnownToken(check_principal("name", name), bytes.fromhex(hexadecimal[1]), expires_at_s)
    except InvalidInputError:
        # The name is not shown: a token may stand there by mistake.
        raise InvalidInputError(
            f"{where} has a name that is not 1 to {MAX_PRINCIPAL_LENGTH} characters of A-Z a-z 0-9 . _ @ -",
            field="token_file",
        ) from None


def _expiry(where: str, text: str) -> float:
    try:
        found = _EXPIRES.fullmatch(text)
        return datetime.strptime(found[1] if found else "", _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise InvalidInputError(
            f"{where} ends in what is not expires= with a time as 2027-01-31T12:00:00Z", field="token_file"
        ) from None
