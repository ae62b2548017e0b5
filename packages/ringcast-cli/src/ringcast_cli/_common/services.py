"""Where the config services are that take calls, by what stands in the metadata store of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from ringcast_wire import RingcastError, UnavailableError, without_passwords
from ringcast_wire.grpc import TLS_PREFIX

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.metadata import opened_store

_AGAIN_S: Final = 3.0
"""How often a command that goes on looks for other instances: as often as these report."""


@asynccontextmanager
async def found_services(config: CliConfig) -> AsyncIterator[Callable[[], Sequence[str]]]:
    """A function of the addresses that are known, which are read again while the body runs.

    Raises:
        UnavailableError: the metadata store can't be reached, or names no config service that takes calls.
        RingcastError: as the store raises it.
    """
    from ringcast_meta.cluster import find_services

    async with opened_store(config, config.cluster_store) as store:
        found = [_with_tls(address, config) for address in await find_services(store)]
        if not found:
            where = without_passwords([config.cluster_store])
            raise UnavailableError(
                f"no config service that takes calls is registered in {where}: start one with that --cluster-store, or"
                " name one with --service"
            )

        async def follow() -> None:
            nonlocal found
            while True:
                await asyncio.sleep(_AGAIN_S)
                with suppress(RingcastError):  # those that are known may still be there
                    found = [_with_tls(address, config) for address in await find_services(store)]

        following = asyncio.create_task(follow(), name="config services")
        try:
            yield lambda: found
        finally:
            following.cancel()
            await asyncio.wait([following])


def _with_tls(address: str, config: CliConfig) -> str:
    """An instance says whether it has TLS; those of builds that did not yet have it where a token is to be sent."""
    return f"{TLS_PREFIX}{address}" if config.service_token_file and not address.startswith(TLS_PREFIX) else address
