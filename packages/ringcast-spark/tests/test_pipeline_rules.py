"""Rules as expressions in the JVM, held against what Python says of the same values; dedup; layouts."""

from __future__ import annotations

import ipaddress
import random
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark_ringcast import pipeline
from pyspark_ringcast.pipeline import _expressions as expressions
from pyspark_ringcast.pipeline import _rules as rules
from pyspark_ringcast.pipeline._ip_network import is_ip_network
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, Strategy, check_row, limits

NETWORKS = [
    "10.0.0.0/8",
    "10.0.0.1/8",
    "10.0.0.1/32",
    "0.0.0.0/0",
    "255.255.255.255/32",
    "256.0.0.0/8",
    "10.0.0/8",
    "10.0.0.0",
    "10.0.0.0/33",
    "10.0.0.0/-1",
    "10.0.0.0/8 ",
    "10.0.0.128/25",
    "10.0.0.64/25",
    "01.0.0.0/8",
    "::/0",
    "::1/128",
    "::1/127",
    "2001:db8::/32",
    "2001:db8::/28",
    "2001:DB8:0:0:0:0:0:0/32",
    "2001:db8:1::/47",
    "2001:db8:2::/47",
    "1:2:3:4:5:6:7:8/128",
    "1:2:3:4:5:6:7::/112",
    "1:2:3:4:5:6:7:8:9/128",
    "1:2:3:4:5:6:7/128",
    "1::2::3/128",
    "1:::2/128",
    ":1::/16",
    "1:/16",
    "::12345/128",
    "::g/128",
    "fe80::/129",
    "1:2:3:4:5:6:7:8::/128",
    "::1:2:3:4:5:6:7:8/128",
    "::2:3:4:5:6:7:8/128",
    "/8",
    "",
    "text",
    "10.0.0.0/8/8",
]


def is_network(text: str) -> bool:
    """Python's answer, without a prefix length left out or written otherwise."""
    address, slash, prefix = text.partition("/")
    if not slash or not prefix.isdigit() or str(int(prefix)) != prefix or ("." in address and ":" in address):
        return False
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def random_networks(count: int) -> list[str]:
    made = []
    source = random.Random(7)
    for _ in range(count):
        bits = source.choice((32, 128))
        prefix = source.randrange(bits + 1)
        number = source.getrandbits(bits) & ~((1 << (bits - prefix)) - 1)
        number |= source.choice((0, 0, 1 << source.randrange(bits)))
        address: Any = ipaddress.IPv4Address(number) if bits == 32 else ipaddress.IPv6Address(number)
        made.append(f"{source.choice((address.compressed, address.exploded))}/{prefix}")
    return made


def test_ip_networks(spark: SparkSession) -> None:
    texts = NETWORKS + random_networks(1_000)
    frame = spark.createDataFrame([(text,) for text in texts], "text STRING")
    found = {
        row.text: row.found for row in frame.select("text", is_ip_network(sql.col("text")).alias("found")).collect()
    }
    assert found == {text: is_network(text) for text in texts}
    assert 300 < sum(found.values()) < 1_000


def test_normalisers(spark: SparkSession) -> None:
    texts = ["", "  a  b ", "\u00a0Ab\u2003", "E\u0301cole\t\u212b", "ﬁ", "İ", "x" * 5, None]
    chains: list[list[rules.Rule]] = [
        [rules.Strip(), rules.Squeeze(), rules.Lower()],
        [rules.Unicode(form="NFC")],
        [rules.Unicode(form="NFKC"), rules.Upper()],
        [rules.Replace(regex="^x+$", to="y"), rules.EmptyToNull(), rules.Default(value="none")],
    ]
    frame = spark.createDataFrame([(text,) for text in texts], "text STRING")
    found = frame.select(*(expressions.normalised(sql.col("text"), chain) for chain in chains)).collect()

    def python(text: str | None) -> tuple[str | None, ...]:
        replaced = "none" if text in (None, "") else "y" if text == "x" * 5 else text
        if text is None:
            return (None, None, None, replaced)
        return (
            " ".join(text.split()).lower(),
            unicodedata.normalize("NFC", text),
            unicodedata.normalize("NFKC", text).upper(),
            replaced,
        )

    assert [tuple(row) for row in found] == [python(text) for text in texts]


