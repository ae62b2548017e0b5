"""The client of the config service that the settings ask for."""

from __future__ import annotations

from ringcast_client import ConfigServiceClient
from ringcast_wire.grpc import ServiceLogin

from ringcast_cli._config import CliConfig


def service_client(config: CliConfig) -> ConfigServiceClient:
    """Not connected yet.

    Raises:
        InvalidInputError: what it takes to log in does not fit together.
    """
    login = ServiceLogin(
        tls_ca_file=config.service_tls_ca_file,
        tls_cert_file=config.service_tls_cert_file,
        tls_key_file=config.service_tls_key_file,
        token_file=config.service_token_file,
    )
    login.check_login(config.service)
    return ConfigServiceClient(config.service, login=login, timeout_s=config.timeout_s, reason=config.reason)
