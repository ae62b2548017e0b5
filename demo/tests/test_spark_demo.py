from __future__ import annotations

import csv
import ipaddress
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ringcast_testkit import frugal_jvm

from demo.spark_lists import BROKEN, changed, real_networks, write_networks

RANGES = 1_000


def test_the_ranges_are_real() -> None:
    networks = real_networks(20_000)
    assert len({network.network for network in networks}) == 20_000
    assert all(ipaddress.ip_network(network.network).version == 4 for network in networks)
    assert "CLOUDFLARENET" in {network.owner for network in networks}
    assert len({network.owner for network in networks}) > 1_000


def test_a_share_of_them_changes(tmp_path: Path) -> None:
    networks = real_networks(5_000)
    later, wanted = changed(networks, 0.01)
    before, after = dict(networks), dict(later)
    assert wanted == 50 == sum(before.get(one) != after.get(one) for one in {*before, *after})
    assert (len(before.keys() - after.keys()), len(after.keys() - before.keys())) == (5, 5)
    write_networks(tmp_path / "networks.csv", later)
    with (tmp_path / "networks.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    assert len(lines) == 1 + len(later) + len(BROKEN)


@pytest.mark.timeout(1_000)  # for what hangs: it takes a minute on a quiet machine, and four beside much else
def test_the_spark_demo_keeps_its_promise(tmp_path: Path, spark_home: Path, spark_python: Path) -> None:
    """On a few ranges only; `make demo-spark` takes them all."""
    output = tmp_path / "spark.json"
    words = ["--ranges", str(RANGES), "--changes", "5", "--output", str(output)]
    environment = {
        **os.environ,
        "JDK_JAVA_OPTIONS": frugal_jvm(spark_home),
        "SPARK_HOME": str(spark_home),
        "PYSPARK_PYTHON": str(spark_python),
        # Of few rows, making and compiling a program for each query takes more than the query does.
        "PYSPARK_SUBMIT_ARGS": (
            "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN pyspark-shell"
        ),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.spark", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=900)
    finally:
        if process.poll() is None:  # with the servers that it has started
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, said
    figures = json.loads(output.read_text())
    assert figures["rows"] > RANGES + 18_000
    assert figures["diff_rows"] == figures["streamed_rows"] == 10
    assert figures["verified"] == RANGES
    assert figures["rejected"] == 2 * len(BROKEN)
    assert figures["written_again"] == 0
    assert figures["stream_lag_p50_ms"] > 0
    assert min(figures["read_rows_per_s"], figures["write_rows_per_s"]) > 0
