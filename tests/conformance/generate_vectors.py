"""Writes the conformance vectors that the Rust and the Python tests read.

Nothing here imports our own code. Row partitions are Spark's and must equal those of the PyPI package `xxhash`;
JumpHash buckets are those of the PyPI package `jump-consistent-hash` and must equal the published loop; assignment
and ring tables come from plain transcriptions of the algorithms, written for clearness and not for speed. They are a
promise between releases: a worker of the next version must share partitions with one of this version.

Run: python tests/conformance/generate_vectors.py
"""

from __future__ import annotations

import itertools
import json
import math
import platform
import random
from collections.abc import Iterable, Iterator
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTITION_COUNTS = (1, 2, 3, 255, 256, 1000, 4096)
MASK = (1 << 64) - 1


def row_ids() -> list[str]:
    """Ids of every length around the hash's block sizes, in ASCII and not, up to the longest one allowed."""
    draw = random.Random(20261120)
    ascii_ids = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789-._@", k=length)) for length in range(72)]
    others = [
        "é",
        "ß" * 16,
        "日本語",
        "Ελληνικά",
        "пример.рф",
        "👩‍👩‍👧‍👦",
        "\U0001f600" * 8,
        "a\u0301",
        "\u00e1",
        "\x00",
        "\x00" * 33,
        "\n",
        '"quoted"',
        "\uffff",
        "\U0010ffff",
        "mailinator.com",
        "550e8400-e29b-41d4-a716-446655440000",
    ]
    long_ids = ["x" * 127, "y" * 128, "z" * 255, "ü" * 128, "row" * 170 + "id", "日" * 170 + "id"]
    return ascii_ids + others + long_ids


def binary_ids() -> list[bytes]:
    """Ids that are no UTF-8."""
    draw = random.Random(42)
    return [b"\xff", b"\x80\x00\xfe"] + [draw.randbytes(length) for length in (5, 8, 12, 31, 32, 33, 64, 100, 512)]


def signed(hash64: int) -> int:
    """A 64-bit hash as the JVM sees it."""
    return hash64 - (1 << 64) if hash64 >> 63 else hash64


def spark_partitions(spark: Any, ids: list[Any], counts: Iterable[int]) -> list[tuple[int, dict[int, int]]]:
    """Spark's own xxhash64 and pmod of each id, in order."""
    kind = "string" if isinstance(ids[0], str) else "binary"
    frame = spark.createDataFrame(list(enumerate(ids)), f"at int, id {kind}")
    columns = [f"pmod(xxhash64(id), {count}) as p{count}" for count in counts]
    rows = frame.selectExpr("at", "xxhash64(id) as hash", *columns).orderBy("at").collect()
    return [(row["hash"], {count: row[f"p{count}"] for count in counts}) for row in rows]


def row_partition_cases(spark: Any) -> Iterator[dict[str, Any]]:
    """One case an id: Spark's answer, after `xxhash` has given the same."""
    import xxhash

    groups: list[tuple[str, list[Any]]] = [("text", list(row_ids())), ("hex", list(binary_ids()))]
    for form, ids in groups:
        for row_id, (hash64, partitions) in zip(ids, spark_partitions(spark, ids, PARTITION_COUNTS), strict=True):
            data = row_id.encode() if isinstance(row_id, str) else row_id
            independent = signed(xxhash.xxh64_intdigest(data, seed=42))
            if independent != hash64 or any(independent % n != partition for n, partition in partitions.items()):
                raise AssertionError(f"Spark and xxhash disagree on {row_id!r}")
            shown = row_id if form == "text" else row_id.hex()
            yield {form: shown, "hash": hash64, "partitions": {str(n): p for n, p in partitions.items()}}


