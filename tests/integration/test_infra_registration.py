"""The config service registers in its own NATS, with the permissions in infra/nats."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.integration.infra_nats import InfraNats


def test_an_instance_may_register_and_leave(tmp_path: Path) -> None:
    with InfraNats(tmp_path / "nats") as server:
        words = ("--cluster-store", f"{server.url}/config_cluster")
        with server.service(tmp_path / "service", *words) as service:
            service.process.wait_until(lambda: any("event=cluster.registered" in line for line in service.process.log))
            service.process.signal(signal.SIGTERM)
            assert service.process.wait(60) == 0
            assert not any("event=metadata_lease" in line for line in service.process.log)
        assert server.violations() == []
