"""The settings of PromQL conditions: which Prometheus is asked, and how the service logs in there."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast_service import setting

from ringcast_config_service.endpoints import Endpoint


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

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("prometheus", self.url, self.token_file, self.ca_file)
