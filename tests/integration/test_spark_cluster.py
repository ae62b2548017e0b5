"""The connector on a real standalone cluster, shipped with the job, while executors are killed in the middle of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc
from ringcast_testkit import ConfigServiceProcess, ManagedProcess, NatsServer
from ringcast_wire.grpc import ConfigServiceStub, pb

from tests.integration import spark_job

ROOT = Path(__file__).resolve().parents[2]


def test_a_cluster_that_loses_executors(
    tmp_path: Path, nats_server: NatsServer, config_service: ConfigServiceProcess, store_name: str
) -> None:
    options = {"servers": nats_server.url, "service": config_service.address, "store": store_name, "key": "list"}
    with grpc.insecure_channel(config_service.address) as channel:
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=16))
        stub.Put(pb.PutRequest(store=store_name, key="list", row_id="old", value="gone in the end"))
        words: list[str | Path] = [
            ROOT / "infra/spark/standalone.py",
            str(spark_job.__file__),
            json.dumps(options),
            tmp_path,
        ]
        process = ManagedProcess("spark-cluster", [sys.executable, *words])
        try:
            process.wait_until((tmp_path / "report.json").exists, timeout_s=110)
        finally:
            process.terminate()
        heads = stub.Heads(pb.HeadsRequest(store=store_name, key="list")).heads
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["master"].startswith("spark://127.0.0.1:")
    assert {report[name] for name in ("rows", "ids", "right")} == {spark_job.ROWS}
    assert sum(heads) == 1 + spark_job.ROWS + 1, "a row was written twice"
    for step in ("write", "read"):
        files = json.loads((tmp_path / step).read_text())  # there: an executor was killed in the middle
        assert len(files) == 2
        assert all("/ringcast/" in file and "rc-spark-" in file for file in files), files
