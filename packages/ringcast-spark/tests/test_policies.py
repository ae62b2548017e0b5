"""Jobs that write to a store with policies."""

from __future__ import annotations

import re
from typing import Any
from urllib.request import urlopen

import pytest
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py


def set_policy(store: Store, **policy: Any) -> None:
    store.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store.name, policy=pb.StorePolicy(**policy)))


def slowed(store: Store, metrics: str) -> int:
    """Requests of the store that had to wait for the rate."""
    with urlopen(metrics) as answer:
        text = answer.read().decode()
    found = re.findall(rf'config_service_writes_slowed_total{{[^}}]*store="{store.name}"[^}}]*}} (\S+)', text)
    return sum(int(float(number)) for number in found)


def test_a_job_beyond_the_rate_of_its_store_is_slowed_down_and_does_not_fail(store: Store, service: Any) -> None:
    set_policy(store, max_rows_per_second=4_000, burst_rows=1_000)
    rows = {f"row-{number}": "1" for number in range(6_000)}
    store.save(store.frame(rows).repartition(2))
    assert store.rows() == rows
    assert slowed(store, service.metrics_url) >= 1


def test_a_job_beyond_the_rows_of_its_store_names_the_policy(store: Store) -> None:
    set_policy(store, max_rows=100)
    with pytest.raises(Exception, match=r"store '.*' would have \d+ rows, and its policy max_rows allows 100"):
        store.save(store.frame({f"row-{number}": "1" for number in range(150)}))
    assert len(store.rows()) <= 100


def test_a_job_is_refused_by_a_store_that_takes_releases_only(store: Store) -> None:
    store.save(store.frame({"a": "1"}))
    set_policy(store, releases_only=True)
    with pytest.raises(Exception, match=r"store '.*' takes no direct writes, its policy releases_only is set"):
        store.save(store.frame({"a": "2", "b": "2"}))
    assert store.rows() == {"a": "1"}
