"""The connector behind a Spark Connect server, which is a process of its own: clients with and without our package."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from ringcast_testkit import (
    PATIENCE_S,
    ConfigServiceProcess,
    ManagedProcess,
    NatsServer,
    ReservedPort,
    frugal_jvm,
)
from ringcast_wire.grpc import ConfigServiceStub, pb

from tests.integration import spark_connect_calls, spark_connect_client

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    # Of few rows, making and compiling a program for each query takes more than the query does.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.mark.timeout(1_000)  # for what hangs: a JVM starts in it, and a stream
def test_clients_of_a_connect_server(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    store_name: str,
    spark_home: Path,
    spark_python: Path,
) -> None:
    options = {"servers": nats_server.url, "service": config_service.address, "store": store_name, "key": "list"}
    with grpc.insecure_channel(config_service.address) as channel:
        ConfigServiceStub(channel).CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=16))
    port = ReservedPort()
    server = connect_server(spark_home, spark_python, tmp_path, port)
    try:
        server.wait_until(lambda: any("Spark Connect server started" in line for line in server.log))
        first = run_client(spark_connect_client.__file__, port.address, json.dumps(options), tmp_path)
        second = run_client(spark_connect_calls.__file__, port.address, json.dumps({**options, "key": "calls"}))
    finally:
        print(*server.log, sep="\n")  # pytest shows it if the test fails
        server.terminate()
    check_sources(first)
    check_calls(second)


def run_client(script: str, *words: str | Path) -> dict[str, Any]:
    """Runs it to its end, and returns its report."""
    client = ManagedProcess(Path(script).stem, [sys.executable, script, *words])
    try:
        assert client.wait(4 * PATIENCE_S) == 0, "\n".join(client.log)
    finally:
        client.terminate()
    found: dict[str, Any] = json.loads(client.log[-1])
    return found


def check_sources(report: dict[str, Any]) -> None:
    """What a client without our package found."""
    rows = spark_connect_client.ROWS
    assert (report["rows"], report["wrong"]) == (rows, 0)
    assert report["later"] == [0, 0, 1], "a version that is named is one snapshot, and another read another one"
    assert (report["joined"], report["mapped"], report["copied"]) == (1, [[1]], rows + 1)
    unknown, option, refused = report["errors"]
    assert "'nowhere'" in unknown or "nowhere" in unknown
    assert "option 'tabel' is unknown" in option
    assert "1 rows were rejected, and option max_rejected allows 0" in refused
    assert report["imported"] == []


def check_calls(report: dict[str, Any]) -> None:
    """What a client with our package found."""
    rows = spark_connect_calls.ROWS
    assert report["written"] == {"written": rows}
    assert report["again"] == {"written": 1, "unchanged": rows}
    assert report["rejected"] == {"written": 1, "rejected": 1}
    assert report["reasons"] == [["good", None], ["bad", "NULL"]]
    assert (report["asked"], report["found"], report["wrong"]) == (rows // 2, rows // 4, 0)
    assert (report["later"], report["inner"], report["by default"]) == (0, 1, 3)
    unknown, refused, unreachable = report["errors"]
    assert unknown.startswith("UnknownStoreError: ")
    assert "nowhere" in unknown
    assert refused.startswith("OverwriteRefusedError: ")
    assert "max_delete_share" in refused
    assert unreachable.startswith("UnavailableError: ")
    assert "127.0.0.1:1:" in unreachable


def connect_server(home: Path, python: Path, directory: Path, port: ReservedPort) -> ManagedProcess:
    """Spark's own, in the foreground."""
    settings = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": frugal_jvm(home),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port.number),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
    }
    given = [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": paths,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    submit = str(home / "bin" / "spark-submit")
    words: list[str | Path] = [submit, "--master", "local[2]", "--class", server, *given, "spark-internal"]
    return ManagedProcess("spark-connect", words, env=environment)
