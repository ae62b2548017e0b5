"""Batch reads and writes whose config service is killed half-way: one clear error, and how it goes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark_ringcast.pipeline._session import clear_error
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess
from ringcast_wire import UnavailableError
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py
PASSWORD = "hunter2"
QUICKLY = {"timeout_s": "4", "user": "somebody", "password": PASSWORD}
"""Spark tries a task four times, and each waits as long for the service that is gone."""


def one_clear_error(caught: pytest.ExceptionInfo[PySparkException]) -> str:
    """The sentence in the pages that Spark makes of it."""
    said = clear_error(caught.value)
    assert isinstance(said, UnavailableError)
    assert len(str(said).splitlines()) == 1
    assert PASSWORD not in str(caught.value)
    return str(said)


@pytest.mark.usefixtures("small_batches")
def test_a_read_whose_service_is_killed(own_store: Store, own_service: ConfigServiceProcess) -> None:
    """The first rows have come: the read fails, and the same DataFrame reads all once the service is back."""
    # More than what waits between Spark's processes and in answers under way.
    rows = {f"row-{number}": f"value {number}".ljust(5_000, ".") for number in range(5_000)}
    own_store.write_rows(rows)
    frame, pid = own_store.load(tasks="1", **QUICKLY), own_service.process.pid

    def kill_service(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)
            yield batch

    killing = frame.mapInArrow(kill_service, frame.schema)
    with pytest.raises(PySparkException) as caught:
        killing.count()
    assert one_clear_error(caught).endswith("no config service answers: none is running on this NATS")
    own_service.restart()
    assert {row.row_id: row.value for row in frame.collect()} == rows


def test_an_overwrite_whose_service_is_killed(own_store: Store, own_service: ConfigServiceProcess) -> None:
    """What was there is there, and some of the new; written again, the key is the DataFrame, and no row came twice."""
    old = {f"old-{number}": "1" for number in range(10)}
    rows = {f"row-{number}": f"value {number}" for number in range(40_000)}
    own_store.write_rows(old)
    frame = own_store.frame(rows).repartition(2)
    killer = threading.Thread(target=kill_in_the_middle, args=(own_store, own_service, len(old)))
    killer.start()
    with pytest.raises(PySparkException) as caught:
        own_store.save(frame, mode="overwrite", **QUICKLY)
    killer.join(PATIENCE_S)
    assert one_clear_error(caught).startswith("the config service did not answer")
    own_service.restart()
    found, written = own_store.rows(), sum(own_store.heads()) - len(old)
    assert old.items() <= found.items(), "a row was deleted by an overwrite that failed"
    assert (found.keys() - old.keys()) < rows.keys(), "it was not in the middle"
    assert written == len(found) - len(old) > 0
    own_store.save(frame, mode="overwrite", maxDeleteShare="1")
    assert own_store.rows() == rows
    assert sum(own_store.heads()) == len(old) + len(rows) + len(old), "a row was written twice"


def kill_in_the_middle(store: Store, service: ConfigServiceProcess, before: int) -> None:
    """SIGKILL as soon as a new row is written."""
    request = pb.HeadsRequest(store=store.name, key=store.key)
    service.process.wait_until(lambda: sum(store.stub.Heads(request).heads) > before)
    service.kill()
