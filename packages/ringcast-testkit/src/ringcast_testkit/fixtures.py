"""Pytest fixtures: real servers. Use with ``pytest_plugins = ["ringcast_testkit.fixtures"]`` in a root conftest."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringcast_testkit._config_service import ConfigServiceProcess
from ringcast_testkit._etcd import EtcdServer, etcd_binary
from ringcast_testkit._nats import NatsServer
from ringcast_testkit._postgres import PostgresServer
from ringcast_testkit._spark import SHARED, make_spark_home, spark_workers
from ringcast_testkit._warm import WarmProgram

WarmProgram.forks = True


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS server for the whole run. Tests that share it use stores of their own; none may stop it."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def nats_url(shared_nats: NatsServer) -> str:
    """URL of the shared NATS server."""
    return shared_nats.url


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS server of this test's own, free to be killed."""
    with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole run; none may stop it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(shared_postgres: PostgresServer) -> str:
    """URL of an empty database."""
    return shared_postgres.create_database()


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a test sets as ``SPARK_HOME`` before Spark starts, so that its Python workers start fast.

    The processes of a run share one, where the run has a directory for that.
    """
    shared = os.environ.get(SHARED)
    return make_spark_home(Path(shared) / "spark" if shared else tmp_path_factory.mktemp("spark") / "home")


@pytest.fixture(scope="session")
def spark_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a test sets as ``PYSPARK_PYTHON`` before Spark starts, so that all its Python workers are forked."""
    with spark_workers(tmp_path_factory.mktemp("spark-python") / "python") as executable:
        yield executable


@pytest.fixture
def store_name() -> str:
    """A store name that no other test uses."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
def config_service(tmp_path: Path, nats_server: NatsServer) -> Iterator[ConfigServiceProcess]:
    """A config service on SQLite beside this test's own NATS server."""
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service:
        yield service


@pytest.fixture(scope="module")
def service_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A NATS server on which the config service alone makes buckets; no test may stop it."""
    with NatsServer(tmp_path_factory.mktemp("service-nats")) as server:
        yield server


@pytest.fixture(scope="module")
def shared_service(
    service_nats: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConfigServiceProcess]:
    """A config service beside it; no test may stop it either."""
    directory = tmp_path_factory.mktemp("service")
    database = f"sqlite:{directory / 'ringcast.db'}"
    with ConfigServiceProcess(directory, nats_url=service_nats.url, database=database) as service:
        yield service


@pytest.fixture(scope="module")
def brief_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    """A config service whose streams end all the time."""
    directory = tmp_path_factory.mktemp("brief")
    with NatsServer(directory / "nats") as nats:
        database = f"sqlite:{directory / 'ringcast.db'}"
        options = ("--change-stream", "50ms")
        with ConfigServiceProcess(directory, nats_url=nats.url, database=database, options=options) as running:
            yield running


@pytest.fixture
def etcd_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """A fresh etcd. The test is skipped where there is none, unless RINGCAST_REQUIRE_ETCD=1 or this is CI."""
    if etcd_binary() is None:
        if os.environ.get("RINGCAST_REQUIRE_ETCD") == "1" or os.environ.get("CI") == "true":
            pytest.fail("etcd is not on PATH: install Debian's package etcd-server")
        pytest.skip("etcd is not on PATH: Debian's package etcd-server has it")
    with EtcdServer(tmp_path / "etcd") as server:
        yield server
