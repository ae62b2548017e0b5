"""The config service registers in its own NATS, with the permissions in infra/nats, and the tools see it there."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.integration.cli_process import Cli
from tests.integration.infra_nats import WORKER_API, InfraNats


def test_an_instance_may_register_and_leave(tmp_path: Path) -> None:
    with InfraNats(tmp_path / "nats") as server:
        cluster = f"{server.url}/config_cluster"
        tools = {"jetstream_api": WORKER_API, "servers": server.url, **server.login("tools")}
        cli = Cli(tmp_path, cluster_store=cluster, timeout_s="60", **tools)
        refused = cli.refused("cluster", "list")
        assert refused == "bucket 'config_cluster': NATS answers 'stream not found' (10059)"
        with server.service(tmp_path / "service", "--cluster-store", cluster) as service:
            service.process.wait_until(lambda: any("event=cluster.registered" in line for line in service.process.log))
            member, fleet = cli.ok("cluster", "list", "--json").documents
            assert (member["address"], member["state"], fleet["whole"]) == (service.address, "active", True)
            service.process.signal(signal.SIGTERM)
            assert service.process.wait(60) == 0
            assert not any("event=metadata_lease" in line for line in service.process.log)
        (fleet,) = cli.ok("cluster", "list", "--json").documents
        assert fleet["missing"] == [
            "it is not known which stores and keys there are: no config service that takes calls is registered in"
            f" {cluster}: start one with that --cluster-store, or name one with --service"
        ]
        assert server.violations() == []
        # What it takes to see changes as they come, the tools may not do.
        assert "CONSUMER.CREATE.KV_config_cluster" in cli.refused("cluster", "top")