VALIDATED: list[tuple[rules.Rule, str | None, str | None]] = [
    (rules.Required(), "x", None),
    (rules.Required(), "", "is missing"),
    (rules.Required(), None, "is missing"),
    (rules.Regex(value="a|ab+"), "abb", None),
    (rules.Regex(value="a|ab+"), "cab", "does not match a|ab+"),
    (rules.Regex(value="a"), "a\n", "does not match a"),
    (rules.Regex(value="a"), None, None),
    (rules.Length(min=2, max=3), "éé", None),
    (rules.Length(min=2, max=3), "é", "has 1 characters: 2 to 3 is allowed"),
    (rules.Length(max=3, unit="bytes"), "éé", "has 4 bytes: 0 to 3 is allowed"),
    (rules.Length(min=2), "\U0001f600", "has 1 characters: at least 2 is allowed"),
    (rules.Range(min=0, max=10), "1e1", None),
    (rules.Range(min=0, max=10), "10.5", "is 10.5: 0 to 10 is allowed"),
    (rules.Range(max=10), "-3", None),
    (rules.Range(min=0.5), "0", "is 0.0: at least 0.5 is allowed"),
    (rules.Range(min=0), "ten", "is not a number"),
    (rules.Range(min=0), "NaN", "is not a number"),
    (rules.Range(min=0), None, None),
    (rules.OneOf(value=["a", "b"]), "b", None),
    (rules.OneOf(value=["a", "b"]), "c", "is not one of a, b"),
    (rules.OneOf(value=["a"]), None, None),
    (rules.NotOneOf(value=list("abcdefg")), "a", "is one of a, b, c, d, e and 2 more"),
    (rules.NotOneOf(value=["a"]), "b", None),
    (rules.IpNetwork(), "10.0.0.0/8", None),
    (rules.IpNetwork(), "10.0.0.1/8", "is not an IP network such as 10.0.0.0/8 or 2001:db8::/32"),
    (rules.IpNetwork(), None, None),
]


def test_validators(spark: SparkSession) -> None:
    """Each over a column of its own, so that nothing is folded before it runs."""
    frame = spark.createDataFrame([{f"c{n}": value for n, (_, value, _) in enumerate(VALIDATED)}], schema_of(VALIDATED))
    reasons = [expressions.reason(sql.col(f"c{number}"), rule) for number, (rule, _, _) in enumerate(VALIDATED)]
    found = frame.select(*reasons).first()
    assert found is not None
    assert list(found) == [wanted for _, _, wanted in VALIDATED]


def schema_of(columns: list[Any]) -> str:
    return ", ".join(f"c{number} STRING" for number in range(len(columns)))


def test_a_row_is_refused_where_the_service_would_refuse_it(spark: SparkSession) -> None:
    big = "x" * limits.MAX_ROW_BYTES
    rows: list[tuple[str, str, dict[str, str]]] = [
        ("a", "v", {}),
        ("", "v", {}),
        ("é" * 256, "v", {}),
        ("é" * 256 + "x", "v", {}),
        ("a\0", "v", {}),
        ("a", "v\0", {}),
        ("a", big[1:], {}),
        ("a", big, {}),
        ("a", big[1:], {"k": "v"}),
        ("a", "v", {"k": "x" * (limits.MAX_METADATA_BYTES - 1)}),
        ("a", "v", {"k": "x" * limits.MAX_METADATA_BYTES}),
        ("a", "v", {"k": "\0"}),
    ]
    frame = spark.createDataFrame(rows, "row_id STRING, value STRING, m MAP<STRING, STRING>")
    frame = frame.withColumn("metadata", expressions.entries_of_map(sql.col("m")))
    problems = expressions.row_problems(sql.col("row_id"), sql.col("value"), sql.col("metadata"))
    wrong = sql.array_size(sql.array_compact(sql.array(*(why for _, _, why in problems)))) > 0
    found = [row.wrong for row in frame.select(wrong.alias("wrong")).collect()]

    def service_refuses(row_id: str, value: str, metadata: dict[str, str]) -> bool:
        try:
            check_row(row_id, value, metadata)
        except InvalidInputError:
            return True
        return False

    assert found == [service_refuses(*row) for row in rows]
    assert any(found)
    assert not all(found)


