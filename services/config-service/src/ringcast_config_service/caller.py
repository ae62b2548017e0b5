"""The caller of a request: what limits and fair queues count by, and what is written down as the author."""

from __future__ import annotations

import hashlib
import time
import urllib.parse
from typing import Final, NamedTuple


class Login(NamedTuple):
    """What a token proves. ``groups``: names by which its principal has roles too, as by its own. ``expires_at_s``:
    when the token counts no more, in seconds of the clock; ``None``: it counts until it is withdrawn."""

    principal: str
    groups: tuple[str, ...] = ()
    expires_at_s: float | None = None

    @property
    def has_expired(self) -> bool:
        """Whether the token counts no more."""
        return self.expires_at_s is not None and time.time() >= self.expires_at_s


class LoginRefusedError(Exception):
    """A token counts for nothing. ``reason`` is a label of the metric; the text is for the client, and has no token."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Caller(NamedTuple):
    """``principal``: whose credential it is (the name of the token, ``oidc:`` with issuer and name in a token of an
    issuer, ``certificate:`` and the name in it, or ``host:`` and the host of a client without any; the name of a token
    has no colon, so none stands for another); ``connection``: which of the principal's connections, since several
    clients may share a token; ``host``: where the connection comes from (of IPv6 the /64, which one host may have
    whole); ``reason``: why it calls, if it says so; ``groups`` and ``expires_at_s``: as of :class:`Login`."""

    principal: str
    connection: str
    host: str = ""
    reason: str = ""
    groups: tuple[str, ...] = ()
    expires_at_s: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which it may have roles."""
        return self.principal, *self.groups


LOCAL: Final = Caller("local", "local", "local")
"""The service itself."""


def line_of(name: bytes, most: int) -> str:
    """A name that a peer has given, as one line of text of at most ``most`` characters; different for different
    names.

    What is not printable is escaped as in a URL, and so are spaces where one is last: no role could be granted to such
    a name. A longer name ends in a digest of it all.
    """
    text = name.decode(errors="surrogateescape")
    if not text.isprintable() or "%" in text or text.endswith(" "):
        text = urllib.parse.quote(name, safe=("" if text.endswith(" ") else " ") + "!#$&'()*+,/:;=?@[]")
    if len(text) <= most:
        return text
    ending = "%%" + hashlib.sha256(name).hexdigest()[:32] + "%%"
    return text[: most - len(ending)] + ending
