"""A client of a real config service, and a store of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess


@pytest.fixture(scope="module")
def service(shared_service: ConfigServiceProcess) -> ConfigServiceProcess:
    """The service that ``client`` calls. A module may have another one."""
    return shared_service


@pytest.fixture
async def client(service: ConfigServiceProcess) -> AsyncIterator[ConfigServiceClient]:
    """A client without a login."""
    async with ConfigServiceClient(service.address) as opened:
        yield opened


@pytest.fixture
async def store(client: ConfigServiceClient, store_name: str) -> str:
    """The name of a store that no other test uses, with 8 partitions."""
    return (await client.create_store(store_name, partition_count=8)).name
