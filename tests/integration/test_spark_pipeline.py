"""`ringcast-pipeline` by spark-submit on a real standalone cluster, with logins, and no secret in what Spark keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from pyspark_ringcast.pipeline import __main__ as pipeline_main
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, ManagedProcess, NatsServer, frugal_jvm
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, pb

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "a-password-that-nobody-may-see"
TOKEN = "a-token-that-nobody-may-see-either"
ROWS = {f"10.{number // 256}.{number % 256}.0/24": f"owner {number}" for number in range(2_000)}
SPEC = """
[source]
paths = ["ranges.csv"]
format = "csv"
[row]
row_id = "network"
value = "owner"
[columns.network]
normalise = ["nfc"]
validate = ["ip_network"]
[target]
store = "{store}"
key = "ranges"
servers = "{servers}"
service = "tls://{service}"
service_tls_ca_file = "ca.pem"
service_token_file = "token"
user = "spark"
"""


@dataclass
class Guarded:
    """Servers that let nobody in without a password, and a token."""

    nats: NatsServer
    service: ConfigServiceProcess
    stub: ConfigServiceStub


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {
        "ca.pem": authority.cert_pem.bytes(),
        "cert.pem": issued.cert_chain_pems[0].bytes(),
        "key.pem": issued.private_key_pem.bytes(),
        "token": f"{TOKEN}\n".encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    words = {
        "--nats-user": "service",
        "--nats-password": "the-service-s-own",
        "--tls-cert": tmp_path / "cert.pem",
        "--tls-key": tmp_path / "key.pem",
        "--tokens": tmp_path / "token",
    }
    users = [{"user": "service", "password": "the-service-s-own"}, {"user": "spark", "password": PASSWORD}]
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    options = tuple(str(word) for pair in words.items() for word in pair)
    login = ServiceLogin(tls_ca_file=str(tmp_path / "ca.pem"), token_file=str(tmp_path / "token"))
    with (
        NatsServer(tmp_path / "nats", authorization={"users": users}) as nats,
        ConfigServiceProcess(tmp_path, nats_url=nats.url, database=database, options=options) as service,
        login.channel(service.address, ()) as channel,
    ):
        yield Guarded(nats, service, ConfigServiceStub(channel))


@pytest.mark.timeout(1_000)  # for what hangs: six JVMs start in it, and have needed 380 s beside much else
def test_the_pipeline_on_a_cluster(tmp_path: Path, guarded: Guarded, store_name: str, spark_home: Path) -> None:
    guarded.stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=16))
    guarded.stub.Put(pb.PutRequest(store=store_name, key="ranges", row_id="10.0.0.0/24", value="somebody"))
    (tmp_path / "ranges.csv").write_text("\n".join(["network,owner", *map(",".join, ROWS.items()), "nonsense,x"]))
    spec = SPEC.format(store=store_name, servers=guarded.nats.url, service=guarded.service.address)
    (tmp_path / "ranges.toml").write_text(spec)
    said: list[str] = []
    words: list[str | Path] = ["--json", "run", tmp_path / "ranges.toml", "--rejects", tmp_path / "rejects"]
    process = submitted(tmp_path, spark_home, words, said)
    try:
        assert process.wait(10 * PATIENCE_S) == 3, process.describe("did not end as `done, and rows were rejected`")
    finally:
        process.terminate()
    report = json.loads(next(line for line in said if line.startswith("{")))
    assert (report["written"], report["verified"], report["rejected"]) == (len(ROWS), len(ROWS), 1)
    pages = guarded.stub.List(pb.ListRequest(store=store_name, key="ranges"))
    assert {row.row_id: row.value for page in pages for row in page.rows} == ROWS
    assert sum(guarded.stub.Heads(pb.HeadsRequest(store=store_name, key="ranges")).heads) == 1 + len(ROWS)

    events = "".join(path.read_text() for path in files_in(tmp_path / "events"))
    assert "spark://127.0.0.1:" in events, "it ran elsewhere"
    assert "SparkListenerSQLExecutionEnd" in events
    logs = [path for path in files_in(tmp_path / "logs") if path.name in ("stdout", "stderr")]
    assert {path.parents[2].name for path in logs} == {"worker0", "worker1"}, "an executor did not run"
    told = [events, *said, *process.log, *(path.read_text(errors="replace") for path in logs)]
    for secret in (PASSWORD, TOKEN):
        assert not [text for text in told if secret in text]
        assert not [path for path in files_in(tmp_path / "rejects") if secret.encode() in path.read_bytes()]


def submitted(tmp_path: Path, home: Path, words: list[str | Path], said: list[str]) -> ManagedProcess:
    """The pipeline's command on a cluster whose Spark keeps its event log."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.sql.shuffle.partitions": "2",
        # Of few rows, making and compiling a program for each query takes more than the query does.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    defaults = "".join(f"{name} {text}\n" for name, text in settings.items())
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults)
    command: list[str | Path] = [sys.executable, ROOT / "infra/spark/standalone.py", "--logs", tmp_path / "logs"]
    command += [str(pipeline_main.__file__), *words]
    environment = {
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_HOME": str(home),
        "RINGCAST_PASSWORD": PASSWORD,
        "JDK_JAVA_OPTIONS": frugal_jvm(home),
    }
    return ManagedProcess("spark-pipeline", command, env=environment, take_line=said.append)


def files_in(directory: Path) -> list[Path]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    assert found, f"nothing is in {directory}"
    return found
