"""The connector on a real standalone cluster, shipped with the job, while executors are killed in the middle of it.

And with speculation: tasks of a batch write and of a stream run twice at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc
import pytest
from pyspark_ringcast._client.sink_notes import LEDGER_KEY
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, ManagedProcess, NatsServer, frugal_jvm
from ringcast_wire.grpc import ConfigServiceStub, pb

from tests.integration import spark_job

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1_000)  # for what hangs: six JVMs start in it, and have needed 380 s beside much else
def test_a_cluster_that_loses_executors(
    tmp_path: Path, nats_server: NatsServer, config_service: ConfigServiceProcess, store_name: str, spark_home: Path
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
        environment = {"SPARK_HOME": str(spark_home), "JDK_JAVA_OPTIONS": frugal_jvm(spark_home)}
        process = ManagedProcess("spark-cluster", [sys.executable, *words], env=environment)
        try:
            for step in ("write", "read", "checkpoint", "report.json"):
                process.wait_until((tmp_path / step).exists, timeout_s=10 * PATIENCE_S)
        finally:
            process.terminate()
        heads = stub.Heads(pb.HeadsRequest(store=store_name, key="list")).heads
        lists = [content(stub, store_name, key) for key in ("list", "copy", "twice-stream")]
        twice, streamed = (
            sum(stub.Heads(pb.HeadsRequest(store=store_name, key=key)).heads) for key in ("twice", "twice-stream")
        )
        notes = content(stub, store_name, LEDGER_KEY)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["master"].startswith("spark://127.0.0.1:")
    assert {report[name] for name in ("rows", "ids", "right")} == {spark_job.ROWS}
    assert sum(heads) == 1 + spark_job.ROWS + 1, "a row was written twice"
    assert lists[0] == lists[1] == lists[2], "a stream lost or changed rows"
    for marker in ("slow-wrote", "copy-is-done", "stream-attempt-0", "stream-attempt-1"):
        assert (tmp_path / marker).exists(), "no task ran twice at once"
    assert twice == spark_job.TWICE_ROWS, "a row was written twice, or never"
    counts = report["twice"]
    assert counts["written"] + counts["unchanged"] == spark_job.TWICE_ROWS
    # Either of the two may win, and if that is the slow one, what its copy wrote is not among what it wrote itself.
    assert counts["unchanged"] in range(spark_job.TWICE_ROWS // 4), "not only of the task that ran twice"
    assert (counts["deleted"], counts["rejected"]) == (0, 0)
    assert streamed == spark_job.ROWS, "a row was written twice, or never"
    note = json.loads(notes[f"twice-stream/{report['query']}"])
    assert note["total"] == {"written": spark_job.ROWS, "deleted": 0, "unchanged": 0, "rejected": 0}
    for step in ("write", "read"):
        files = json.loads((tmp_path / step).read_text())  # there: an executor was killed in the middle
        assert len(files) == 2
        assert all("/ringcast/" in file and "rc-spark-" in file for file in files), files


def content(stub: ConfigServiceStub, store: str, key: str) -> dict[str, str]:
    pages = stub.List(pb.ListRequest(store=store, key=key))
    return {row.row_id: row.value for page in pages for row in page.rows}