def published_jump(key: int, buckets: int) -> int:
    """The loop that Lamping and Veach print, in 64-bit arithmetic."""
    bucket, jump = -1, 0
    while jump < buckets:
        bucket = jump
        key = (key * 2862933555777941757 + 1) & MASK
        jump = int(float(bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket


def jump_cases() -> Iterator[dict[str, Any]]:
    """Keys at the edges of 64 bits and drawn ones, over few and very many buckets."""
    import jump

    draw = random.Random(7)
    keys = [0, 1, 2, 10, 0xDEADBEEF, 1 << 32, 1 << 63, MASK, *(draw.getrandbits(64) for _ in range(56))]
    for key in keys:
        buckets = {}
        for count in (1, 2, 3, 10, 50, 128, 1000, 1024, 4096, 1_000_000, 2**31 - 1):
            buckets[str(count)] = published_jump(key, count)
            if jump.hash(key, count) != buckets[str(count)]:
                raise AssertionError(f"jump-consistent-hash and the published loop disagree on {key} in {count}")
        yield {"key": key, "buckets": buckets}


def mix(partition: int, attempt: int) -> int:
    """SplitMix64's finalizer over a partition and an attempt."""
    z = (((attempt << 32) + partition + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def assign(partitions: int, slots: list[int], load_factor: float, attempts: int = 64) -> list[int]:
    """Bounded-load JumpHash over slots, in rounds: everyone without a slot asks for the next of its preferences; a
    slot with more askers than its cap keeps those with the lowest attempt, then the lowest partition."""
    space, count = max(slots) + 1, len(slots)
    divisor = max(count, min(space, int(count * (1.0 + load_factor) / 2.0)))
    cap = math.ceil(load_factor * partitions / divisor)
    held: dict[int, list[tuple[int, int]]] = {slot: [] for slot in slots}
    asking = [(0, partition) for partition in range(partitions)]
    homeless: list[int] = []
    while asking:
        refused: list[tuple[int, int]] = []
        for attempt, partition in asking:
            slot = published_jump(mix(partition, attempt), space)
            held.get(slot, refused).append((attempt, partition))
        for claims in held.values():
            claims.sort()
            refused += claims[cap:]
            del claims[cap:]
        asking = [(attempt + 1, partition) for attempt, partition in refused if attempt + 1 < attempts]
        homeless += [partition for attempt, partition in refused if attempt + 1 == attempts]
    table = [-1] * partitions
    for slot, claims in held.items():
        for _, partition in claims:
            table[partition] = slot
    for partition in sorted(homeless):
        roomy = [slot for slot in slots if table.count(slot) < cap]
        table[partition] = max(roomy, key=lambda slot: mix(partition, attempts + slot))
    return table


def assign_cases() -> Iterator[dict[str, Any]]:
    """Whole fleets, fleets with gaps, single workers, tight and loose bounds."""
    fleets: list[tuple[int, list[int], float]] = [
        (1, [0], 1.25),
        (16, [5], 1.25),
        (64, [0, 1, 2], 1.0),
        (64, [0, 2], 1.0),
        (256, [0, 1, 2, 3], 1.25),
        (256, [0, 1, 3], 1.25),
        (256, [0, 1, 2, 3, 4], 1.25),
        (256, [7, 900, 1023], 1.25),
        (256, list(range(0, 60, 3)), 1.1),
        (1000, list(range(50)), 1.25),
        (1024, [slot for slot in range(50) if slot != 17], 1.25),
        (512, list(range(12)), 1024.0),
        (3, list(range(8)), 1.25),
        (4096, list(range(200)), 1.25),
    ]
    for partitions, slots, load_factor in fleets:
        table = assign(partitions, slots, load_factor)
        yield {"partitions": partitions, "slots": slots, "load_factor": load_factor, "table": table}


def sticky_counts(case: dict[str, Any], names: list[str], pinned: dict[int, str], table: list[str | None]) -> None:
    """Equal loads: places in the order of how full they make their worker; the last ones where a partition is."""
    capacity = dict(zip(case["workers"], case["capacities"], strict=True))
    count = {name: list(pinned.values()).count(name) for name in names}
    pins, fills = dict(count), []
    for _ in range(len(table) - len(pinned)):
        name = min(names, key=lambda name: (Fraction(count[name] + 1, capacity[name]), name))
        count[name] += 1
        fills.append(Fraction(count[name], capacity[name]))
    last = max(fills, default=Fraction(0))
    place_is_last = [name for name in names if count[name] > pins[name] and count[name] == last * capacity[name]]
    for name in place_is_last:
        count[name] -= 1
    rivals = [name for name in names if count[name] + 1 == last * capacity[name]]
    here = {name: sum(table[p] == name for p in range(len(table)) if p not in pinned) for name in names}
    rivals.sort(key=lambda name: (here[name] <= count[name] - pins[name], name))
    for name in rivals[: len(place_is_last)]:
        count[name] += 1
    room = {name: count[name] - pins[name] for name in names}
    for partition in range(len(table)):
        owner = table[partition]
        if partition not in pinned:
            if owner is not None and room[owner]:
                room[owner] -= 1
            else:
                table[partition] = None
    turn = itertools.cycle(names)
    for partition in range(len(table)):
        if table[partition] is None:
            name = next(name for name in turn if room[name])
            room[name] -= 1
            table[partition] = name


def sticky_loads(case: dict[str, Any], names: list[str], pinned: dict[int, str], table: list[str | None]) -> None:
    """Different loads: the largest first to where they fill least, then the best moves from the fullest worker."""
    capacity = dict(zip(case["workers"], case["capacities"], strict=True))
    loads = case["loads"]

    def fill(name: str, more: int = 0) -> Fraction:
        mine = (loads[partition] for partition, owner in enumerate(table) if owner == name)
        return Fraction(sum(mine) + more, capacity[name])

    def least(load: int) -> str:
        return min(names, key=lambda name: (fill(name, load), name))

    def move() -> tuple[int, str] | None:
        for giver in sorted(names, key=lambda name: (-fill(name), name)):
            free = [p for p, owner in enumerate(table) if owner == giver and p not in pinned]
            smallest = min((loads[p] for p in free), default=None)
            if smallest is not None and fill(taker := least(smallest), smallest) < fill(giver):
                return min(free, key=lambda p: (max(fill(giver, -loads[p]), fill(taker, loads[p])), p)), taker
        return None

    for partition in sorted(range(len(table)), key=lambda p: (-loads[p], p)):
        if table[partition] is None:
            table[partition] = least(loads[partition])
    while (found := move()) is not None:
        table[found[0]] = found[1]


def sticky(case: dict[str, Any]) -> list[str]:
    """Exclusive ownership, as the page of the crate's module has it."""
    names = sorted(set(case["workers"]) - set(case["drains"]))
    pinned = {int(p): name for p, name in case["pins"].items() if name in names}
    table: list[str | None] = [pinned.get(p, o if o in names else None) for p, o in enumerate(case["owners"])]
    is_counted = case["loads"] is None or len(set(case["loads"])) == 1
    (sticky_counts if is_counted else sticky_loads)(case, names, pinned, table)
    return [name for name in table if name is not None]


def sticky_cases() -> Iterator[dict[str, Any]]:
    """Cold starts, joiners, deaths, capacities, loads, pins and drains, alone and drawn together."""
    draw = random.Random(20261125)
    for number in range(48):
        partitions = draw.choice((1, 2, 5, 16, 61, 128))
        known = [f"worker-{n}" for n in draw.sample(range(12), draw.randint(1, 9))]
        workers = draw.sample(known, draw.randint(1, len(known)))
        owners = [draw.choice([None, *known]) for _ in range(partitions)]
        case: dict[str, Any] = {
            "owners": [None] * partitions if number % 8 == 0 else owners,
            "workers": workers,
            "capacities": [draw.randint(1, 4) if number % 3 == 1 else 1 for _ in workers],
            "loads": [draw.randint(1, 9) for _ in range(partitions)] if number % 4 == 2 else None,
            "pins": {str(p): draw.choice(known) for p in range(partitions) if number % 5 == 3 and draw.random() < 0.3},
            "drains": draw.sample(workers, draw.randint(0, len(workers) - 1)) if number % 7 == 4 else [],
        }
        case["table"] = sticky(case)
        yield case


def ring_hash(data: bytes) -> int:
    """FNV-1a over 32 bits, then murmur3's 32-bit finalizer."""
    hash32 = 0x811C9DC5
    for byte in data:
        hash32 = ((hash32 ^ byte) * 0x01000193) & 0xFFFFFFFF
    hash32 = ((hash32 ^ (hash32 >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    hash32 = ((hash32 ^ (hash32 >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return hash32 ^ (hash32 >> 16)


def ring_owner(members: list[str], key: str) -> str:
    """The member with the nearest of its 100 points clockwise; a tie goes to the name that sorts first."""
    at = ring_hash(key.encode())
    points = ((ring_hash(f"{name}-{vnode}".encode()), name) for name in members for vnode in range(100))
    return min(((point - at) & 0xFFFFFFFF, name) for point, name in points)[1]


def ring_cases() -> Iterator[dict[str, Any]]:
    """Small and larger rings, every one of them asked for text keys and partitions."""
    for members in (["a"], ["b", "a"], ["worker-0", "worker-1", "worker-2"], [f"węzeł-{n}" for n in range(10)]):
        keys = ["", "a", "row-1", "row-2", "日本語", *map(str, range(64))]
        yield {"members": members, "owners": {key: ring_owner(members, key) for key in keys}}


def routing_key(setting: str, row_id: str, metadata: dict[str, str]) -> str:
    """What a group routes a row by: what its setting finds, or the row id where that is nothing."""
    kind, _, name = setting.partition(":")
    found = {"row": "", "prefix": row_id.split(name or " ")[0], "metadata": metadata.get(name, "")}[kind]
    return found or row_id


def routing_cases() -> Iterator[dict[str, Any]]:
    """Rows whose prefixes and fields are there, missing, empty and not ASCII, under every setting."""
    members = [f"worker-{n}" for n in range(5)]
    rows: list[tuple[str, dict[str, str]]] = [
        ("", {}),
        ("/", {}),
        ("/a", {"tenant": ""}),
        ("日本語", {"tenant": "東京"}),
    ]
    rows += [(f"tenant-{n % 7}/row-{n}/x", {"tenant": f"t{n % 3}", "other": "o"}) for n in range(24)]
    rows += [("日本語", {"tenant": "東京"})]
    rows += [(f"tenant-{n}", {"tenant": "węzeł"}) for n in range(4)] + [(f"a::b::{n}", {}) for n in range(4)]
    for setting in ("row", "prefix:/", "prefix:::", "prefix:本", "metadata:tenant", "metadata:no such", "metadata::"):
        keys = [routing_key(setting, row_id, metadata) for row_id, metadata in rows]
        owned = [[*row, key, ring_owner(members, key)] for row, key in zip(rows, keys, strict=True)]
        yield {"setting": setting, "members": members, "rows": owned}


def write(name: str, source: str, packages: Iterable[str], cases: Iterable[dict[str, Any]]) -> None:
    """One vector file: where its numbers come from, then one case a line."""
    provenance = {
        "source": source,
        "generator": "tests/conformance/generate_vectors.py",
        "versions": {package: version(package) for package in packages} | {"python": platform.python_version()},
    }
    lines = ",\n".join("    " + json.dumps(case, ensure_ascii=True) for case in cases)
    text = f'{{\n  "provenance": {json.dumps(provenance)},\n  "cases": [\n{lines}\n  ]\n}}\n'
    (HERE / f"{name}.json").write_text(text, encoding="ascii")


def main() -> None:
    """Writes all vector files."""
    from pyspark.sql import SparkSession

    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    builder = SparkSession.builder.master("local[1]").config("spark.driver.extraJavaOptions", options)
    spark = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        source = "Spark SQL xxhash64(id) and pmod(xxhash64(id), n), checked against xxhash.xxh64_intdigest(seed=42)"
        write("row_partition", source, ["pyspark", "xxhash"], row_partition_cases(spark))
    finally:
        spark.stop()
    source = "the loop of Lamping and Veach 2014, checked against jump.hash of jump-consistent-hash"
    write("jump_hash", source, ["jump-consistent-hash"], jump_cases())
    write("assign_jump", "transcription in the generator: deferred acceptance in rounds", [], assign_cases())
    write("assign_sticky", "transcription in the generator: places and moves by fractions", [], sticky_cases())
    write("ring", "transcription in the generator: nearest of all points", [], ring_cases())
    write("routing_key", "transcription in the generator: nearest of all points", [], routing_cases())


if __name__ == "__main__":
    main()
