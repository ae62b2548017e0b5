"""Whose a token is: of the service's file, or of an issuer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ringcast_wire.tokens import KnownToken, digest

from ringcast_config_service.caller import Login, LoginRefusedError
from ringcast_config_service.oidc.issuers import PRINCIPAL
from ringcast_config_service.oidc.settings import OidcSettings
from ringcast_config_service.security import Security, Tokens

if TYPE_CHECKING:
    from ringcast_config_service.oidc.verifier import Verifier


class Logins:
    """The tokens that callers may send, one with each call. Which are revoked, :attr:`is_revoked` says."""

    def __init__(self, tokens: Tokens | None, verifier: Verifier | None) -> None:
        self._tokens = tokens
        self._verifier = verifier
        self.is_revoked: Callable[[bytes], bool] = lambda _: False

    @classmethod
    def of(cls, security: Security, oidc: OidcSettings) -> Logins:
        """Those that the settings ask for."""
        verifier = None
        if oidc.on:
            # It imports clients of HTTP and cryptography, for which a start without it does not wait.
            from ringcast_config_service.oidc.verifier import Verifier

            verifier = Verifier(oidc)
        return cls(Tokens(security.token_file) if security.token_file else None, verifier)

    @property
    def needed(self) -> bool:
        """Whether each call needs a token."""
        return self._tokens is not None or self._verifier is not None

    @property
    def verifier(self) -> Verifier | None:
        """Of the tokens of issuers; ``None`` where there are none."""
        return self._verifier

    @property
    def unusable_files(self) -> dict[str, Callable[[], bool]]:
        """What says of a file of tokens or issuers whether it can't be used as it is now; by what is in it."""
        found: dict[str, Callable[[], bool]] = {}
        if (tokens := self._tokens) is not None:
            found["tokens"] = lambda: tokens.unusable
        if (verifier := self._verifier) is not None:
            found["issuers"] = lambda: verifier.unusable
        return found

    def login_of(self, tokens: Sequence[str]) -> Login:
        """What the tokens of a call prove now.

        Raises:
            LoginRefusedError: nothing, or there is not exactly one.
            UnavailableError: that can't be known now: the keys of its issuer can't be read.
        """
        if len(tokens) != 1:
            raise _unknown("unknown_token" if tokens else "no_token")
        return self._login(tokens[0])

    def _login(self, token: str) -> Login:
        sent = digest(token)
        if self.is_revoked(sent):
            raise _unknown()
        known = self._tokens.find(sent) if self._tokens is not None else None
        if known is not None:
            found = Login(known.principal, expires_at_s=known.expires_at_s)
            if found.has_expired:
                raise LoginRefusedError("expired_token", "the token has expired")
            return found
        if self._verifier is not None and token.count(".") == 2:
            return self._verifier.login(token)
        raise _unknown()

    def known_tokens(self) -> Sequence[KnownToken] | None:
        """The tokens in the file of this instance; ``None``: each call is let in without one."""
        if self._tokens is not None:
            return self._tokens.known()
        return [] if self.needed else None

    def principals_of_issuers(self) -> Sequence[str]:
        """How the principals begin whose tokens other issuers make."""
        return [f"{PRINCIPAL}{issuer}#" for issuer in (self._verifier.issuers if self._verifier is not None else ())]


def _unknown(reason: str = "unknown_token") -> LoginRefusedError:
    return LoginRefusedError(reason, "a token that the config service knows is needed: see token_file")
