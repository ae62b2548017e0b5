"""The Spark demo: half a million real IP ranges from a file to a list, 1 % changed, checked, and streamed out again.

`make demo-spark` runs it; build/spark.json has the figures. Exit status 1 unless every row is read back as planned.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from pyspark.sql import DataFrame, SparkSession
from pyspark_ringcast import pipeline
from ringcast_wire.grpc import ConfigServiceStub, pb

from demo.__main__ import Ringcast, running_system
from demo.screen import Screen, figures_table
from demo.spark_lists import STORE, changed, networks_spec, other_specs, real_networks, write_networks

PARTITIONS = 256
CHANGED_SHARE = 0.01
STREAM_TIMEOUT_S = 60.0
Seen = queue.SimpleQueue[tuple[set[str], int]]
"""Row ids of a batch, and when it came (monotonic, ns)."""


class Size(NamedTuple):
    """How much the demo does. ``ranges``: at most so many, or all."""

    ranges: int | None
    changes: int


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Two cores, and each failed task is tried four times, as on a cluster."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("ringcast-demo")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


class SparkStory:
    """The demo, part by part, and the figures that it collects."""

    def __init__(self, spark: SparkSession, ringcast: Ringcast, directory: Path, screen: Screen) -> None:
        self._spark = spark
        self._ringcast = ringcast
        self._directory = directory
        self._screen = screen
        self._rejected = 0
        self.figures: dict[str, Any] = {}

    def load(self, specs: list[pipeline.Spec]) -> None:
        """Raw files to lists: read, check, compare with a store that is empty, write, read back."""
        self._screen.step(f"Load {len(specs)} lists by the pipeline into store {STORE} of {PARTITIONS} partitions")
        self._ringcast("store", "create", STORE, "--partitions", str(PARTITIONS))
        rows, seconds = 0, 0.0
        for spec in specs:
            started = time.monotonic()
            plan, report = self._run(spec)
            rows, seconds = rows + report.written, seconds + report.seconds
            self._rejected += plan.input.rejected
            self._screen.say(
                f"{spec.target.key}: {plan.input.read:,} read, {plan.input.rejected:,} rejected, "
                f"{report.written:,} written at {report.rows_per_s:,.0f} rows/s, all read back; "
                f"{time.monotonic() - started:.1f} s in all"
            )
        self.figures |= {"rows": rows, "partitions": PARTITIONS, "write_rows_per_s": round(rows / seconds)}

    def read(self, target: pipeline.Target) -> None:
        """Times a read of the largest list that keeps nothing."""
        self._screen.step("Read the networks with spark.read.format('ringcast')")
        started = time.monotonic()
        frame = self._frame(target)
        frame.write.format("noop").mode("overwrite").save()
        seconds = time.monotonic() - started
        self.figures["read_rows_per_s"] = round(frame.count() / seconds)
        self._screen.say(f"{self.figures['read_rows_per_s']:,} rows/s, {seconds:.1f} s")

    def change(self, spec: pipeline.Spec, wanted: int) -> None:
        """The difference, saved, loaded again and applied, twice."""
        self._screen.step(f"Change {CHANGED_SHARE:.0%} of the file, plan, review, apply, read back")
        path = str(self._directory / "plan")
        planned = pipeline.make_plan(self._spark, spec)
        self._rejected += planned.plan.input.rejected
        pipeline.save_plan(planned, path)
        planned.release()
        for line in pipeline.describe_plan(planned.plan).splitlines():
            self._screen.say(line)
        saved = pipeline.load_plan(self._spark, path)
        report = pipeline.apply_plan(self._spark, saved)
        again = pipeline.apply_plan(self._spark, saved)
        if (report.written, again.written) != (wanted, 0):
            raise SystemExit(
                f"demo: {wanted} rows were changed, {report.written} written, and then {again.written} again"
            )
        self.figures |= {
            "diff_rows": saved.plan.diff_rows,
            "verified": report.verified,
            "rejected": self._rejected,
            "written_again": again.written,
        }
        self._screen.say(
            f"{report.written:,} written, {report.verified:,} read back as planned; applied again: nothing"
        )
        self._stream_out(saved.plan)

    def _stream_out(self, plan: pipeline.Plan) -> None:
        """What changed since the plan was made, as a stream that ends."""
        self._screen.step("Stream the changes out to Parquet")
        path, since = str(self._directory / "changes"), json.dumps(dict(enumerate(plan.heads)))
        query = (
            self._spark.readStream.format("ringcast")
            .options(**plan.target.options(), startingOffsets=since)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start(path)
        )
        query.awaitTermination()
        self.figures["streamed_rows"] = self._spark.read.parquet(path).count()
        self._screen.say(f"{self.figures['streamed_rows']:,} changes")
        if self.figures["streamed_rows"] != plan.diff_rows:
            raise SystemExit(f"demo: {plan.diff_rows} rows changed and {self.figures['streamed_rows']} were streamed")

    def follow(self, target: pipeline.Target, changes: int) -> None:
        """Single changes, one at a time, each timed from the call that writes it to the batch that has it."""
        self._screen.step(f"Change {changes} single rows, and wait for each in a running stream")
        seen: Seen = queue.SimpleQueue()

        def take(batch: DataFrame, _: int) -> None:
            rows = batch.select("row_id").collect()
            seen.put(({row.row_id for row in rows}, time.monotonic_ns()))

        stream = self._spark.readStream.format("ringcast").options(**target.options(), startingOffsets="latest").load()
        checkpoint = str(self._directory / "follow")
        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
        try:
            with grpc.insecure_channel(self._ringcast.service) as channel:
                put = ConfigServiceStub(channel).Put
                self._wait_until_it_runs(put, target, seen)
                lags = [self._lag_ms(put, target, f"followed-{number}", seen) for number in range(changes)]
        finally:
            query.stop()
        self.figures["stream_lag_p50_ms"] = round(statistics.median(lags), 1)
        self.figures["stream_lag_max_ms"] = round(max(lags), 1)
        self._screen.say(f"p50 {self.figures['stream_lag_p50_ms']} ms, max {self.figures['stream_lag_max_ms']} ms")

    def _wait_until_it_runs(self, put: Any, target: pipeline.Target, seen: Seen) -> None:
        """Nothing tells when a stream has found out where it begins, but a change that it has."""
        for number in range(int(STREAM_TIMEOUT_S)):
            put(pb.PutRequest(store=target.store, key=target.key, row_id="first", value=str(number)))
            try:
                seen.get(timeout=1.0)
                return
            except queue.Empty:
                continue
        raise SystemExit(f"demo: the stream did not begin within {STREAM_TIMEOUT_S:g} s")

    def _lag_ms(self, put: Any, target: pipeline.Target, row_id: str, seen: Seen) -> float:
        started = time.monotonic_ns()
        put(pb.PutRequest(store=target.store, key=target.key, row_id=row_id, value="x"))
        while True:
            try:
                rows, at = seen.get(timeout=STREAM_TIMEOUT_S)
            except queue.Empty:
                raise SystemExit(f"demo: {row_id} was not in the stream after {STREAM_TIMEOUT_S:g} s") from None
            if row_id in rows:
                return (at - started) / 1e6

    def _run(self, spec: pipeline.Spec) -> tuple[pipeline.Plan, pipeline.ApplyReport]:
        planned = pipeline.make_plan(self._spark, spec)
        try:
            return planned.plan, pipeline.apply_plan(self._spark, planned)
        finally:
            planned.release()

    def _frame(self, target: pipeline.Target) -> DataFrame:
        return self._spark.read.format("ringcast").options(**target.options()).load()


def tell(directory: Path, ringcast: Ringcast, screen: Screen, size: Size) -> dict[str, Any]:
    """Runs the whole demo and returns its figures."""
    networks = real_networks(size.ranges)
    path = directory / "networks.csv"
    write_networks(path, networks)
    spec = networks_spec(path, ringcast.servers, ringcast.service)
    with spark_session() as spark:
        story = SparkStory(spark, ringcast, directory, screen)
        story.load([spec, *other_specs(directory / "lists", ringcast.servers, ringcast.service)])
        story.read(spec.target)
        later, wanted = changed(networks, CHANGED_SHARE)
        write_networks(path, later)
        story.change(spec, wanted)
        story.follow(spec.target, size.changes)
        return story.figures


async def run(directory: Path, screen: Screen, size: Size) -> dict[str, Any]:
    """Starts everything, and stops it."""
    screen.step("Start everything on this machine: `ringcast up`")
    async with running_system(directory) as ringcast:
        screen.say(f"NATS at {ringcast.servers}, config service at {ringcast.service}")
        return await asyncio.to_thread(tell, directory, ringcast, screen, size)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="demo.spark", description="Real IP ranges from a file to a list, by Spark.")
    parser.add_argument("--output", type=Path, default=Path("build/spark.json"), help="figures (default: %(default)s)")
    parser.add_argument("--ranges", type=int, help="take only so many ranges (default: all, half a million)")
    parser.add_argument("--changes", type=int, default=60, help="single changes to time (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringcast-spark-") as directory, Screen() as screen:
        figures = asyncio.run(run(Path(directory), screen, Size(options.ranges, options.changes)))
        screen.show(figures_table(figures))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
