"""The bytes of the rows of a partition are kept as they change, and are always those of its rows."""

from __future__ import annotations

from random import Random

import pytest
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.partition import Partition
from ringcast._protocol.snapshots import CachedPartition
from ringcast_wire import Row, check_row

TEXTS = ["", "a", "x" * 50, "grün", "\N{GRINNING FACE}" * 3]


def row(random: Random, version: int) -> Row:
    deleted = random.random() < 0.3
    metadata = {random.choice(TEXTS[1:]): random.choice(TEXTS) for _ in range(random.randrange(3))}
    return Row(
        random.choice(TEXTS[1:]) + str(random.randrange(8)),
        "" if deleted else random.choice(TEXTS),
        version,
        deleted,
        None if deleted else metadata or None,
    )


def bytes_of(partition: Partition) -> int:
    """As the config service counts them."""
    return sum(check_row(each.row_id, each.value, each.metadata) for each in partition.rows.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_are_those_of_the_rows(seed: int) -> None:
    random = Random(seed)
    partition, most = Partition(0, random.random), 0
    for version in range(1, 120):
        some = [row(random, version + number) for number in range(random.randrange(6))]
        live = list({each.row_id: each for each in some if not each.deleted}.values())
        match random.randrange(12):
            case 0:
                partition.accept_whole(live, version)
            case 1:
                partition, _ = partition.successor(live, version, random.random, "h2")
            case 2:
                partition = partition.silenced(random.random, 0.0)
            case _:
                for each in some:
                    partition.accept(each)
        assert partition.row_bytes == bytes_of(partition)
        most = max(most, partition.row_bytes)
    assert most > 0
    partition.give_up()
    assert (partition.rows, partition.row_bytes) == ({}, 0)


def test_rows_from_the_disk_count() -> None:
    machine = KeyMachine("s", "k", full=False, partition_count=4, random=lambda: 0.5)
    rows = {"grün": Row("grün", "1234", 3, False, {"m": "n"})}
    machine.restore([CachedPartition(2, 3, rows, {}, 0.0)], hand_over=False)
    assert machine.partitions[2].row_bytes == 11
