"""The settings of the external check: which server is asked, and how the service logs in there."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast_service import setting

from ringcast_config_service.endpoints import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCheckSettings:
    """Releases of stores with the policy ``external_check`` are published where a server is named, and allows it."""

    url: str = setting(
        "",
        "Server that is asked before a release of a store with the policy `external_check` is published: `https://…`, "
        "or `grpcs://HOST:PORT` for gRPC.",
        flag="external-check-url",
        metavar="URL",
    )
    token_file: str = setting(
        "", "Token that it is sent, read for each request.", flag="external-check-token", metavar="FILE"
    )
    ca_file: str = setting(
        "",
        "Who has signed its certificate, PEM; none: an authority of the machine.",
        flag="external-check-ca",
        metavar="FILE",
    )

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("external_check", self.url, self.token_file, self.ca_file, takes_grpc=True)
