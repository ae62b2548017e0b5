"""The settings of PromQL conditions: which Prometheus is asked, and how the service logs in there."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ringcast_service import ConfigError, setting
from ringcast_wire import InvalidInputError, shown
from ringcast_wire.grpc import read_login_file, read_tokens

_MAX_URL: Final = 512


class PrometheusLogin(NamedTuple):
    """What a request is sent with. ``token``: empty for none; ``tls``: ``True`` for the machine's own authorities."""

    token: str
    tls: ssl.SSLContext | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromqlSettings:
    """Gates of releases may have PromQL conditions where a Prometheus is named. Clients never name one."""

    url: str = setting(
        "",
        "Prometheus that is asked for the PromQL conditions of releases; none: they can't have any.",
        flag="prometheus-url",
        metavar="URL",
    )
    token_file: str = setting(
        "", "Token that it is sent, read for each request.", flag="prometheus-token", metavar="FILE"
    )
    ca_file: str = setting(
        "",
        "Who has signed its certificate, PEM; none: an authority of the machine.",
        flag="prometheus-ca",
        metavar="FILE",
    )

    def check(self) -> None:
        """Looks whether the settings make sense together, and the files can be used.

        Raises:
            ConfigError: they don't; the message names the setting.
        """
        if not self.url:
            for name, path in (("prometheus_token", self.token_file), ("prometheus_ca", self.ca_file)):
                if path:
                    raise ConfigError(f"{name} is given without prometheus_url")
            return
        try:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            _ = parts.port  # raises where it is none
        except ValueError:
            host = ""
        login = parts.username is not None or "@" in parts.netloc if host else False
        if (
            not host
            or login
            or parts.scheme not in {"http", "https"}
            or not {"?", "#"}.isdisjoint(self.url)
            or len(self.url) > _MAX_URL
        ):
            raise ConfigError(
                f"prometheus_url {'with a login in it' if login else shown(self.url)} can't be used: http:// or "
                f"https:// with a host is allowed, and a port and a path, of {_MAX_URL} characters at most"
            )
        if parts.scheme == "http" and self.ca_file:
            raise ConfigError("prometheus_ca is given, and prometheus_url is not https://")
        if parts.scheme == "http" and self.token_file and not _is_loopback(host):
            raise ConfigError(
                "prometheus_token is given, and prometheus_url is neither https:// nor at a loopback address: anybody "
                "on the way could read the token"
            )
        try:
            self.login()
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error

    def login(self) -> PrometheusLogin:
        """What the files say now.

        Raises:
            InvalidInputError: one can't be read, or is no such file.
        """
        token = ""
        if self.token_file:
            try:
                token = read_tokens(self.token_file)[0]
            except InvalidInputError as error:
                raise InvalidInputError(f"prometheus_token: {error}", field="prometheus_token") from error
        if not self.ca_file:
            return PrometheusLogin(token, True)
        data = read_login_file("prometheus_ca", self.ca_file)
        try:
            return PrometheusLogin(token, ssl.create_default_context(cadata=data.decode("ascii")))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInputError(
                "prometheus_ca is not a PEM file with certificates", field="prometheus_ca"
            ) from error


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
