"""The client of the config service that the settings ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ringcast_client import ConfigServiceClient
from ringcast_wire.grpc import ServiceLogin
from ringcast_wire.key_ring import KeyRing

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.services import found_services


@asynccontextmanager
async def service_client(config: CliConfig) -> AsyncIterator[ConfigServiceClient]:
    """Connects at its first call, to the service that the settings name, or else to one that the cluster has.

    Raises:
        InvalidInputError: what it takes to log in does not fit together, or the key ring is none.
        UnavailableError: no service is named, and none is found in the cluster.
        RingcastError: the metadata store of the cluster can't be read.
    """
    login = ServiceLogin(
        tls_ca_file=config.service_tls_ca_file,
        tls_cert_file=config.service_tls_cert_file,
        tls_key_file=config.service_tls_key_file,
        token_file=config.service_token_file,
    )
    async with AsyncExitStack() as stack:
        source = None if config.service else await stack.enter_async_context(found_services(config))
        for address in config.service.split(",") if source is None else source():
            login.check_login(address)
        client = ConfigServiceClient(
            config.service if source is None else source,
            login=login,
            timeout_s=config.timeout_s,
            reason=config.reason,
            key_ring=KeyRing.from_file(config.key_ring) if config.key_ring else None,
        )
        # An empty --key-ring shows rows as they are stored, whatever the environment says.
        yield await stack.enter_async_context(client if config.key_ring else client.as_stored)
