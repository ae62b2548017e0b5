"""One release of several keys, each with the rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringcast_wire import InvalidInputError

from pyspark_ringcast._batch.compare import Compared
from pyspark_ringcast._batch.counted import check_mode, run_tasks
from pyspark_ringcast._batch.counts import Staged
from pyspark_ringcast._batch.stage import Job, StageWriter, stage
from pyspark_ringcast._common.session_options import session_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def stage_release(frames: Mapping[str, DataFrame], *, mode: str = "append", **options: object) -> Staged:
    """Stages the rows of DataFrames as one release, and returns its number: nobody sees them before it is published.

    What differs from the rows of each key is staged, and nothing where nothing differs. The driver does that at the
    end, in the process that calls, which has all that differs in memory then.

    Args:
        frames: By config key; the keys are of one store.
        mode: ``append``: the rows of the DataFrames; ``overwrite``: also the deletion of all others of these keys.
        options: What a write takes, but no key; of others the configuration of the session has the defaults
            (``spark.ringcast.<option>``). ``maxRejected`` counts all keys together.

    Raises:
        InvalidInputError: an option, a column or the mode is wrong, or more rows were rejected than ``maxRejected``.
        OverwriteRefusedError: it would delete more than it may.
        LimitExceededError: the store has 20 releases that are staged or under way; or more than 1,000,000 rows, or
            1 GiB, differ; or a policy of the store allows fewer changes.
        RingcastError: the service refused.
        PySparkException: a task failed in all its tries, most often since the service could not be reached.
    """
    check_mode(mode)
    if not frames:
        raise InvalidInputError("a release of no key can't be staged", field="frames")
    writers = {}
    for key, frame in sorted(frames.items()):
        asked = session_options(frame.sparkSession, {**_without_place(options), "release": "new", "key": key})
        writers[key] = StageWriter(asked, frame.schema, mode == "overwrite")
    jobs = []
    for key, writer in writers.items():
        messages = run_tasks(writer, frames[key])
        jobs.append(Job(writer, [message for message in messages if isinstance(message, Compared)]))
    return stage(jobs)


def _without_place(options: Mapping[str, object]) -> Mapping[str, object]:
    for name in options:
        if name.lower() in ("key", "path", "release"):
            raise InvalidInputError(
                f"option {name} is given: stage_release makes a new release of the keys of its DataFrames", field=name
            )
    return options
