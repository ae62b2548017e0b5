"""Batches, a stream and a change feed with servers that let nobody in without TLS, a token and a password."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_ringcast import Counts, write
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import UnauthenticatedError
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, pb

PASSWORD = "a-password-of-the-bus"
TOKENS = {"desk": "a-token-of-the-desk-that-nobody-may-see", "robot": "a-token-of-a-robot-that-nobody-may-see"}
ROWS = {f"row-{number}": "1" for number in range(50)}


@dataclass
class Guarded:
    """Servers, and a directory with the files to log in with: ``ca`` and a token for each principal."""

    nats: NatsServer
    service: ConfigServiceProcess
    directory: Path

    def options(self, principal: str, **more: str) -> dict[str, str]:
        """Of a read or write in the name of a principal."""
        return {
            "servers": self.nats.url,
            "user": "spark",
            "password": PASSWORD,
            "service": f"tls://{self.service.address}",
            "service_tls_ca_file": str(self.directory / "ca"),
            "service_token_file": str(self.directory / principal),
            "store": "guarded",
            "key": "list",
            "timeout_s": "10",
            **more,
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    known = [f"{name} sha256:{hashlib.sha256(token.encode()).hexdigest()}" for name, token in TOKENS.items()]
    files = {
        **TOKENS,
        "stranger": "a-token-that-the-service-does-not-know",
        "ca": authority.cert_pem.bytes().decode(),
        "cert": issued.cert_chain_pems[0].bytes().decode(),
        "private": issued.private_key_pem.bytes().decode(),
        "tokens": "\n".join([*known, ""]),
    }
    for name, text in files.items():
        (directory / name).write_text(text)
    words: tuple[str, ...] = ("--nats-user", "service", "--nats-password", "the-service-s-own")
    for option, name in {"--tls-cert": "cert", "--tls-key": "private", "--tokens": "tokens"}.items():
        words = (*words, option, str(directory / name))
    users = [{"user": "service", "password": "the-service-s-own"}, {"user": "spark", "password": PASSWORD}]
    login = ServiceLogin(tls_ca_file=str(directory / "ca"), token_file=str(directory / "desk"))
    database = f"sqlite:{directory / 'ringcast.db'}"
    with (
        NatsServer(directory / "nats", authorization={"users": users}) as nats,
        ConfigServiceProcess(directory, nats_url=nats.url, database=database, options=words) as service,
        login.channel(service.address, ()) as channel,
    ):
        ConfigServiceStub(channel).CreateStore(pb.CreateStoreRequest(name="guarded", partition_count=8))
        yield Guarded(nats, service, directory)


def test_the_change_feed_names_who_wrote_each_change(spark: SparkSession, guarded: Guarded, tmp_path: Path) -> None:
    """The principals of two tokens; a batch, a returned write and the sink of a stream are written in their names."""
    desk, robot = guarded.options("desk"), guarded.options("robot")
    rows = spark.createDataFrame(list(ROWS.items()), "row_id STRING, value STRING")
    rows.write.format("ringcast").mode("append").options(**desk, reason="at first").save()
    two = rows.filter("row_id IN ('row-1', 'row-2')").selectExpr("row_id", "'2' AS value")
    assert write(two, **robot) == Counts(written=2)
    copied(spark, desk, {**robot, "key": "copy"}, tmp_path / "copy")
    changes = feed(spark, desk, tmp_path / "feed")
    assert {(row.change_type, row.author, row.reason) for row in changes} == {
        ("insert", "desk", "at first"),
        ("update_preimage", "robot", None),
        ("update_postimage", "robot", None),
    }
    assert {row.row_id for row in changes if row.author == "robot"} == {"row-1", "row-2"}
    mirrored = feed(spark, {**desk, "key": "copy"}, tmp_path / "of-the-copy")
    assert {row.row_id: row.value for row in mirrored} == {**ROWS, "row-1": "2", "row-2": "2"}
    assert {row.author for row in mirrored} == {"robot"}


def copied(spark: SparkSession, source: dict[str, str], sink: dict[str, str], checkpoint: Path) -> None:
    writer = spark.readStream.format("ringcast").options(**source).load().writeStream.format("ringcast")
    query = writer.options(**sink).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def feed(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> list[Any]:
    found: list[Any] = []
    changes = spark.readStream.format("ringcast").options(**options, readChangeFeed="true").load()
    writer = changes.writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def test_a_read_without_the_password(spark: SparkSession, guarded: Guarded) -> None:
    with pytest.raises(PySparkException, match=r"can't be reached: .*Authorization Violation") as caught:
        spark.read.format("ringcast").options(**guarded.options("desk", timeout_s="5", password="wrong-one")).load()
    assert "wrong-one" not in str(caught.value)


def test_a_write_without_a_token_that_is_known(spark: SparkSession, guarded: Guarded) -> None:
    row = spark.createDataFrame([("stranger", "1")], "row_id STRING, value STRING")
    with pytest.raises(PySparkException, match="a token that the config service knows is needed"):
        row.write.format("ringcast").mode("append").options(**guarded.options("stranger")).save()
    with pytest.raises(UnauthenticatedError, match="a token that the config service knows is needed"):
        write(row, **guarded.options("stranger"))
