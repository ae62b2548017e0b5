"""What tests of the command share, and those on the files of infra/nats, whose module says what its ``service`` has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from ringcast_testkit import ConfigServiceProcess

from tests.integration.callout_nats import CalloutNats
from tests.integration.cli_process import Cli, Servers
from tests.integration.infra_nats import Bus, InfraNats, connected


@pytest.fixture(scope="module", params=["static", "callout"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InfraNats]:
    """A server on the files of infra/nats, and one that asks the config service what workers may do."""
    make = CalloutNats if request.param == "callout" else InfraNats
    with make(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def operator(server: InfraNats, service: ConfigServiceProcess) -> AsyncIterator[Bus]:
    """The config service's user, to look at the streams with."""
    async with connected(server, "config-service") as bus:
        yield bus


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """What the command talks to."""
    with Servers(tmp_path_factory.mktemp("cli")) as started:
        yield started


@pytest.fixture
def cli(servers: Servers, tmp_path: Path) -> Cli:
    """The command, with a home of its own."""
    return servers.cli(tmp_path)


@pytest.fixture
def lone_cli(tmp_path: Path) -> Cli:
    """The command, with a home of its own, which knows of no server."""
    return Cli(tmp_path, timeout_s="30")


@pytest.fixture
def store(cli: Cli, store_name: str) -> str:
    """A store of 8 partitions."""
    while (made := cli("store", "create", store_name, "--partitions", 8)).code:
        # On a busy machine NATS may not make the streams in time; the same command again goes on.
        assert "NATS can't prepare it for workers now" in made.err, made
    return store_name
