"""The vectors of this directory, which other implementations wrote. `crates/ringcast-core` reads the same files."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ringcast_core
from ringcast import Change
from ringcast_heartbeat_agent.dispatch.routing import routing_of

from tests.conformance import generate_vectors

HERE = Path(__file__).parent


def cases(name: str) -> list[dict[str, Any]]:
    document = json.loads((HERE / f"{name}.json").read_text(encoding="ascii"))
    assert document["provenance"]["source"]
    found: list[dict[str, Any]] = document["cases"]
    assert len(found) >= 4
    return found


def test_rows_fall_where_spark_puts_them() -> None:
    found = cases("row_partition")
    ids = [case["text"] if "text" in case else bytes.fromhex(case["hex"]) for case in found]
    data = [row_id.encode() if isinstance(row_id, str) else row_id for row_id in ids]
    assert {0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 512} <= {len(row_id) for row_id in data}
    for count in (1, 2, 3, 255, 256, 1000, 4096):
        expected = [case["partitions"][str(count)] for case in found]
        assert [ringcast_core.row_partition(row_id, count) for row_id in ids] == expected
        assert list(ringcast_core.row_partitions(ids, count)) == expected
        assert list(ringcast_core.row_partitions(data, count)) == expected
        for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
            column = ringcast_core.row_partitions_arrow(pa.array(data, kind), count)
            assert pa.array(column).to_pylist() == expected


def test_keys_jump_as_published() -> None:
    found = cases("jump_hash")
    keys = [case["key"] for case in found]
    for count in map(int, found[0]["buckets"]):
        expected = [case["buckets"][str(count)] for case in found]
        assert [ringcast_core.jump_hash(key, count) for key in keys] == expected
        assert list(ringcast_core.jump_hash_batch(keys, count)) == expected
        assert list(ringcast_core.jump_hash_batch(array("Q", keys), count)) == expected


@pytest.mark.parametrize("case", cases("assign_jump"), ids=lambda case: f"{case['partitions']}-{len(case['slots'])}")
def test_partitions_are_assigned_as_transcribed(case: dict[str, Any]) -> None:
    table = ringcast_core.assign_jump(case["partitions"], case["slots"], case["load_factor"])
    assert table == case["table"]


@pytest.mark.parametrize(
    "case", cases("assign_sticky"), ids=lambda case: f"{len(case['owners'])}-{len(case['workers'])}"
)
def test_owners_are_assigned_as_transcribed(case: dict[str, Any]) -> None:
    table = ringcast_core.assign_sticky(
        case["owners"],
        case["workers"],
        capacities=case["capacities"],
        loads=case["loads"],
        pins={int(partition): worker for partition, worker in case["pins"].items()},
        drains=case["drains"],
    )
    assert table == case["table"]


@pytest.mark.parametrize("case", cases("ring"), ids=lambda case: str(len(case["members"])))
def test_ring_keys_belong_to_the_nearest_point(case: dict[str, Any]) -> None:
    members, owners = case["members"], case["owners"]
    ring = ringcast_core.Ring(members)
    assert {key: ring.owner(key) for key in owners} == owners
    assert ring.owners(owners) == list(owners.values())
    table = ringcast_core.assign_ring(64, members)
    assert [members[member] for member in table] == [owners[str(partition)] for partition in range(64)]


@pytest.mark.parametrize("case", cases("routing_key"), ids=lambda case: str(case["setting"]))
def test_rows_of_one_routing_key_have_one_owner(case: dict[str, Any]) -> None:
    routing, ring = routing_of(case["setting"]), ringcast_core.Ring(case["members"])
    rows = case["rows"]
    noted = [routing.note(Change("s", "list", 0, row_id, "v", 1, metadata=fields)) for row_id, fields, _, _ in rows]
    assert noted == [key for _, _, key, _ in rows]
    assert routing.keys([row_id for row_id, _, _, _ in rows]) == noted
    assert ring.owners(noted) == [owner for _, _, _, owner in rows]


def test_the_committed_files_are_what_the_generator_writes() -> None:
    """All but Spark's, whose inputs are compared here and whose answers the live test asks for again."""
    assert list(generate_vectors.jump_cases()) == cases("jump_hash")
    assert list(generate_vectors.assign_cases()) == cases("assign_jump")
    assert list(generate_vectors.sticky_cases()) == cases("assign_sticky")
    assert list(generate_vectors.ring_cases()) == cases("ring")
    assert json.loads(json.dumps(list(generate_vectors.routing_cases()))) == cases("routing_key")
    assert [case["text"] for case in cases("row_partition") if "text" in case] == generate_vectors.row_ids()
    assert [case["hex"] for case in cases("row_partition") if "hex" in case] == [
        row_id.hex() for row_id in generate_vectors.binary_ids()
    ]