ROWS = [
    {"id": "one", "v": "1", "at": "5"},
    {"id": "same", "v": "1", "at": "1"},
    {"id": "same", "v": "1", "at": "1"},
    {"id": "two", "v": "old", "at": "9"},
    {"id": "two", "v": "new", "at": "10"},
    {"id": "no rank", "v": "z", "at": None},
    {"id": "no rank", "v": "a", "at": "3"},
    {"id": "half bad", "v": "good", "at": "1"},
    {"id": "half bad", "v": None, "at": "2"},
    {"id": "bad", "v": None, "at": "2"},
    {"id": None, "v": "x", "at": "2"},
]


@pytest.mark.parametrize(
    ("dedup", "two", "no_rank", "usable"),
    [
        ({"keep": "greatest", "by": "at", "compare_as": "number"}, "new", "a", True),
        ({"keep": "least", "by": "at", "compare_as": "number"}, "old", "a", True),
        ({"keep": "greatest", "by": "at"}, "old", "a", True),
        ({}, None, None, False),
    ],
)
def test_dedup(
    spark: SparkSession, tmp_path: Path, dedup: dict[str, str], two: str | None, no_rank: str | None, usable: bool
) -> None:
    path = tmp_path / "rows.parquet"
    spark.createDataFrame(ROWS, "id STRING, v STRING, at STRING").write.parquet(str(path))
    spec = pipeline.parse_spec(
        {
            "source": {"paths": [str(path)], "format": "parquet"},
            "row": {"row_id": "id", "value": "v", "metadata": {"at": "at"}},
            "target": {"store": "s", "key": "k"},
            "dedup": dedup,
        }
    )
    checked = pipeline.read_checked(spark, spec)
    found = {row.row_id: row for row in pipeline.one_row_an_id(checked.rows, spec.dedup).collect()}
    assert set(found) == {"one", "same", "two", "no rank", "half bad", "bad"}
    assert {row_id for row_id, row in found.items() if row.conflict} == {"two", "no rank"}
    assert (found["same"].copies, found["same"].valid) == (2, True)
    assert (found["half bad"].copies, found["half bad"].value) == (1, "good")
    assert (found["bad"].copies, found["bad"].valid) == (0, False)
    assert found["two"].valid == found["no rank"].valid == usable
    if usable:
        assert (found["two"].value, found["no rank"].value) == (two, no_rank)
    reasons = Counter((row.row_id, row.field, row.reason) for row in checked.rejects().collect())
    assert reasons == {
        ("half bad", "value", "is missing"): 1,
        ("bad", "value", "is missing"): 1,
        (None, "row_id", "is missing"): 1,
    }


@pytest.mark.parametrize("strategy", list(Strategy))
def test_what_a_new_worker_moves(spark: SparkSession, strategy: Strategy) -> None:
    """The figures of the JVM, and those of a loop over the same ids in Python."""
    rows = 20_000
    before = pipeline.Layout(partitions=64, workers=(0, 1, 2, 3), strategy=strategy)
    after = pipeline.Layout(partitions=64, workers=(0, 1, 2, 3, 4), strategy=strategy)
    report = pipeline.simulate_move(pipeline.synthetic_ids(spark, rows), before, after)
    old, new = before.owners(), after.owners(before)
    flows = Counter((old[p], new[p]) for p in row_partitions([f"row-{number}" for number in range(rows)], 64))
    assert report == pipeline.move_report(flows, before.workers, after.workers)
    assert 0.05 < report.moved_share < 0.6


def test_what_another_partition_count_moves(spark: SparkSession) -> None:
    rows = 5_000
    before = pipeline.Layout(partitions=64, workers=(0, 1, 2))
    after = pipeline.Layout(partitions=100, workers=(0, 2), strategy=Strategy.RING)
    report = pipeline.simulate_move(pipeline.synthetic_ids(spark, rows), before, after)
    ids = [f"row-{number}" for number in range(rows)]
    pairs = zip(row_partitions(ids, 64), row_partitions(ids, 100), strict=True)
    old, new = before.owners(), after.owners()
    flows = Counter((old[then], new[now]) for then, now in pairs)
    assert report == pipeline.move_report(flows, before.workers, after.workers)
    with pytest.raises(InvalidInputError, match="rows is 0: 1 to"):
        pipeline.synthetic_ids(spark, 0)
