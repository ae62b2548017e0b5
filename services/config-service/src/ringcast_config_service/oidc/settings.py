"""The settings of logins by the tokens of issuers."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast_service import ConfigError, between, duration_s, setting
from ringcast_wire import InvalidInputError

from ringcast_config_service.oidc.issuers import read_issuers


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """Tokens of issuers are accepted where a file of issuers is named; that one is read again when it changes."""

    issuers_file: str = setting(
        "",
        "Issuers (OpenID Connect) whose tokens clients may send, TOML (see the README); none: no such tokens.",
        flag="oidc-issuers",
        metavar="FILE",
    )
    leeway_s: float = duration_s(
        "30s",
        "By how much the clock of an issuer may differ: a token counts so much longer, and so much earlier.",
        flag="oidc-leeway",
        allowed=between(0, 300),
    )
    keys_every_s: float = duration_s(
        "5m",
        "How often the keys of an issuer are read from its URL.",
        flag="oidc-keys-every",
        allowed=between(1, 86_400),
    )
    keys_rest_s: float = duration_s(
        "10s",
        "Time between two such reads that unknown keys, or failures, ask for.",
        flag="oidc-keys-rest",
        allowed=between(0.1, 3_600),
    )
    keys_timeout_s: float = duration_s(
        "5s", "How long such a read may take.", flag="oidc-keys-timeout", allowed=between(0.1, 60)
    )

    @property
    def on(self) -> bool:
        """Whether such tokens are accepted."""
        return bool(self.issuers_file)

    def check(self, *, uses_tls: bool) -> None:
        """Looks whether the settings make sense together, and the file can be used.

        Raises:
            ConfigError: they don't; the message names the setting.
        """
        if not self.on:
            return
        if not uses_tls:
            raise ConfigError("oidc_issuers is given without tls_cert: it needs TLS")
        try:
            read_issuers(self.issuers_file)
        except InvalidInputError as error:
            raise ConfigError(f"oidc_issuers: {error}") from error
