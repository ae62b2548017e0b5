"""The load of partitions: how a worker measures it, what it reports, and when it reports again."""

from __future__ import annotations

import pytest
from ringcast._coordination.sticky.loads import differ
from ringcast._protocol.sticky.loads import (
    MAX_LISTED,
    MAX_LOADS_BYTES,
    KeyLoad,
    LoadMeter,
    decode_loads,
    encode_loads,
    reported,
)
from ringcast_wire import ProtocolError, limits


def test_a_load_is_a_mean_that_forgets() -> None:
    meter = LoadMeter(half_life_s=30.0)
    meter.look({1: 1000, 2: 50}, 0.0)
    assert meter.rates() == {}, "what was there before is no load"
    meter.look({1: 1100, 2: 50}, 10.0)
    assert meter.rates() == {1: pytest.approx(10.0), 2: 0.0}
    for at in range(20, 320, 10):
        meter.look({1: 1100, 2: 50 + 40 * at}, float(at))
    rates = meter.rates()
    assert rates[1] < 0.05
    assert rates[2] == pytest.approx(40.0, rel=0.05)


def test_few_changes_are_measured_for_longer_and_many_are_known_soon() -> None:
    meter = LoadMeter(half_life_s=30.0)
    revision = 0
    for at in range(0, 6_000, 10):
        revision += 30 if at % 30 == 0 else 0  # one a second, of which three looks see all
        meter.look({1: revision, 2: 0}, float(at))
    assert meter.rates()[1] == pytest.approx(1.0, rel=0.05)
    for at in range(6_000, 6_600, 10):
        meter.look({1: revision, 2: 0}, float(at))
    assert 0.4 < meter.rates()[1] < 0.55, "half of it is forgotten in 20 times 30 s"
    for at in range(6_600, 6_720, 10):
        meter.look({1: revision, 2: 100 * (at - 6_590)}, float(at))
    assert meter.rates()[2] > 40.0, "one that begins is not measured for as long"


def test_a_partition_that_comes_or_has_another_history_begins_anew() -> None:
    meter = LoadMeter(half_life_s=30.0)
    meter.look({1: 0}, 0.0)
    meter.look({1: 100, 2: 7000}, 10.0)
    assert meter.rates() == {1: pytest.approx(10.0)}
    meter.look({2: 7010}, 20.0)
    assert meter.rates() == {2: pytest.approx(1.0)}, "the rows that it came with are none, and the other is gone"
    meter.look({2: 3}, 30.0)
    assert meter.rates() == {}
    meter.look({2: 3}, 30.0)
    assert meter.rates() == {}, "no time has passed"


def test_the_busiest_partitions_of_all_keys_are_listed_and_the_rest_is_in_the_total() -> None:
    many = {number: float(number) for number in range(limits.MAX_PARTITIONS)}
    loads = reported({"a": many, "b": {0: 1e9, 1: 0.0}, "c": {}})
    assert set(loads) == {"a", "b"}
    assert loads["b"].top == ((0, 1_000_000_000),), "a load has a bound"
    listed = loads["a"].rates()
    assert len(listed) == MAX_LISTED - 1
    assert min(listed) == limits.MAX_PARTITIONS - MAX_LISTED + 1
    assert loads["a"].measured == limits.MAX_PARTITIONS
    unlisted = range(limits.MAX_PARTITIONS - MAX_LISTED + 1)
    assert loads["a"].other_rate == pytest.approx(sum(unlisted) / len(unlisted))
    assert KeyLoad(measured=1, total=5, top=((3, 5),)).other_rate is None


def test_a_report_of_as_many_keys_as_a_store_has_is_within_its_limit() -> None:
    keys = [f"{number:03}{'k' * 61}" for number in range(limits.MAX_KEYS_PER_STORE)]
    loads = reported(
        {key: dict.fromkeys(range(limits.MAX_PARTITIONS - 50, limits.MAX_PARTITIONS), 1e9) for key in keys}
    )
    data = encode_loads(loads)
    assert len(data) <= MAX_LOADS_BYTES
    assert decode_loads(data) == loads


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"keys": {"k": {"measured": -1}}}',
        b'{"keys": {"k": {"top": [[4096, 1]]}}}',
        b'{"keys": {"k": {"top": [[0, 1000000001]]}}}',
        b'{"keys": {"k.x": {}}}',
        b'{"keys": {}}' + b" " * MAX_LOADS_BYTES,
    ],
)
def test_a_bad_report_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="loads"):
        decode_loads(data)


def test_loads_are_reported_again_when_they_are_noticeably_others() -> None:
    def of(**rates: float) -> dict[str, KeyLoad]:
        return reported({"k": {int(name[1:]): rate for name, rate in rates.items()}})

    before = of(p1=100.0, p2=20.0)
    assert not differ(before, of(p1=103.0, p2=19.0))
    assert differ(before, of(p1=110.0, p2=20.0))
    assert differ(before, of(p1=20.0, p2=100.0)), "the same total, of other partitions"
    assert differ(before, of(p1=100.0)), "a partition has gone"
    assert differ(before, of(p1=100.0, p3=20.0))
    assert differ({}, before)
    assert differ(before, {})
    assert not differ(of(p1=0.0), of(p1=0.04)), "next to nothing"
