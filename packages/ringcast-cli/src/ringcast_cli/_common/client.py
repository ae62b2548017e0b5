"""The client of the config service that the settings ask for."""

from __future__ import annotations

from ringcast_client import ConfigServiceClient
from ringcast_wire.grpc import ServiceLogin
from ringcast_wire.key_ring import KeyRing

from ringcast_cli._common.config import CliConfig


def service_client(config: CliConfig) -> ConfigServiceClient:
    """Not connected yet.

    Raises:
        InvalidInputError: what it takes to log in does not fit together, or the key ring is none.
    """
    login = ServiceLogin(
        tls_ca_file=config.service_tls_ca_file,
        tls_cert_file=config.service_tls_cert_file,
        tls_key_file=config.service_tls_key_file,
        token_file=config.service_token_file,
    )
    for address in config.service.split(","):
        login.check_login(address)
    client = ConfigServiceClient(
        config.service,
        login=login,
        timeout_s=config.timeout_s,
        reason=config.reason,
        key_ring=KeyRing.from_file(config.key_ring) if config.key_ring else None,
    )
    # An empty --key-ring shows rows as they are stored, whatever the environment says.
    return client if config.key_ring else client.as_stored
