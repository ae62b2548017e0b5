"""A pipeline whose config service dies under it: what a person is told, and how it goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_ringcast import pipeline
from pyspark_ringcast.pipeline._session import clear_error
from ringcast_testkit import ConfigServiceProcess, until
from ringcast_wire import UnavailableError
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py

# The service takes a thousand of them at once, and a plan of so many is written by two tasks.
ROWS = {f"row-{number}": f"value {number}" for number in range(12_000)}
WAIT_S = 90.0


def test_the_service_is_killed_in_the_middle_of_an_apply(
    spark: SparkSession,
    own_store: Store,
    own_service: ConfigServiceProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence, what was written is as planned, and the same plan does the rest of it: no row twice."""
    monkeypatch.setenv("RINGCAST_PASSWORD", "hunter2")
    (tmp_path / "rows.csv").write_text("\n".join(["id,text", *map(",".join, ROWS.items())]))
    place = {**own_store.options, "timeout_s": 1.0, "user": "spark"}
    document = {
        "source": {"paths": [str(tmp_path / "rows.csv")], "format": "csv"},
        "row": {"row_id": "id", "value": "text"},
        "target": place,
    }
    planned = pipeline.make_plan(spark, pipeline.parse_spec(document))
    assert planned.plan.adds == len(ROWS)

    killer = threading.Thread(target=kill_in_the_middle, args=(own_store, own_service))
    killer.start()
    with pytest.raises(Exception, match="the config service did not answer") as caught:
        pipeline.apply_plan(spark, planned)
    killer.join(WAIT_S)
    said = clear_error(caught.value)
    assert isinstance(said, UnavailableError)
    assert str(said).startswith("the config service did not answer")
    assert len(str(said).splitlines()) == 1
    assert "hunter2" not in str(caught.value)

    # The other task of the job goes on trying for a while: what it then writes would be neither before nor after.
    asyncio.run(until(lambda: not running_tasks(spark)))
    own_service.start()
    written = sum(own_store.heads())
    assert 0 < written < len(ROWS), "it was not in the middle"
    assert own_store.rows().items() <= ROWS.items()
    report = pipeline.apply_plan(spark, planned)
    assert (report.written, report.verified) == (len(ROWS) - written, len(ROWS))
    assert own_store.rows() == ROWS
    assert sum(own_store.heads()) == len(ROWS), "a row was written twice"
    planned.release()


def running_tasks(spark: SparkSession) -> int:
    """How many tasks run, also those of a job that has failed."""
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sum(executor.numRunningTasks() for executor in executors)


def kill_in_the_middle(store: Store, service: ConfigServiceProcess) -> None:
    """SIGKILL as soon as anything is written."""
    request = pb.GetStoreRequest(name=store.name)
    service.process.wait_until(lambda: bool(store.stub.GetStore(request).keys), WAIT_S)
    service.kill()
